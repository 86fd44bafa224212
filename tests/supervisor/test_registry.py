"""Data sets and lanes as the supervisor keeps them: sharing, limits, quota, and what happens when an owner dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.serve import DEADLINE_S, StartServe, Supervisor, wait_for, workers


def names_fd(lines: list[str]) -> int:
    fd = os.memfd_create("names", os.MFD_CLOEXEC)
    os.write(fd, "".join(line + "\n" for line in lines).encode())
    return fd


def ready(client: Any, **source: Any) -> int:
    number = int(client.open_dataset(**source)[0])
    wait_for(lambda: client.dataset_listed(number)[0], "never listed")
    wait_for(client.ready, "no arenas")
    return number


# ---- data sets ----


def test_the_same_places_are_one_data_set(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    (folder / "sub").mkdir()
    config.write_text(
        config.read_text() + f'[dataset.again]\nuris = ["file://{folder}/"]\ntail = "pad"\non_error = "skip"\n'
    )
    client = ring(serve(config))
    train = client.open_dataset(name="train")
    assert train[1:] == (0, 0)
    assert client.open_dataset(name="again") == (train[0], 2, 1), "one listing, and each name's own choices"
    assert client.open_dataset(uris=(f"file://{folder}/",)) == train
    assert client.open_dataset(uris=(f"{folder}/",)) == train, "another spelling"
    assert client.open_dataset(uris=(f"{folder}/", f"{folder}/sub/")) == train, "a place under another"
    assert client.open_dataset(uris=(f"{folder}/sub/",))[0] != train[0]


def test_explicit_lists(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    client = ring(serve(config))
    lines = [f"file://{folder}/{i:03}" for i in (7, 3, 11)]
    first = ready(client, names_fd=names_fd(lines))
    assert client.open_dataset(names_fd=names_fd(lines))[0] == first, "the same list is one data set"
    assert client.open_dataset(names_fd=names_fd(lines[:2]))[0] != first
    index = client.index(first)
    assert [index[i] for i in range(len(index))] == [(f"{folder}/{i:03}", 100 * i) for i in (3, 7, 11)]


def test_missing_places_fail_and_can_be_tried_again(serve: StartServe, config: Path, tmp_path: Path, ring: Any) -> None:
    client = ring(serve(config))
    place = tmp_path / "later"
    first = client.open_dataset(uris=(f"{place}/",))[0]
    with pytest.raises(OSError, match="later"):
        wait_for(lambda: client.dataset_listed(first)[0], "it cannot be listed")
    place.mkdir()
    (place / "object").write_bytes(b"x")
    assert len(client.index(ready(client, uris=(f"{place}/",)))) == 1


def test_many_failures_do_not_use_up_the_numbers(serve: StartServe, config: Path, tmp_path: Path, ring: Any) -> None:
    client = ring(serve(config))
    for i in range(100):
        place = (f"{tmp_path}/no{i}/",)
        number = wait_for(lambda: client.open_dataset(uris=place), "no room")[0]  # noqa: B023
        with pytest.raises(OSError, match="no"):
            wait_for(lambda: client.dataset_listed(number)[0], "listed?")  # noqa: B023


def test_a_number_that_is_used_again_is_an_error_to_those_who_had_it(
    serve: StartServe, config: Path, tmp_path: Path, ring: Any
) -> None:
    """And those that nobody has any more are used first."""
    one = serve(config)
    old, gone, new = ring(one), ring(one), ring(one)

    def fail(client: Any, name: str) -> int:
        number = int(wait_for(lambda: client.open_dataset(uris=(f"{tmp_path}/{name}/",)), "no room")[0])
        wait_for(lambda: one.stat()["datasets"][number % 64]["state"] == "failed", "listed?")
        return number

    first = fail(old, "first")
    left = {fail(gone, f"gone{i}") for i in range(63 - first)}  # all numbers have been given
    gone.close()
    reused = [fail(new, f"new{i}") for i in range(len(left))]
    assert {number % 64 for number in reused} == left
    assert fail(new, "one more") % 64 == 0, "that of the configuration, which nobody has open either"
    with pytest.raises(OSError, match="first"):
        old.index(first)
    assert fail(new, "and another") % 64 == first
    for ask in (old.index, old.dataset_listed):
        with pytest.raises(ValueError, match="was given to another"):
            ask(first)


def test_an_empty_place_is_a_data_set(serve: StartServe, config: Path, tmp_path: Path, ring: Any) -> None:
    (tmp_path / "empty").mkdir()
    client = ring(serve(config))
    assert len(client.index(ready(client, uris=(f"{tmp_path}/empty/",)))) == 0


# ---- lanes ----


def test_lanes_share_the_quota(serve: StartServe, config: Path, ring: Any) -> None:
    one = serve(config)
    client = ring(one)
    train = ready(client, name="train")
    index = client.index(train)
    memory = one.stat()["memory"]
    total = memory["arenas"] * (memory["arena_bytes"] - memory["reserve_bytes"])
    lanes = []
    for count in range(1, 5):
        lanes.append(client.open_lane(train, index, 8, 0)[0])
        assert [lane["quota_bytes"] for lane in one.stat()["lanes"]] == [total // count] * count
    lanes.pop().close()
    wait_for(lambda: [lane["quota_bytes"] for lane in one.stat()["lanes"]] == [total // 3] * 3, "no quota back")
    for lane in lanes:
        lane.close()
    wait_for(lambda: one.stat()["lanes"] == [], "lanes stay")


def test_windows(serve: StartServe, config: Path, ring: Any) -> None:
    config.write_text(config.read_text() + "[lanes]\nwindow = 100\n")
    client = ring(serve(config))
    train = ready(client, name="train")
    index = client.index(train)
    for window, least, given in ((0, 0, 128), (0, 300, 512), (5, 0, 8), (1, 0, 4), (1, 20, 32), (65536, 0, 65536)):
        lane, _ = client.open_lane(train, index, window, least)
        assert lane.window == given
        lane.close()


def test_too_many_lanes(serve: StartServe, config: Path, ring: Any) -> None:
    config.write_text(config.read_text() + "[lanes]\nmax = 2\n")
    client = ring(serve(config))
    train = ready(client, name="train")
    index = client.index(train)
    lanes = [client.open_lane(train, index, 4, 0)[0] for _ in range(2)]
    with pytest.raises(OSError, match=r"lanes\.max \(2\)"):
        client.open_lane(train, index, 4, 0)
    lanes[0].close()
    lanes.append(client.open_lane(train, index, 4, 0)[0])
    for lane in lanes:
        lane.close()


def test_a_hundred_lanes_one_after_the_other_leave_nothing(serve: StartServe, config: Path, ring: Any) -> None:
    one = serve(config)
    one.wait_settled()
    client = ring(one)
    train = ready(client, name="train")
    index = client.index(train)

    def count(pid: int) -> tuple[int, int]:
        folder = Path(f"/proc/{pid}")
        return len(list((folder / "fd").iterdir())), len((folder / "maps").read_text().splitlines())

    def counts() -> list[tuple[int, int]]:
        return [count(pid) for pid in (one.process.pid, *workers(one.process.pid, "fetch"))]

    def cycle() -> None:
        client.open_lane(train, index, 16, 0)[0].close()

    cycle()
    wait_for(lambda: one.stat()["lanes"] == [], "the lane stays")
    before = counts()
    for _ in range(100):
        cycle()
    wait_for(lambda: one.stat()["lanes"] == [], "lanes stay")
    wait_for(lambda: all(a[0] <= b[0] and a[1] <= b[1] + 2 for a, b in zip(counts(), before)), f"{before} {counts()}")


def test_loops_are_kept_for_the_next_lane(serve: StartServe, config: Path, ring: Any) -> None:
    one = serve(config)
    main, worker = ring(one), ring(one)
    train = ready(worker, name="train")
    index = worker.index(train)
    loop = (1, 2**60, 2**64 - 1, 8, 16, 3, 2**48, 5)
    main.put_loop("key", (0, 0, 0, 1, 1, 0, 0, 0))
    main.put_loop("key", loop)
    lane, found = worker.open_lane(train, index, 4, 0, "key")
    assert found == loop
    lane.close()
    for i in range(300):  # more than are kept: the one that was not used for longest goes
        main.put_loop(f"other{i}", loop)
    lane, found = worker.open_lane(train, index, 4, 0, "key")
    assert found is None
    lane.close()
    lane, found = worker.open_lane(train, index, 4, 0, "other299")
    assert found == loop
    lane.close()


READER = """
    import signal, sys, millrace
    data = millrace.IterableDataset("train", window=8)
    held = []
    for batch in data.batches(1):
        held += batch
        print("holds", len(held), flush=True)
        if len(held) == 3:
            signal.pause()
"""


def start_reader(one: Supervisor) -> subprocess.Popen[str]:
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READER)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLRACE_SOCKET": str(one.socket)},
    )
    assert reader.stdout is not None
    for count in (1, 2, 3):
        assert reader.stdout.readline() == f"holds {count}\n"
    return reader


def end_reader(reader: subprocess.Popen[str]) -> None:
    reader.kill()
    reader.wait()
    assert reader.stdout is not None
    reader.stdout.close()


def test_a_killed_reader(serve: StartServe, config: Path) -> None:
    """Its lane is closed, what it held is free again, and its number is dropped by every worker."""
    one = serve(config)
    reader = start_reader(one)
    (lane,) = one.stat()["lanes"]
    assert lane["pid"] == reader.pid
    assert lane["held"] >= 1
    end_reader(reader)
    wait_for(lambda: one.stat()["lanes"] == [], "the lane stays")
    assert one.stat()["limit"]["stage"] == "idle"


def test_a_program_that_starts_itself_anew(serve: StartServe, config: Path) -> None:
    """By exec, in the same process: what the program before it had is free. Addresses must be random for that."""
    config.write_text(config.read_text() + "[checkpoint]\narena_bytes = '20MiB'\n")
    one = serve(config)
    script = """
    import os, sys, millrace.checkpoint
    items = iter(millrace.IterableDataset("train", window=8))
    lease = next(items)
    writer = millrace.checkpoint.writer(f"{sys.argv[1]}/saved-{len(sys.argv)}")
    writer.write(bytes(15 << 20))
    if len(sys.argv) < 4:
        os.execv(sys.executable, [sys.executable, "-c", os.environ["SCRIPT"], *sys.argv[1:], "again"])
    writer.close()
    print("done", flush=True)
    sys.stdin.read()
    """
    script = textwrap.dedent(script)
    reader = subprocess.Popen(
        [sys.executable, "-c", script, config.parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLRACE_SOCKET": str(one.socket), "SCRIPT": script},
    )
    assert reader.stdout is not None and reader.stdout.readline() == "done\n"
    wait_for(lambda: len(one.stat()["lanes"]) == 1, "lanes of earlier programs stay")
    assert [path.name for path in config.parent.glob("saved-*")] == ["saved-4"]
    reader.communicate()


def test_another_runtime_in_the_same_process(serve: StartServe, config: Path) -> None:
    """Go's, in a shared library, clears the random bytes that the kernel has put there: it is the same program."""
    one = serve(config)
    script = """
    import ctypes, sys
    from millrace._ring import Client
    client = Client(sys.argv[1], "job", 60000)
    number = client.open_dataset(name="train")[0]
    while not client.dataset_listed(number)[0] or not client.ready():
        pass
    lane, _ = client.open_lane(number, client.index(number), 8, 0)
    lane.feed(3, 0)
    lease = lane.next()
    libc = ctypes.CDLL(None)
    libc.getauxval.restype = ctypes.c_void_p
    ctypes.memset(libc.getauxval(25), 0, 16)  # AT_RANDOM
    other = Client(sys.argv[1], "job", 60000)
    lane.feed(4, 0)
    assert bytes(lane.next()) == bytes([4]) * 400
    print("done", flush=True)
    sys.stdin.read()
    assert bytes(lease) == bytes([3]) * 300
    """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), one.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout is not None and reader.stdin is not None
        assert reader.stdout.readline() == "done\n"
        assert [lane["state"] for lane in one.stat()["lanes"]] == ["open"]
        reader.stdin.close()
        assert reader.wait(DEADLINE_S) == 0


def test_a_killed_reader_while_a_worker_is_stopped(serve: StartServe, config: Path) -> None:
    """The lane keeps its number until that worker has answered; the rest of it is free at once."""
    one = serve(config)
    reader = start_reader(one)
    stopped = workers(one.process.pid, "fetch")[0]
    os.kill(stopped, signal.SIGSTOP)
    end_reader(reader)
    wait_for(lambda: [lane["state"] for lane in one.stat()["lanes"]] == ["dropping"], "not dropping")
    os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: not [lane for lane in one.stat()["lanes"] if lane["state"] == "dropping"], "still dropping")


def test_the_supervisor_ends_before_its_readers(serve: StartServe, config: Path) -> None:
    one = serve(config)
    script = """
        import sys, millrace
        data = millrace.IterableDataset("train", window=8)
        batches = iter(data.batches(1))
        print(len(next(batches)), flush=True)
        sys.stdin.readline()
        try:
            while True:
                next(batches)
        except millrace.SupervisorGone as error:
            print("gone:", error)
        except StopIteration:
            print("all")
    """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLRACE_SOCKET": str(one.socket)},
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "1\n"
    one.process.kill()
    one.process.wait()
    out, _ = reader.communicate("go on\n", timeout=DEADLINE_S)
    assert out.startswith("gone: ")
    assert str(one.process.pid) in out
    assert reader.returncode == 0
