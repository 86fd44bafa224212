"""What the tests of checkpoints share: a configuration, and the places that they write to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import google.cloud.storage
from google.auth.credentials import AnonymousCredentials

from tests.conftest import Server

MIB = 1 << 20
PART = 5 * MIB  # of a writer, by the configuration below: two slots
CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
workers = 2
part_bytes = "5MiB"
arena_bytes = "20MiB"
[retry]
attempts = 3
"""


@dataclass
class Place:
    """A bucket or a folder."""

    base: str
    fetch: Callable[[str], bytes | None]  # by the whole URI: the bytes, verified; None: it is not there

    def __truediv__(self, name: str) -> str:
        return f"{self.base}/{name}"


def client_of(store: Server) -> Any:
    return google.cloud.storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": store.url}
    )


def bucket_place(store: Server, folder: str) -> Place:
    bucket = client_of(store).bucket("bkt")

    def fetch(uri: str) -> bytes | None:
        blob = bucket.get_blob(uri.removeprefix("gs://bkt/"))
        return None if blob is None else blob.download_as_bytes(checksum="crc32c")

    return Place(f"gs://bkt/{folder}", fetch)


def folder_place(folder: Path) -> Place:
    def fetch(uri: str) -> bytes | None:
        file = Path(uri.removeprefix("file://"))
        return file.read_bytes() if file.exists() else None

    return Place(f"file://{folder}", fetch)
