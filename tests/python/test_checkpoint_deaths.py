"""Checkpoints while something dies or a signal comes: a slow store, and a supervisor of its own for each test."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import millrace
from millrace import _trace, checkpoint
from millrace.checkpoint import _writer
from tests.conftest import BIN, start_devstore
from tests.python.checkpoint_places import CONFIG, MIB, PART, Place, bucket_place
from tests.python.helpers import in_its_call
from tests.serve import DEADLINE_S, Supervisor, start_supervisor
from tests.stores import create_bucket


@dataclass
class Slow:
    """A store that takes a second for a MiB, and a supervisor."""

    supervisor: Supervisor
    place: Place

    def kill_supervisor(self) -> None:
        self.supervisor.process.kill()
        self.supervisor.process.wait()

    def kill_all(self) -> None:
        workers = self.supervisor.workers("write")
        assert workers
        self.kill_supervisor()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # its drain_s are over
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def slowly(millrace_bin: Path, folder: Path, mibps: str, toml: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    store = start_devstore("--memory", "--upload-mibps", mibps)
    create_bucket(store.url, "bkt")
    started = start_supervisor(millrace_bin, folder, store.url, toml)
    monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
    found = Slow(started, bucket_place(store, "slow"))
    try:
        yield found
    finally:
        if started.process.poll() is None:
            found.kill_supervisor()
        store.stop()


@pytest.fixture
def slow(
    request: pytest.FixtureRequest, tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Slow]:
    drain_s = getattr(request, "param", 100)
    toml = CONFIG.replace("[checkpoint]", f"[checkpoint]\ndrain_s = {drain_s}")
    with slowly(millrace_bin, tmp_path, "1/1", toml, monkeypatch) as found:
        yield found


@pytest.mark.parametrize(("first", "second", "free"), [(60, 20, 0), (11, 60, 80 - 2 * 7.5 - 8 * 8)])
def test_a_lone_writer_gets_what_nobody_else_asks_for(
    tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int, free: float
) -> None:
    """Of 80 MiB, with a store that takes hardly anything: three quarters, and the next one what is left of that."""
    toml = CONFIG.replace('"20MiB"', '"80MiB"').replace('"5MiB"', '"8MiB"')
    toml = toml.replace("[checkpoint]", "[checkpoint]\ndrain_s = 1")
    saves = []
    with slowly(millrace_bin, tmp_path, "0.1/0.1", toml, monkeypatch) as slow:
        for name, size in (("first", first), ("second", second)):
            file = checkpoint.writer(slow.place / name)
            file.write(bytes(size * MIB))
            saves.append(file.close(wait=False))
        assert slow.supervisor.stat()["checkpoint"]["arena_free_bytes"] == free * MIB
        slow.kill_all()
    for save in saves:
        with pytest.raises(millrace.Error):
            save.result(DEADLINE_S)


class Interrupted(Exception):
    pass


def interrupt() -> None:
    raise Interrupted


def test_a_signal_while_a_write_waits(slow: Slow) -> None:
    file = checkpoint.writer(slow.place / "name")
    with pytest.raises(Interrupted), in_its_call(lambda: file.write(b""), interrupt):
        file.write(bytes(8 * PART))
    for refused in (lambda: file.write(b"x"), file.close):  # what has been taken of those bytes is unknown
        with pytest.raises(Interrupted):
            refused()
    assert slow.place.fetch(slow.place / "name") is None


def test_a_signal_while_close_waits(slow: Slow) -> None:
    """The promise stays."""
    file = checkpoint.writer(slow.place / "name")
    file.write(bytes(2 * MIB))

    def sealed() -> None:
        if file.closed:
            raise RuntimeError

    with pytest.raises(Interrupted), in_its_call(sealed, interrupt):
        file.close()
    assert file.closed
    assert file.close().size == 2 * MIB
    assert slow.place.fetch(slow.place / "name") == bytes(2 * MIB)


class Sealing:
    """A writer of the extension, and Control-C as its seal() returns."""

    def __init__(self, ring: Any) -> None:
        self._inner = ring

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def seal(self) -> None:
        self._inner.seal()
        raise Interrupted


@pytest.mark.parametrize("place", ["seal", "after"])
def test_a_signal_as_the_promise_is_made(slow: Slow, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Also while another save is waited for, by the thread that does not know of this one."""
    other = checkpoint.writer(slow.place / "other")
    other.write(bytes(2 * MIB))
    other_save = other.close(wait=False)
    file: Any = checkpoint.writer(slow.place / "name")
    file.write(bytes(MIB))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        if place == "seal":
            file._ring = Sealing(file._ring)
        else:
            patch.setattr(_trace, "trace", lambda *_, **__: interrupt())
            patch.setattr(_writer, "watch", lambda _: interrupt())
        file.close()
    assert file.closed and file.close(wait=False).result(DEADLINE_S).size == MIB
    assert other_save.result(DEADLINE_S).size == 2 * MIB
    assert slow.place.fetch(slow.place / "name") == bytes(MIB)


def test_the_supervisor_dies_while_bytes_are_written(slow: Slow) -> None:
    file = checkpoint.writer(slow.place / "name")
    with pytest.raises(millrace.SupervisorGone), in_its_call(lambda: file.write(b""), slow.kill_supervisor):
        file.write(bytes(20 * PART))
    file.abort()
    with pytest.raises(millrace.SupervisorGone):
        checkpoint.writer(slow.place / "name")
    assert slow.place.fetch(slow.place / "name") is None


def test_the_supervisor_died_before_the_promise(slow: Slow) -> None:
    file = checkpoint.writer(slow.place / "name")
    file.write(b"x")
    slow.kill_supervisor()
    for _ in range(2):
        with pytest.raises(millrace.SupervisorGone):
            file.close()
    assert slow.place.fetch(slow.place / "name") is None


def test_the_supervisor_dies_after_the_promise(slow: Slow) -> None:
    """The write worker finishes what was sealed, and nothing else."""
    open_one = checkpoint.writer(slow.place / "open")
    open_one.write(b"x")
    with checkpoint.writer(slow.place / "name") as file:
        file.write(bytes(2 * MIB))
        save = file.close(wait=False)
    slow.kill_supervisor()
    assert save.result(DEADLINE_S).size == 2 * MIB
    assert slow.place.fetch(slow.place / "name") == bytes(2 * MIB)
    with pytest.raises(millrace.SupervisorGone):
        open_one.close()
    assert slow.place.fetch(slow.place / "open") is None


def test_no_promise_before_a_write_worker_has_the_checkpoint(
    tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor answers a writer before it tells the write worker of it, and dies between the two."""
    preloaded = {"LD_PRELOAD": str(BIN / "millrace-test-stopping.so"), "STOP_AFTER_DESCRIPTORS": "4"}
    supervisor = start_supervisor(millrace_bin, tmp_path, "", CONFIG, **preloaded)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    file = checkpoint.writer(tmp_path / "name")
    file.write(bytes(2 * MIB))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        closing = pool.submit(file.close, wait=False)
        concurrent.futures.wait([closing], 1)  # it must not come to a promise
        supervisor.kill()
        with pytest.raises(millrace.SupervisorGone):
            closing.result(DEADLINE_S)
    assert not (tmp_path / "name").exists()


@pytest.mark.parametrize("slow", [1], indirect=True)
def test_everything_dies_after_the_promise(slow: Slow) -> None:
    with checkpoint.writer(slow.place / "name") as file:
        file.write(bytes(8 * MIB))
        save = file.close(wait=False)
    slow.kill_all()
    with pytest.raises(millrace.SupervisorGone, match="not confirmed"):
        save.result(DEADLINE_S)
    assert slow.place.fetch(slow.place / "name") is None


def test_a_write_worker_dies(slow: Slow) -> None:
    data = random.Random(0).randbytes(2 * MIB)
    with checkpoint.writer(slow.place / "name") as file:
        file.write(data)
        save = file.close(wait=False)
    for pid in slow.supervisor.workers("write"):
        os.kill(pid, signal.SIGKILL)
    assert save.result(DEADLINE_S).crc32c == google_crc32c.value(data)
    assert slow.place.fetch(slow.place / "name") == data
