"""Tar shards for tests, and what is in them by Python's tarfile."""

from __future__ import annotations

import io
import random
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import start_devstore
from tests.serve import Supervisor, start_supervisor

Samples = list[dict[str, bytes]]
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_shard(path: Path, samples: Samples, format: int = tarfile.PAX_FORMAT) -> None:
    """Each sample has its key as "__key__", and its members by suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for sample in samples:
            for suffix, data in sample.items():
                if suffix != "__key__":
                    add(tar, f"{sample['__key__'].decode()}.{suffix}", data)


def make_samples(number: int, count: int, size: int) -> Samples:
    """Keys that are not ascending; a picture and a number each."""
    rng = random.Random(number)
    return [
        {
            "__key__": f"{rng.randrange(1000):03d}-{number}-{i}".encode(),
            "jpg": rng.randbytes(rng.randint(1, size)),
            "cls": str(i).encode(),
        }
        for i in range(count)
    ]


def write_shards(folder: Path, shards: int, count: int, size: int) -> Samples:
    """FOLDER/000.tar and so on; all samples, in order."""
    everything = []
    for number in range(shards):
        samples = make_samples(number, count, size)
        write_shard(folder / f"{number:03d}.tar", samples, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)[number % 2])
        everything += samples
    return everything


def plain(sample: millrace.Sample) -> dict[str, bytes]:
    """As the tests write them."""
    copy = sample.copy()
    return {
        name: value.encode() if isinstance(value, str) else value for name, value in copy.items() if name != "__url__"
    }


def read_all(ds: Any) -> Samples:
    return [plain(sample) for sample in ds]


class Buckets:
    """The development store over a folder, with a supervisor that reads from it."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.root = folder / "root"
        self.samples = write_shards(self.root / "bucket" / "train", 4, 25, 30_000)
        self.large = write_shards(self.root / "bucket" / "large", 2, 12, 400_000)
        self.server = start_devstore("--root", self.root, "--memory", "--log", folder / "log")
        self.log = folder / "log"
        self._program, self._folder, self._count = program, folder, 0
        self.supervisors: list[Supervisor] = []

    def supervisor(self, toml: str = "") -> Supervisor:
        """A new one: it knows nothing but what is in the cache."""
        self._count += 1
        place = self._folder / f"supervisor-{self._count}"
        place.mkdir()
        env = {**KEYS, "AWS_ENDPOINT_URL_S3": self.server.url}
        self.supervisors.append(start_supervisor(self._program, place, self.server.url, toml, **env))
        return self.supervisors[-1]

    def shards_read(self) -> list[str]:
        """The shards whose bytes were asked for so far, in order, a line a request."""
        lines = self.log.read_text().splitlines()
        return [name for line in lines if "alt=media" in line for name in re.findall(r"\d+\.tar", line)]


def use(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
