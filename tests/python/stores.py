"""One development store that speaks gs and s3, and a supervisor over it, for the tests of files."""

from __future__ import annotations

import gc
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import checkpoint
from tests.conftest import start_devstore
from tests.serve import start_supervisor
from tests.stores import requests

from .conftest import CONFIG
from .shards import KEYS

MIB = 1 << 20
# A request that is slow by luck would be made again, and counted twice.
NO_REPEATS = "[http]\nstall_min_ms = 3600000\n"


class Stores:
    """The buckets "bucket" and "second", which `root` holds, under gs:// and s3://."""

    def __init__(self, program: Path, folder: Path, *flags: str) -> None:
        self.root = folder / "root"
        for bucket in ("bucket", "second"):
            (self.root / bucket).mkdir(parents=True)
        self.log = folder / "log"
        self.server = start_devstore("--root", self.root, "--memory", "--log", self.log, *flags)
        self.env = {**KEYS, "AWS_ENDPOINT_URL_S3": self.server.url, "STORAGE_EMULATOR_HOST": self.server.url}
        self.supervisor = start_supervisor(program, folder, self.server.url, CONFIG + NO_REPEATS, **self.env)
        self.env["MILLRACE_SOCKET"] = str(self.supervisor.socket)

    def put(self, name: str, data: bytes) -> None:
        """Past millrace."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        url = f"{self.server.url}/upload/storage/v1/b/bucket/o?{query}"
        urllib.request.urlopen(urllib.request.Request(url, data, method="POST")).close()

    def gets(self) -> int:
        """Reads of bytes so far."""
        return requests(self.server.url)["get"]

    def answers(self, name: str) -> list[int]:
        """Bytes of each answer with bytes of that object so far."""
        found = []
        for line in self.log.read_text().splitlines():
            method, target, status, length = line.split()
            path, _, query = target.partition("?")
            wanted = "alt=media" in query or not path.startswith("/storage/")
            if method == "GET" and wanted and status in ("200", "206") and path.endswith("/" + name):
                found.append(int(length))
        return found

    def stop(self) -> None:
        gc.collect()
        try:
            assert self.supervisor.stop() == 0, self.supervisor.log.read_text()
        finally:
            self.server.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path) -> Iterator[Stores]:
    started = Stores(millrace_bin, tmp_path_factory.mktemp("stores"))
    with pytest.MonkeyPatch.context() as patch:  # all its workers and memory are there before the first test
        patch.setenv("MILLRACE_SOCKET", started.env["MILLRACE_SOCKET"])
        with checkpoint.writer("gs://bucket/first") as file:
            file.write(bytes(MIB))
        with checkpoint.reader("gs://bucket/first") as file:
            file.read()
    yield started
    started.stop()


@pytest.fixture
def stores(running: Stores, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    for name, value in running.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLRACE_BIN", str(millrace_bin.parent))
    return running


@pytest.fixture(params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest, stores: Stores) -> str:
    """ "gs://bucket" and "s3://bucket"."""
    return f"{request.param}://bucket"


def without_supervisor(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What is made from now on starts a private supervisor."""
    monkeypatch.delenv("MILLRACE_SOCKET")
    config = folder / "private.toml"
    config.write_text(CONFIG)
    monkeypatch.setenv("MILLRACE_CONFIG", os.fspath(config))
