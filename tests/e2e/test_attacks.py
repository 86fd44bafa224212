"""What was found by attacking a running millrace from outside: each test is named after what went wrong."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.conftest import StartDevstore
from tests.serve import start_supervisor, wait_for


def test_lane_is_forgotten_when_workers_die_before_they_drop_it(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = devstore("--synthetic", "icons:500:1000")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, "[memory]\narena_bytes = '16MiB'\n")
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    dataset = millrace.IterableDataset("gs://icons/")
    batches = iter(dataset.batches(8))
    next(batches)

    def lane() -> dict[str, Any]:
        return dict(supervisor.stat()["lanes"][0])

    # Nothing is under way in it: a lane with a download of a stopped worker is not drained.
    wait_for(lambda: lane()["pending"] == lane()["filling"] == 0, "the window is not filled")
    workers = supervisor.workers("fetch")
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    batches.close()  # type: ignore[attr-defined]
    gc.collect()
    wait_for(lambda: lane()["state"] == "dropping", "the lane is not closed")
    for pid in workers:  # they have published, so that others take their places at once
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not supervisor.stat()["lanes"], "the lane stays for ever")
    assert sum(len(batch) for batch in dataset.batches(8)) == 500
    del dataset
    assert supervisor.stop() == 0


def test_many_missing_objects_do_not_crash_the_list_worker(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = devstore("--synthetic", "icons:10:1000")
    # glibc fills what is freed, so that a use of it is seen.
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, MALLOC_PERTURB_="165")
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    dataset = millrace.IterableDataset.from_objects([f"gs://icons/missing/{i}" for i in range(500)])
    with pytest.raises(FileNotFoundError, match="missing/"):
        len(dataset)
    del dataset
    assert supervisor.stop() == 0
    assert "signal" not in supervisor.log.read_text().replace("signal TERM", "")


def test_folders_whose_names_begin_alike_are_not_left_out(
    millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "ab", "a.b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "object").write_bytes(b"x")
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", "[memory]\narena_bytes = '16MiB'\n")
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    folders = [f"file://{tmp_path}/{name}" for name in ("a", "ab", "a.b")]
    with pytest.raises(ValueError, match="slash at their end"):
        millrace.IterableDataset(folders)
    assert len(millrace.IterableDataset([f"{folder}/" for folder in folders]).objects) == 3
    assert len(millrace.IterableDataset([folders[0], f"{folders[0]}/", f"{folders[0]}/object"]).objects) == 1
    gc.collect()
    assert supervisor.stop() == 0


def test_stopped_workers_pile_up_no_messages_in_the_supervisor(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes that wait to be dropped are said again ten times a second, for as long as a worker is stopped."""
    server = devstore("--synthetic", "icons:500:1000")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, "[memory]\narena_bytes = '16MiB'\n")
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))

    def private_kib() -> int:
        match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{supervisor.process.pid}/status").read_text())
        assert match is not None
        return int(match[1])

    lanes = [iter(millrace.IterableDataset("gs://icons/").batches(4)) for _ in range(100)]
    for batches in lanes:
        next(batches)
    workers = supervisor.workers("fetch")
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    before = private_kib()
    lanes.clear()
    del batches
    gc.collect()
    time.sleep(4)
    grown = private_kib() - before
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    assert grown < 8192, f"{grown} KiB"
    wait_for(lambda: not supervisor.stat()["lanes"], "a lane stays for ever")
    assert supervisor.stop() == 0


def test_uris_of_two_buckets_are_found_by_check(millrace_bin: Path, tmp_path: Path) -> None:
    config = tmp_path / "two.toml"
    config.write_text("[dataset.x]\nuris = ['gs://one/', 'gs://two/']\n")
    result = subprocess.run([millrace_bin, "check", "-c", config], capture_output=True, text=True)
    assert result.returncode == 2
    assert "'x'" in result.stderr and "one bucket" in result.stderr, result.stderr


def test_data_set_without_objects_is_warned_about(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = devstore("--synthetic", "icons:10:1000")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    dataset = millrace.IterableDataset("gs://icons/mistyped/")
    assert list(dataset.batches(4)) == []
    del dataset
    assert supervisor.stop() == 0
    assert "warning: data set 0 (gs://icons/mistyped/): no objects" in supervisor.log.read_text()
