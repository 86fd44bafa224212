"""Processes that are stopped (SIGSTOP) and not dead: whoever waits is told, and no wait is for ever."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import checkpoint
from tests.serve import DEADLINE_S, StartServe, Supervisor, wait_for

from .test_workers import MakeProgram, with_worker

__all__ = ["with_worker"]  # a fixture

SILENCE_MS = 5000  # longer than a supervisor and its workers are without CPU on a busy machine
MIB = 1 << 20


@pytest.fixture
def one(serve: StartServe, config: Path, caplog: pytest.LogCaptureFixture) -> Supervisor:
    config.write_text(
        config.read_text()
        + f"[supervisor]\nsilence_ms = {SILENCE_MS}\n[fetch]\nworkers = 2\n"
        + "[checkpoint]\nworkers = 2\narena_bytes = '20MiB'\n"
    )
    caplog.set_level(logging.WARNING, "millrace")
    return serve(config)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def open_train(client: Any) -> tuple[int, Any]:
    number = int(client.open_dataset(name="train")[0])
    wait_for(lambda: client.dataset_listed(number)[0], "never listed")
    wait_for(client.ready, "no arenas")
    return number, client.index(number)


def lines_of(one: Supervisor, part: str) -> list[str]:
    return [line for line in one.log.read_text().splitlines() if part in line]


# ---- the supervisor is stopped ----


def test_a_reader_does_not_wait_for_ever(one: Supervisor, ring: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = ring(one)
    number, index = open_train(client)
    lane, _ = client.open_lane(number, index, 8, 0)
    fetchers = one.workers("fetch")
    with stopped(one.process.pid):
        for pid in fetchers:
            os.kill(pid, signal.SIGKILL)
        lane.feed(5, 0)
        with pytest.raises(millrace.SupervisorGone, match=rf"no sign of life .*kill -CONT {one.process.pid} "):
            lane.next()
        warned = [r.message for r in caplog.records if "continue it with kill -CONT" in r.message]
        assert len(warned) == 1 and f"(pid {one.process.pid})" in warned[0]
    assert bytes(lane.next()) == bytes([5]) * 500, "it goes on when the supervisor does"
    lane.close()


def test_a_reader_is_served_by_workers_meanwhile(one: Supervisor, ring: Any) -> None:
    client = ring(one)
    number, index = open_train(client)
    lane, _ = client.open_lane(number, index, 8, 0)
    lane.feed(9, 0)
    assert bytes(lane.next()) == bytes([9]) * 900  # the workers have been sent the lane
    with stopped(one.process.pid):
        for i in (1, 2, 3):
            lane.feed(i, 0)
            assert bytes(lane.next()) == bytes([i]) * 100 * i
        with pytest.raises(millrace.SupervisorGone, match="no sign of life"):
            wait_for(client.check, "check() waits for nobody")
        lane.feed(4, 0)
        assert bytes(lane.next()) == bytes([4]) * 400, "silence alone ends no wait that gets what it waits for"
    lane.close()


def test_a_range_reader_does_not_wait_for_ever(one: Supervisor, folder: Path, ring: Any) -> None:
    client = ring(one)
    fd = os.memfd_create("names", os.MFD_CLOEXEC)
    os.write(fd, f"file://{folder}/015\n".encode())
    number = wait_for(lambda: client.open_ranged(fd, 512), "no number")
    os.close(fd)
    wait_for(lambda: client.dataset_listed(number)[0], "never looked up")
    reader = client.range_reader(number, client.index(number), 0, "015")
    assert bytes(reader.read(10, 0)) == bytes([15]) * 10  # it has its lane
    reader_pids = one.workers("fetch")
    with stopped(one.process.pid, *reader_pids), pytest.raises(millrace.SupervisorGone, match="no sign of life"):
        for at in range(0, 1500, 100):
            reader.read(100, at)
    assert bytes(reader.read(100, 1000)) == bytes([15]) * 100
    reader.close()


def open_writer(client: Any, path: Path) -> Any:
    def attempt() -> Any:
        writer = client.open_writer(f"file://{path}")
        return None if isinstance(writer, str) else writer

    return wait_for(attempt, "no writer")


def test_a_writer_does_not_wait_for_ever(one: Supervisor, tmp_path: Path, ring: Any) -> None:
    client = ring(one)
    writer = open_writer(client, tmp_path / "saved")
    with stopped(one.process.pid, *one.workers("write")):
        with pytest.raises(millrace.SupervisorGone, match=f"kill -CONT {one.process.pid}"):
            writer.write(bytes(40 * MIB))
        assert writer.aborted
    writer.close()
    assert not (tmp_path / "saved").exists()


def test_a_promised_save_outlives_a_stop(
    one: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILLRACE_SOCKET", str(one.socket))
    file = checkpoint.writer(f"file://{tmp_path}/promised")
    file.write(b"state" * 1000)
    wait_for(lambda: one.stat()["checkpoint"]["writers"][0]["adopted"], "the writer's worker has not taken it")
    with stopped(one.process.pid, *one.workers("write")):
        save = file.close(wait=False)
        wait_for(lambda: "may still finish the save" in caplog.text, lambda: caplog.text)
        assert not save.done()
    assert save.result(DEADLINE_S).size == 5000
    assert (tmp_path / "promised").read_bytes() == b"state" * 1000


def test_a_listing_is_not_awaited_for_ever(
    serve: StartServe, config: Path, folder: Path, with_worker: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(config.read_text() + f"[supervisor]\nsilence_ms = {SILENCE_MS}\n")
    one = serve(config, program=with_worker("#!/bin/sh\nexec sleep 1000\n"))
    monkeypatch.setenv("MILLRACE_SOCKET", str(one.socket))
    data = millrace.IterableDataset(f"file://{folder}/")
    with stopped(one.process.pid), pytest.raises(millrace.SupervisorGone, match="no sign of life"):
        len(data.objects)
    connection = millrace._connection.connect(str(one.socket), 0)
    wait_for(lambda: succeeds(connection.client.check), "it goes on")
    one.stop()


def succeeds(call: Any) -> bool:
    try:
        call()
    except millrace.SupervisorGone:
        return False
    return True


def test_a_call_that_was_not_answered(one: Supervisor, ring: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Over the end of an epoch: nothing says that the supervisor has ended."""
    client = ring(one)
    number, index = open_train(client)
    lane, _ = client.open_lane(number, index, 8, 0)
    with stopped(one.process.pid):
        lane.close()
        assert "has not answered" in caplog.text and f"kill -CONT {one.process.pid}" in caplog.text
        with pytest.raises(millrace.SupervisorGone, match="has not answered"):
            client.stat()
    assert '"lanes"' in client.stat(), "late answers are not taken for this one"
    lane, _ = client.open_lane(number, index, 8, 0)
    lane.close()
    assert "has ended" not in caplog.text


def test_a_lane_that_came_too_late(one: Supervisor, ring: Any) -> None:
    """The supervisor keeps what nobody here has: that connection is over, with words that say so."""
    client = ring(one)
    number, index = open_train(client)
    with stopped(one.process.pid), pytest.raises(millrace.SupervisorGone, match="has not answered"):
        client.open_lane(number, index, 8, 0)
    for _ in range(2):
        with pytest.raises(millrace.SupervisorGone, match=r"lives, but did not answer .* open the data set again"):
            client.stat()
    with pytest.raises(millrace.SupervisorGone, match="open the data set again"):
        client.check()
    again = ring(one)
    again.open_lane(*open_train(again), 8, 0)[0].close()


# ---- workers are stopped ----


def expect_words(one: Supervisor, role: str, pids: list[int]) -> None:
    """Each of them is named, with what to do, and again when it goes on."""
    with stopped(*pids):
        for pid in pids:
            [line] = wait_for(lambda: lines_of(one, f"(pid {pid}) has been stopped"), one.log.read_text)  # noqa: B023
            assert f"{role} worker" in line and f"kill -CONT {pid}" in line and "there is work for it" in line
            assert [w["state"] for w in one.stat()["workers"] if w["pid"] == pid] == ["stopped"]
    for pid in pids:
        wait_for(lambda: lines_of(one, f"(pid {pid}) runs again"), one.log.read_text)  # noqa: B023


def test_fetch_workers_that_hold_nothing(one: Supervisor, ring: Any) -> None:
    client = ring(one)
    number, index = open_train(client)
    lane, _ = client.open_lane(number, index, 8, 0)
    expect_words(one, "fetch", one.workers("fetch"))
    lane.close()


def test_write_workers(one: Supervisor, tmp_path: Path, ring: Any) -> None:
    client = ring(one)
    writer = open_writer(client, tmp_path / "saved")
    stat = one.stat()
    slot = stat["checkpoint"]["writers"][0]["worker"]
    expect_words(one, "write", [w["pid"] for w in stat["workers"] if w["role"] == "write" and w["slot"] == slot])
    writer.close()


def test_list_workers(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    config.write_text(config.read_text() + f"[supervisor]\nsilence_ms = {SILENCE_MS}\n")
    one = serve(config, program=with_worker("#!/bin/sh\nexec sleep 1000\n"))
    pids = wait_for(lambda: [w["pid"] for w in one.stat()["workers"] if w["role"] == "list" and w["pid"]], "no worker")
    expect_words(one, "list", pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_lanes_do_not_pile_up_for_a_worker_that_is_stopped(one: Supervisor, ring: Any) -> None:
    client = ring(one)
    number, index = open_train(client)
    descriptors = Path(f"/proc/{one.process.pid}/fd")

    def read_one() -> None:
        lane, _ = client.open_lane(number, index, 8, 0)
        lane.feed(1, 0)
        assert bytes(lane.next()) == bytes([1]) * 100
        lane.close()

    read_one()
    wait_for(lambda: not one.stat()["lanes"], "the lane stays")
    before = len(list(descriptors.iterdir()))
    with stopped(one.workers("fetch")[0]):
        for _ in range(1000):
            read_one()
        assert len(list(descriptors.iterdir())) < before + 600, "what its socket takes, and no more"
        wait_for(lambda: lines_of(one, "has been stopped"), "no line about it, although no lane is open")
    wait_for(lambda: len(list(descriptors.iterdir())) <= before, "the lanes stay")
