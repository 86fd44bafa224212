"""Data sets that are read by ranges: for one client, as the objects are now, and gone when it closes them."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve import StartServe, Supervisor, wait_for, workers

from .test_registry import names_fd

KIB = 1024
BLOCK = 64 * KIB


def open_ranged(client: Any, lines: list[str], block: int = BLOCK) -> int:
    fd = names_fd(lines)
    try:
        number = client.open_ranged(fd, block)
    finally:
        os.close(fd)
    assert number is not None
    ready(client, number)
    return int(number)


def ready(client: Any, number: int) -> None:
    wait_for(lambda: client.dataset_listed(number)[0], "never ready")


def numbers(one: Supervisor) -> list[int]:
    return [item["dataset"] for item in one.stat()["datasets"]]


def test_it_is_not_shared_and_its_number_comes_back(
    serve: StartServe, config: Path, folder: Path, ring: Any, tmp_path: Path
) -> None:
    one = serve(config)
    one.wait_ready()
    first, second = ring(one), ring(one)
    lines = [f"file://{folder}/007"]
    shared = first.open_dataset(names_fd=names_fd(lines))[0]
    mine, again, others = open_ranged(first, lines), open_ranged(first, lines), open_ranged(second, lines)
    assert len({shared, mine, again, others, 0}) == 5
    assert first.open_dataset(names_fd=names_fd(lines))[0] == shared
    for number in (mine, again):
        reader = first.range_reader(number, first.index(number), 0, "label")
        assert reader.read(1000, 0) == bytes([7]) * 700
        with pytest.raises(ValueError, match="another process"):
            second.index(number)
        with pytest.raises(ValueError, match="another process"):
            second.close_dataset(number)
        reader.close()
        first.close_dataset(number)
        with pytest.raises(ValueError, match="was closed"):
            first.index(number)
        with pytest.raises(ValueError, match="was closed"):
            first.close_dataset(number)
    first.close_dataset(shared)  # it stays for the next one
    wait_for(lambda: numbers(one) == sorted({0, shared, others}), "the numbers never came back")
    new = open_ranged(first, lines)
    assert new not in (mine, again) and new % 64 in (mine, again), "the number, with another id"
    with pytest.raises(ValueError, match="was closed"):
        first.index(new % 64)
    assert len(first.index(new)) == 1


def test_objects_are_looked_up_anew(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    client = ring(serve(config))
    for size in (10, 20, 5):
        (folder / "changing").write_bytes(bytes(size))
        number = open_ranged(client, [f"file://{folder}/changing"])
        assert client.index(number)[0] == (f"{folder}/changing", size)


def test_a_missing_object_fails_and_the_list_worker_goes_on(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    one = serve(config)
    client = ring(one)
    for _ in range(70):
        fd = names_fd([f"file://{folder}/{i:03}" for i in range(10)] + [f"file://{folder}/missing"])
        number = client.open_ranged(fd, BLOCK)
        os.close(fd)
        if number is None:
            continue  # those before are being closed
        with pytest.raises(FileNotFoundError, match="missing"):
            ready(client, number)
        client.close_dataset(number)
    wait_for(lambda: numbers(one) == [0], "they were never closed")
    assert not re.search(r"(error|warning):.*missing", one.log.read_text()), "it is the reader's to tell"
    assert "status 1" not in one.log.read_text(), "no list worker had to be started again"


def test_a_large_object_in_a_small_arena(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    """More than half of the arena, which no data set may have; and it divides the memory for no such object."""
    data = random.Random(1).randbytes(6 << 20)
    (folder.parent / "large").write_bytes(data)
    config.write_text('[memory]\narena_bytes = "8MiB"\n[fetch]\nworkers = 2\n')
    one = serve(config)
    client = ring(one)
    number = open_ranged(client, [f"file://{folder.parent}/large"], 8 << 20)
    reader = client.range_reader(number, client.index(number), 0, "large")
    assert reader.read(len(data), 0) == data
    stat = one.stat()
    assert stat["datasets"][0]["block_bytes"] == 512 * KIB
    assert len(workers(one.process.pid, "fetch")) == 2
    for arguments, shown in (([], True), (["--prometheus"], False)):
        command = [str(one.program), "stat", *arguments, "--socket", str(one.socket)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert ("reader of file://" in said) is shown
    reader.close()


def test_the_death_of_its_client(serve: StartServe, config: Path, folder: Path) -> None:
    one = serve(config)
    one.wait_ready()
    script = f"""
import os, sys, time
from millrace._ring import Client
client = Client({str(one.socket)!r}, "job", 100_000)
fd = os.memfd_create("names")
os.write(fd, b"file://{folder}/007")
numbers = [client.open_ranged(fd, 4096) for _ in range(3)]
while not all(client.dataset_listed(number)[0] for number in numbers[:2]):
    time.sleep(0.01)
reader = client.range_reader(numbers[0], client.index(numbers[0]), 0, "label")
reader.read(10, 0)
print("reading", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        assert len(numbers(one)) > 1
        process.kill()
    wait_for(lambda: numbers(one) == [0] and not one.stat()["lanes"], "they outlived their client")


def test_a_worker_that_dies_or_is_stopped_while_it_is_told(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    config.write_text(config.read_text() + "[fetch]\nworkers = 2\n")
    one = serve(config)
    one.wait_ready()
    client = ring(one)
    number = open_ranged(client, [f"file://{folder}/007"])
    stopped, killed = workers(one.process.pid, "fetch")
    os.kill(stopped, signal.SIGSTOP)
    client.close_dataset(number)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in workers(one.process.pid, "fetch"), "the killed one is still there")
    wait_for(lambda: len(workers(one.process.pid, "fetch")) == 2, "no new worker")
    assert numbers(one) == [0, number], "its number is not given away before every worker has answered"
    os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: numbers(one) == [0], "it was never dropped")
    number = open_ranged(client, [f"file://{folder}/009"])
    assert client.range_reader(number, client.index(number), 0, "label").read(1, 0) == b"\x09"


def test_a_worker_that_is_started_again_knows_it(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    one = serve(config)
    one.wait_ready()
    client = ring(one)
    number = open_ranged(client, [f"file://{folder}/007"], 128)
    reader = client.range_reader(number, client.index(number), 0, "label")
    assert reader.read(10, 0) == bytes([7]) * 10
    for pid in workers(one.process.pid, "fetch"):
        os.kill(pid, signal.SIGKILL)
    assert reader.read(10, 690) == bytes([7]) * 10
    reader.close()
    client.close_dataset(number)
    wait_for(lambda: numbers(one) == [0], "it was never dropped")


def test_bad_requests(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    client = ring(serve(config))
    fd = names_fd([f"file://{folder}/007"])
    with pytest.raises(ValueError, match="0 bytes"):
        client.open_ranged(fd, 0)
    number = client.open_ranged(fd, BLOCK)
    with pytest.raises(ValueError, match="no other listing"):
        client.open_listing(number, "0" * 64)
    os.close(fd)


def test_a_data_set_with_larger_objects_comes_after_a_reader(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    """A checkpoint is loaded before the data set is opened: the reserve grows once its reader is closed."""
    config.write_text('[memory]\narena_bytes = "8MiB"\n[fetch]\nworkers = 2\n')
    (folder / "large").write_bytes(b"L" * (1 << 20))
    (folder / "larger").write_bytes(b"L" * (5 << 19))
    one = serve(config)
    client = ring(one)
    number = open_ranged(client, [f"file://{folder}/large"])
    reader = client.range_reader(number, client.index(number), 0, "label")
    assert reader.read(10, 100) == b"L" * 10
    assert one.stat()["memory"]["reserve_bytes"] == 256 * KIB
    train = client.open_dataset(names_fd=names_fd([f"file://{folder}/large"]))[0]
    assert not client.dataset_listed(train)[0]
    assert reader.read(10, 200) == b"L" * 10
    reader.close()
    wait_for(lambda: client.dataset_listed(train)[0], "the reserve was not made larger")
    assert one.stat()["memory"]["reserve_bytes"] == 1 << 20
    assert client.range_reader(number, client.index(number), 0, "label").read(5, 10) == b"LLLLL"
    wait_for(client.ready, "no arenas")
    lane, _ = client.open_lane(train, client.index(train), 4, 4)
    lane.feed(0, 0)
    assert bytes(lane.next()) == b"L" * (1 << 20)
    last = client.open_dataset(uris=(f"file://{folder}/",))[0]
    with pytest.raises(OSError, match="opened first"):
        wait_for(lambda: client.dataset_listed(last)[0], "neither ready nor refused")
    (folder / "between").write_bytes(b"B" * (3 << 19))

    def closed_after_an_open(attempt: int) -> bool:
        """A loop has ended, and the supervisor hears so later than of the next data set."""
        names = ["between", *["000"] * attempt]  # a list of its own each time
        number = client.open_dataset(names_fd=names_fd([f"file://{folder}/{name}" for name in names]))[0]
        wait_for(lambda: client.dataset_listed(number)[1] > 0, "never listed")
        lane.close()
        try:
            return bool(wait_for(lambda: client.dataset_listed(number)[0], "the reserve was not made larger"))
        except OSError:  # all this took longer than a data set waits
            return False

    for attempt in range(5):
        if closed_after_an_open(attempt):
            break
        lane, _ = client.open_lane(train, client.index(train), 4, 4)
    else:
        raise AssertionError("it was refused each time")
