"""Fixtures of the package's tests: folders of small objects, and one supervisor a file."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pytest

import millrace
from millrace.checkpoint import _reader
from tests.serve import Supervisor, start_supervisor

CONFIG = """
[memory]
arena_bytes = "16MiB"
[fetch]
workers = 2
"""


@dataclass
class Folder:
    """A folder of objects and what is in them."""

    root: Path
    contents: dict[str, bytes]  # by the name that the data set has for it, in the order of the names

    @property
    def uri(self) -> str:
        return f"file://{self.root}/"

    @property
    def names(self) -> list[str]:
        return list(self.contents)


def make_folder(root: Path, count: int, size: int = 0) -> Folder:
    """count objects, each with other bytes; of 1 to 3000 bytes, or of one size."""
    rng = random.Random(count)
    contents = {}
    for i in range(count):
        file = root / f"{i % 7}" / f"object-{i:05d}"
        file.parent.mkdir(parents=True, exist_ok=True)
        data = i.to_bytes(4, "little") + rng.randbytes(size or rng.randint(1, 3000))
        file.write_bytes(data)
        contents[str(file)] = data
    return Folder(root, dict(sorted(contents.items(), key=lambda item: item[0].encode())))


MakeFolder = Callable[..., Folder]


@pytest.fixture
def folder(tmp_path: Path) -> MakeFolder:
    def make(count: int, size: int = 0) -> Folder:
        return make_folder(tmp_path / f"objects-{count}-{size}", count, size)

    return make


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return make_folder(tmp_path_factory.mktemp("hundred"), 100)


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path) -> Iterator[Supervisor]:
    """One for all tests of a file: what a test opens is closed by its end."""
    started = start_supervisor(millrace_bin, tmp_path_factory.mktemp("supervisor"), "http://127.0.0.1:9", CONFIG)
    # The first listing divides the memory, by its largest object, and starts the fetch workers.
    first = make_folder(tmp_path_factory.mktemp("first"), 1, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        assert len(millrace.MapDataset(first.uri)[0]) > 1 << 20
    yield started
    gc.collect()
    assert started.stop() == 0, started.log.read_text()


@pytest.fixture
def socket(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    return str(supervisor.socket)


@pytest.fixture(scope="session", autouse=True)
def _imports_are_not_collected() -> None:
    """torch's objects are many, and every test collects: they are left out of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _collected(_nothing_left_by_test: Any) -> Iterator[None]:
    """What a test leaves in reference cycles is gone before the look at what it left behind, and so is the private
    supervisor that readers of checkpoints keep for the next one."""
    yield
    _reader._kept.clear()
    gc.collect()
