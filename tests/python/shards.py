"""Tar shards for tests, and what is in them by Python's tarfile."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

Samples = list[dict[str, bytes]]


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
