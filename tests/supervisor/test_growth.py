"""memory.arena_bytes = "auto": arenas that grow with what readers ask for, and shrink when nobody reads."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import millrace
from tests.conftest import BIN, StartDevstore
from tests.serve import Supervisor, start_supervisor, wait_for

MIB = 1 << 20
AUTO = '[memory]\narena_bytes = "auto"\n[fetch]\nworkers = 2\n'


@pytest.fixture
def supervisor(devstore: StartDevstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    store = devstore("--synthetic", "bucket:100:1MiB", "--synthetic", "large:3:40MiB")
    supervisor = start_supervisor(BIN / "millrace", tmp_path, store.url, AUTO)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    return supervisor


def backed(supervisor: Supervisor) -> int:
    return int(supervisor.stat()["memory"]["backed_bytes"])


def test_it_grows_with_what_is_asked_for_and_shrinks(supervisor: Supervisor) -> None:
    dataset = millrace.MapDataset("gs://bucket/")
    assert len(dataset) == 100
    wait_for(lambda: backed(supervisor) == 2 * (8 + 1) * MIB)  # a step, and the largest object
    leases = dataset.__getitems__(list(range(60)))
    assert [len(lease) for lease in leases] == [MIB] * 60
    wait_for(lambda: backed(supervisor) >= 60 * MIB)
    text = supervisor.log.read_text()
    assert "as much of it as is used" in text
    bound = int(supervisor.stat()["memory"]["arena_bytes"]) * 2
    assert backed(supervisor) <= bound and bound >= 256 * MIB
    first = bytes(leases[0])
    del leases
    del dataset
    wait_for(lambda: backed(supervisor) == 2 * (8 + 1) * MIB)
    again = millrace.MapDataset("gs://bucket/")
    assert bytes(again[0]) == first
    del again
    supervisor.stop()


def test_a_larger_data_set_later(supervisor: Supervisor) -> None:
    """Its objects fit the reserve, of which only what was needed so far is there."""
    small = millrace.MapDataset("gs://bucket/")
    assert len(small[5]) == MIB
    large = millrace.MapDataset("gs://large/")
    assert [len(large[i]) for i in range(3)] == [40 * MIB] * 3
    del small
    del large
    supervisor.stop()


def test_a_fetch_worker_dies_when_its_arena_has_grown(supervisor: Supervisor) -> None:
    """What lies where it had grown to is found again, and not given out twice."""
    dataset = millrace.MapDataset("gs://bucket/")
    held = dataset.__getitems__(list(range(50)))
    before = [bytes(lease) for lease in held]
    wait_for(lambda: backed(supervisor) >= 50 * MIB)
    for worker in supervisor.stat()["workers"]:
        if worker["role"] == "fetch":
            os.kill(worker["pid"], signal.SIGKILL)
    rest = dataset.__getitems__(list(range(50, 100)))
    assert [bytes(lease) for lease in held] == before
    assert len({bytes(lease) for lease in rest} | set(before)) == 100
    del held, rest
    del dataset
    supervisor.stop()


def pages(supervisor: Supervisor) -> int:
    """The bytes that the kernel keeps for the fetch workers' arenas."""
    size = supervisor.stat()["memory"]["arena_bytes"]
    found = {}
    for pid in supervisor.workers("fetch"):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                status = fd.stat()
                found[status.st_ino] = status.st_blocks * 512 if status.st_size == size else 0
    return sum(found.values())


def test_what_a_dead_worker_had_made_goes_with_the_last_reader(supervisor: Supervisor) -> None:
    """Also where its successor finds nothing in it, and so does not know of it."""
    dataset = millrace.MapDataset("gs://bucket/")
    leases = dataset.__getitems__(list(range(60)))
    wait_for(lambda: pages(supervisor) >= 60 * MIB)
    del leases
    assert len(dataset[0]) == MIB
    for pid in supervisor.workers("fetch"):
        os.kill(pid, signal.SIGKILL)
    assert len(dataset[1]) == MIB
    wait_for(lambda: backed(supervisor) == 2 * (8 + 1) * MIB)
    wait_for(lambda: pages(supervisor) >= 60 * MIB)  # both are there again
    del dataset
    wait_for(lambda: pages(supervisor) <= 2 * (8 + 1) * MIB, lambda: f"{pages(supervisor)} bytes")
    supervisor.stop()
