"""Listings that clients count: the nth of the same places is shared by all who ask for it, and ends after the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace import ChangedError, Error
from tests.conftest import StartDevstore
from tests.serve import StartServe, Supervisor, wait_for, workers
from tests.stores import requests, temporary
from tests.supervisor.test_registry import names_fd


def listed(client: Any, uri: str, nth: int) -> int:
    number = int(wait_for(lambda: client.open_dataset(uris=(uri,), nth=nth), "no room")[0])
    wait_for(lambda: client.dataset_listed(number)[0], "never listed")
    return number


def numbers(one: Supervisor) -> list[int]:
    return [item["dataset"] for item in one.stat()["datasets"]]


def test_each_is_listed_when_it_is_first_asked_for(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    one = serve(config)
    one.wait_ready()
    ours, theirs = ring(one), ring(one)
    uri = f"file://{folder}/"
    common = listed(ours, uri, 0)
    before = [name for name, _ in ours.index(common)]
    (folder / "later").write_bytes(b"later")
    first = listed(ours, uri, 1)
    (folder / "000").unlink()
    second = listed(theirs, uri, 2)
    assert len({common, first, second}) == 3
    assert (
        listed(theirs, f"{folder}/", 1) == first and listed(ours, uri, 2) == second and listed(ours, uri, 0) == common
    )
    after = [*before, f"{folder}/later"]
    assert [[name for name, _ in theirs.index(number)] for number in (common, first, second)] == [
        before,
        after,
        after[1:],
    ]


def test_it_ends_once_it_was_closed_as_often_as_opened(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    one = serve(config)
    one.wait_ready()
    ours, theirs = ring(one), ring(one)
    uri = f"file://{folder}/"
    number = listed(ours, uri, 1)
    assert listed(ours, uri, 1) == listed(theirs, uri, 1) == number
    ours.close_dataset(number)
    assert len(ours.index(number)) == 20
    ours.close_dataset(number)
    for ask in (ours.index, ours.close_dataset):
        with pytest.raises(ValueError, match="was closed, and its number"):
            ask(number)
    assert numbers(one) == [0, number] and len(theirs.index(number)) == 20
    assert listed(ours, uri, 1) == number, "somebody has it open"
    ours.close_dataset(number)
    theirs.close_dataset(number)
    wait_for(lambda: numbers(one) == [0], "it never ended")
    stranger = ring(one)
    number = listed(ours, uri, 1)
    with pytest.raises(ValueError, match="was not opened by this process"):
        stranger.close_dataset(number)
    shared = listed(ours, uri, 0)
    ours.close_dataset(shared)
    assert listed(ours, uri, 0) == shared, "it stays for the next one"


def test_the_numbers_suffice_for_any_count(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    one = serve(config)
    client = ring(one)
    last = listed(client, f"file://{folder}/", 1)
    for nth in range(2, 150):
        number = listed(client, f"file://{folder}/", nth)
        client.close_dataset(last)
        last = number
    wait_for(lambda: numbers(one) == [0, last % 64], "they were never closed")


def open_list(client: Any, folder: Path, i: int) -> int:
    """The i-th pair of objects."""
    fd = names_fd([f"file://{name}" for name in pair(folder, i)])
    try:
        number = int(wait_for(lambda: client.open_dataset(names_fd=fd), "no room")[0])
    finally:
        os.close(fd)
    wait_for(lambda: client.dataset_listed(number)[0], "not listed")
    return number


def pair(folder: Path, i: int) -> list[str]:
    return [f"{folder}/{i // 19:03}", f"{folder}/019" if i // 19 == i % 19 else f"{folder}/{i % 19:03}"]


def test_what_nobody_has_open_makes_room(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    one = serve(config)
    client, told = ring(one), ring(one)
    kept, passed_on = open_list(client, folder, 1), open_list(client, folder, 2)
    assert told.open_dataset(dataset=passed_on)[0] == passed_on
    client.close_dataset(passed_on)
    closed = 0
    for i in range(3, 150):
        number = open_list(client, folder, i)
        assert sorted(name for name, _ in client.index(number)) == sorted(pair(folder, i))
        client.close_dataset(number)
        closed = closed or number
    with pytest.raises(ValueError, match="was closed, and its number was given to another"):
        told.open_dataset(dataset=closed)
    for who, number, i in ((client, kept, 1), (told, passed_on, 2)):
        assert [name for name, _ in who.index(number)] == sorted(pair(folder, i))
    assert len(numbers(one)) == 64 and 0 in numbers(one), "that of the configuration goes last"
    held = [open_list(client, folder, i) for i in range(150, 212)]
    assert {number % 64 for number in [*held, kept, passed_on]} == set(range(64))
    with pytest.raises(Error, match=r"64 data sets are open, which is all .*: drop some"):
        open_list(client, folder, 300)
    told.close_dataset(passed_on)
    assert open_list(client, folder, 300) % 64 == passed_on


def test_one_that_is_still_read_keeps_no_room_from_others(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    """Closed by the last that had it open, it ends only with its lane."""
    client = ring(serve(config))
    number = listed(client, f"file://{folder}/", 1)
    wait_for(client.ready, "no arenas")
    lane, _ = client.open_lane(number, client.index(number), 4, 4)
    client.close_dataset(number)
    for i in range(70):
        client.close_dataset(open_list(client, folder, i))
    lane.close()


def test_lanes_go_on_after_the_close(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    one = serve(config)
    client = ring(one)
    uri = f"file://{folder}/"
    number = listed(client, uri, 1)
    wait_for(client.ready, "no arenas")
    lane, _ = client.open_lane(number, client.index(number), 4, 4)
    client.close_dataset(number)
    assert listed(client, uri, 2) != number
    lane.feed(7, 0)
    assert bytes(lane.next()) == bytes([7]) * 700
    assert number in numbers(one)
    lane.close()
    wait_for(lambda: number not in numbers(one), "it outlived its lane")


def test_the_death_of_the_last_one_who_has_it_open(serve: StartServe, config: Path, folder: Path) -> None:
    one = serve(config)
    one.wait_ready()
    script = f"""
import time
from millrace._ring import Client
client = Client({str(one.socket)!r}, "job", 100_000)
number = client.open_dataset(uris=("file://{folder}/",), nth=3)[0]
while not client.dataset_listed(number)[0]:
    time.sleep(0.01)
client.open_dataset(uris=("file://{folder}/",), nth=4)  # and ends in the middle of that
print("open", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        assert len(numbers(one)) > 1
        process.kill()
    wait_for(lambda: numbers(one) == [0], "they outlived their client")
    assert "has failed" not in one.log.read_text(), "nobody is there to whom it would be an error"


def test_another_listing_that_it_was_like_ends_with_it(
    serve: StartServe, config: Path, folder: Path, ring: Any
) -> None:
    one = serve(config)
    one.wait_ready()
    client = ring(one)
    number = listed(client, f"file://{folder}/", 1)
    other = client.open_listing(number, "0" * 64)[0]
    with pytest.raises(ChangedError):
        wait_for(lambda: client.dataset_listed(other)[0], "found?")
    client.close_dataset(number)
    wait_for(lambda: numbers(one) == [0], "it never ended")


@pytest.mark.parametrize("kill", [False, True])
def test_a_compose_that_nobody_waits_for_any_more(
    serve: StartServe, config: Path, devstore: StartDevstore, tmp_path: Path, ring: Any, kill: bool
) -> None:
    """The fetch worker keeps the data set until the composed object, which must be removed, has come; or dies."""
    bucket = tmp_path / "store" / "bucket"
    bucket.mkdir(parents=True)
    for number in range(32):
        (bucket / f"{number:03}").write_bytes(bytes([number]) * 100)
    store = devstore("--root", tmp_path / "store", "--latency-ms", "compose:1500")
    config.write_text('[memory]\narena_bytes = "8MiB"\n[fetch]\nworkers = 1\ncompose = "always"\n')
    one = serve(config, STORAGE_EMULATOR_HOST=store.url)
    client = ring(one)
    number = listed(client, "gs://bucket/", 1)
    wait_for(client.ready, "no arenas")
    lane, _ = client.open_lane(number, client.index(number), 32, 32)
    lane.feed_all(range(32))  # one by one, the worker may keep up, and fewer than four are never composed

    def composes() -> int:
        return requests(store.url).get("compose", 0)

    def has_begun() -> bool:  # neither goes back: nobody takes what has come
        lanes = one.stat()["lanes"]
        return composes() > 0 if kill else any(each["filling"] + each["ready"] for each in lanes)

    wait_for(has_begun, "nothing was composed")
    lane.close()
    client.close_dataset(number)
    (worker,) = workers(one.process.pid, "fetch")
    if kill:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: numbers(one) == [], "it never ended")
    assert kill or workers(one.process.pid, "fetch") == [worker], "the worker has died"
    again = listed(client, "gs://bucket/", 2)
    lane, _ = client.open_lane(again, client.index(again), 4, 4)
    lane.feed(9, 0)
    assert bytes(lane.next()) == bytes([9]) * 100
    lane.close()
    if not kill:
        assert composes() > 0
        wait_for(lambda: temporary(store.url, "bucket") == [], "a composed object was left")
