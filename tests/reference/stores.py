"""The two object stores: started with the data, and what a program left there."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import start_devstore, start_fake_gcs
from tests.reference.programs import BUCKET

STORES = ("devstore", "fake-gcs-server")


@contextlib.contextmanager
def store(kind: str, data: Path, work: Path) -> Iterator[str]:
    """The URL of a store of its own, whose bucket has what is in the folder of data."""
    root = work / "store"
    shutil.copytree(data, root / BUCKET)
    start = {
        "devstore": lambda: start_devstore("--root", root),
        "fake-gcs-server": lambda: start_fake_gcs(work / "store.log", "-data", root),
    }
    server = start[kind]()
    try:
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(root)


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return dict(json.load(reply))


def pages(url: str) -> Iterator[dict[str, Any]]:
    token = ""
    while True:
        page = get(f"{url}&pageToken={urllib.parse.quote(token)}" if token else url)
        yield from page.get("items", [])
        token = page.get("nextPageToken", "")
        if not token:
            return


def left(url: str, data: Path, folder: Path) -> set[str]:
    """Downloads what is there beside the data into a folder; the names, as bucket/object, of all that is there."""
    names = set()
    for bucket in [item["name"] for item in pages(f"{url}/storage/v1/b?project=project")]:
        for item in pages(f"{url}/storage/v1/b/{bucket}/o?maxResults=1000"):
            name = item["name"]
            names.add(f"{bucket}/{name}")
            if bucket == BUCKET and (data / name).is_file():
                continue
            path = folder / bucket / name.rstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            quoted = urllib.parse.quote(name, safe="")
            with urllib.request.urlopen(f"{url}/storage/v1/b/{bucket}/o/{quoted}?alt=media", timeout=60) as reply:
                path.write_bytes(reply.read())
    return names
