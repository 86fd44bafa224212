"""Worker processes that misbehave: each slot ends, restarts or gives up as the exit status says, and nothing hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.conftest import BIN, StartDevstore
from tests.groups import memory_group
from tests.serve import DEADLINE_S, StartServe, Supervisor, alive, strike, wait_for, workers

MakeProgram = Callable[[str], Path]


@pytest.fixture
def with_worker(millrace_bin: Path, tmp_path: Path) -> MakeProgram:
    """A function (script) -> millrace with that script as its millrace-worker."""

    def make(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        shutil.copy(millrace_bin, folder / "millrace")
        worker = folder / "millrace-worker"
        worker.write_text(textwrap.dedent(script))
        worker.chmod(0o755)
        return folder / "millrace"

    return make


def failure(one: Supervisor) -> str:
    def look() -> str:
        dataset: dict[str, Any] = one.stat()["datasets"][0]
        assert dataset["state"] != "ready"
        return str(dataset.get("error", ""))

    return str(wait_for(look, one.log.read_text()))


def test_status_2_fails_the_data_set(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    one = serve(config, program=with_worker("#!/bin/sh\nexit 2\n"))
    assert "cannot work" in failure(one)
    assert one.stat()["state"] == "running"
    assert one.log.read_text().count("status 2") == 1
    assert one.stop() == 0


@pytest.mark.parametrize("end", ["exit 1", "kill -SEGV $$"])
def test_starts_without_any_work_end_in_a_failure(
    serve: StartServe, config: Path, with_worker: MakeProgram, end: str
) -> None:
    one = serve(config, program=with_worker(f"#!/bin/sh\n{end}\n"))
    assert "was started 8 times" in failure(one)
    assert one.stop() == 0


def test_worker_is_missing(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    program = with_worker("")
    program.with_name("millrace-worker").unlink()
    one = serve(config, program=program)
    assert "millrace-worker" in failure(one)
    assert "No such file" in failure(one)


TALKER = f"""\
    #!{sys.executable}
    import os, socket, sys, time
    link = socket.socket(fileno=3)
    setup, fds, _, _ = socket.recv_fds(link, 65536, 32)
    assert sys.argv[1:] == ["list", "--slot", "0"] and b"list" in setup and len(fds) == 4
    assert os.read(0, 1) == b"" and os.getpgrp() == os.getpid()
"""


def test_garbage_from_a_worker(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    """It is killed, which never counts as its own failure: the next one gets another chance."""
    one = serve(config, program=with_worker(TALKER + '    link.send(b"garbage")\n    time.sleep(600)\n'))
    wait_for(lambda: one.log.read_text().count("breaks the protocol") >= 3, one.log.read_text())
    assert one.stat()["datasets"][0]["state"] in ("new", "listing")
    assert one.stop() == 0


def test_failed_message_is_the_text_of_the_data_set(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    say = r"""
    # [1, FAILED, {"code": NOT_FOUND, "text": "no bucket here"}]
    link.send(b"\x93\x01\x1e\x82\xa4code\x03\xa4text\xae" + b"no bucket here")
    sys.exit(2)
    """
    one = serve(config, program=with_worker(TALKER + say))
    assert failure(one) == "no bucket here"


def test_workers_see_the_end_of_the_life_pipe(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    """A worker that ignores PDEATHSIG and its socket still has descriptor 4."""
    wait = "    print('up', os.getpid(), file=sys.stderr, flush=True)\n    assert os.read(4, 1) == b''\n"
    one = serve(config, program=with_worker(TALKER + wait))
    text = wait_for(lambda: "up " in one.log.read_text() and one.log.read_text(), "no worker")
    pid = int(text.split("up ")[1].split()[0])
    one.process.kill()
    one.process.wait()
    wait_for(lambda: not alive(pid), "the worker lives on")


LISTENER = f"""\
    #!{sys.executable}
    import os, socket, sys, time
    if sys.argv[1] != "fetch" or not os.path.exists("{{there}}"):
        os.execv("{{real}}", ["millrace-worker", *sys.argv[1:]])
    link = socket.socket(fileno=3)
    link.setblocking(True)
    time.sleep(1)  # the socket is full
    with open("{{there}}", "a") as out:
        while True:
            message, fds, _, _ = socket.recv_fds(link, 65536, 32)
            print(message[2], file=out, flush=True)
            for fd in fds:
                os.close(fd)
"""
ARENA, LANE = 14, 16


def test_a_new_worker_has_all_lanes_before_it_begins(
    serve: StartServe, config: Path, with_worker: MakeProgram, millrace_bin: Path, tmp_path: Path, ring: Any
) -> None:
    """More of them than its socket takes at once."""
    there, count = tmp_path / "there", 400
    config.write_text(config.read_text() + f"[lanes]\nmax = {count}\n[fetch]\nworkers = 1\n")
    program = with_worker(LISTENER.format(there=there, real=millrace_bin.with_name("millrace-worker")))
    one = serve(config, program=program)
    one.wait_ready()
    client = ring(one)
    number = client.open_dataset(name="train")[0]
    wait_for(client.ready, "no arenas")
    lanes = [client.open_lane(number, client.index(number), 1, 0)[0] for _ in range(count)]
    there.touch()
    strike(*workers(one.process.pid, "fetch"))

    def kinds() -> list[int]:
        return [int(line) for line in there.read_text().split()]

    wait_for(lambda: kinds().count(LANE) == count and ARENA in kinds(), "not all were sent")
    assert kinds().index(ARENA) == len(kinds()) - 1
    for lane in lanes:
        lane.close()
    assert one.stop() == 0


@pytest.mark.random
def test_fetch_workers_restart(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    for _ in range(5):
        before = wait_for(lambda: (w := workers(one.process.pid, "fetch")) and len(w) == 2 and w, "no workers")
        for pid in before:
            strike(pid)
        wait_for(lambda: not any(alive(pid) for pid in before), "still alive")  # noqa: B023
    wait_for(
        lambda: [w["state"] for w in one.stat()["workers"] if w["role"] == "fetch"] == ["running"] * 2,
        "not running again",
    )
    assert [w["starts"] for w in one.stat()["workers"] if w["role"] == "fetch"] == [6, 6]
    assert one.stat()["datasets"][0]["state"] == "ready"
    assert one.stop() == 0


def damage_lanes() -> int:
    """Random bytes over the first line of each lane that this process has mapped: how many those are."""
    found = 0
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/memfd:millrace" in line and " rw-s " in line:
                at = int(line.partition("-")[0], 16)
                memory.seek(at)
                if memory.read(8) == (0x6D696C6C6C616E65).to_bytes(8, "little"):
                    memory.seek(at)
                    memory.write(os.urandom(64))
                    found += 1
    return found


def test_a_reader_that_damages_its_lane(serve: StartServe, config: Path, folder: Path, ring: Any) -> None:
    """By a wild store: fetch workers that start later read for the others all the same."""
    one = serve(config)
    wild, other = ring(one), ring(one)
    number = other.open_dataset(name="train")[0]
    for client in (wild, other):
        client.open_dataset(name="train")
        wait_for(lambda: client.dataset_listed(number)[0], "not listed")  # noqa: B023
        wait_for(client.ready, "no arenas")
    spoilt, _ = wild.open_lane(number, wild.index(number), 4, 4)
    assert damage_lanes() == 1
    lane, _ = other.open_lane(number, other.index(number), 4, 4)
    for pid in wait_for(lambda: (w := one.workers("fetch")) and len(w) == 2 and w, "no workers"):
        strike(pid)
    lane.feed(3, 0)
    assert bytes(lane.next()) == next(folder.glob("003")).read_bytes()
    spoilt.close()
    lane.close()


@pytest.mark.random
def test_list_workers_killed_while_they_list(serve: StartServe, config: Path, folder: Path) -> None:
    for i in range(20000):
        (folder / f"more{i:05}").touch()
    one = serve(config)
    killed = 0
    while one.stat()["datasets"][0]["state"] != "ready":
        for pid in workers(one.process.pid, "list"):
            if killed < 5:
                killed += strike(pid)
        wait_for(lambda: one.stat()["datasets"][0]["state"] != "failed", one.log.read_text())
    assert one.stat()["datasets"][0]["objects"] == 20020
    wait_for(lambda: not workers(one.process.pid, "list"), "list workers stay")


def test_list_workers_that_never_finish_a_range_end_in_a_failure(
    devstore: StartDevstore, serve: StartServe, config: Path
) -> None:
    """Pages of a range that is lost are no progress: the starts become rarer, and then it is a failure."""
    server = devstore("--synthetic", "endless:50000000:10", "--latency-ms", "20")
    config.write_text('[dataset.train]\nuri = "gs://endless/"\n[list]\nworkers = 1\n')
    one = serve(config, STORAGE_EMULATOR_HOST=server.url)
    seen: set[int] = set()
    while one.stat()["datasets"][0]["state"] != "failed":
        status = one.stat()
        pages = [w["counters"]["list_pages"] for w in status["workers"] if w["role"] == "list"]
        for pid in workers(one.process.pid, "list"):
            if pid not in seen and pages and pages[0] > len(seen) and strike(pid, signal.SIGSEGV):
                seen.add(pid)
        time.sleep(0.02)
    assert len(seen) == 8
    assert "was started 8 times" in one.stat()["datasets"][0]["error"]
    assert one.stop() == 0


READ_ON = """
import millrace
ds = millrace.IterableDataset("train")
while True:
    for batch in ds.batches(1):
        pass
"""


def test_a_worker_that_dies_again_and_again_waits(serve: StartServe, config: Path) -> None:
    """Although it publishes something each time: a data set that kills its workers shall not restart them for ever at
    full speed."""
    config.write_text(config.read_text() + "[fetch]\nworkers = 1\n")
    one = serve(config)
    one.wait_ready()
    reader = subprocess.Popen([sys.executable, "-c", READ_ON], env=one.environment)
    struck_at = 0

    def waits() -> bool:
        nonlocal struck_at
        (worker,) = (w for w in one.stat()["workers"] if w["role"] == "fetch")
        published = worker["counters"].get("fetched_objects", 0)
        if worker["state"] == "running" and published > struck_at and strike(worker["pid"]):
            struck_at = published
        return bool(worker["state"] == "waiting")

    try:
        wait_for(waits, "it is always started at once")
    finally:
        reader.kill()
        reader.wait()
    assert one.stop() == 0


# ---- memory ----


def test_arena_does_not_fit_the_memory(serve: StartServe, config: Path) -> None:
    config.write_text(config.read_text().replace('"8MiB"', '"8TiB"'))
    one = serve(config)
    text = failure(one)
    assert "memory.arena_bytes" in text
    assert "are left of the memory" in text


def test_object_larger_than_half_the_arena(serve: StartServe, config: Path, folder: Path) -> None:
    os.truncate(folder / "019", 5 << 20)
    one = serve(config)
    assert 'set memory.arena_bytes = "15MiB"' in failure(one)


def test_fewer_workers_for_large_objects(serve: StartServe, config: Path, folder: Path) -> None:
    os.truncate(folder / "019", 2 << 20)
    one = serve(config)
    one.wait_ready()
    memory = one.stat()["memory"]
    assert (memory["arena_bytes"], memory["arenas"], memory["reserve_bytes"]) == (8 << 20, 1, 2 << 20)
    assert not memory["grows"]
    assert "1 fetch workers instead of 2" in one.log.read_text()


def shm_of(size: str) -> list[str]:
    """What runs a command with a /dev/shm of its own."""
    return ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"', "sh"]


@pytest.mark.parametrize("backing", ["auto", "memfd", "posix"])
def test_little_room_in_dev_shm(millrace_bin: Path, config: Path, runtime: Path, backing: str) -> None:
    config.write_text(config.read_text() + f'backing = "{backing}"\n')
    script = f"""
        until {millrace_bin} stat --json | grep -E '"state": "(ready|failed)"'; do sleep 0.05; done
    """
    command = [*shm_of("1m"), str(millrace_bin), "run", "-c", str(config), "--", "sh", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    if backing == "posix":
        assert "failed" in result.stdout
        assert "memory.arena_bytes" in result.stderr
    else:
        assert "ready" in result.stdout, result.stderr


# ---- reload ----


def test_reload(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    before = workers(one.process.pid, "fetch")
    config.write_text(config.read_text() + "[fetch]\nconnections = 3\nworkers = 1\n[metrics]\ninterval_s = 1\n")
    one.process.send_signal(signal.SIGHUP)
    wait_for(
        lambda: (
            "applied: fetch.connections, metrics.interval_s; needs a new start: fetch.workers" in one.log.read_text()
        ),
        one.log.read_text(),
    )
    wait_for(lambda: len(after := workers(one.process.pid, "fetch")) == 2 and not set(after) & set(before), "same ones")
    wait_for(lambda: "limited by nothing: no reader is open" in one.log.read_text(), "no metrics line")
    config.write_text("[fetch]\nconnection = 3\n")
    one.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "was not reread" in one.log.read_text(), "no complaint")
    assert one.stat()["state"] == "running"
    assert one.stop() == 0


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 96 MiB: named before `serve`, whose supervisors end first."""
    with memory_group(96 << 20) as made:
        if not made:
            pytest.skip("no memory cgroup can be made here")
        yield made


def test_a_listing_for_which_there_is_no_memory(
    group: Path, serve: StartServe, config: Path, with_worker: MakeProgram
) -> None:
    """The kernel kills each list worker: the data set fails. After other kills there is always another start."""
    script = f"""\
        #!/bin/sh
        [ "$1" = list ] || exec {BIN}/millrace-worker "$@"
        grep -q {group.name} /proc/self/cgroup || kill -KILL $$
        exec dd if=/dev/zero of=/dev/null bs=512M count=1
    """
    one = serve(config, program=with_worker(script))
    (group / "cgroup.procs").write_text(str(one.process.pid))
    assert "was killed again and again because the memory limit was reached" in failure(one)
    assert one.stat()["state"] == "running"
    assert one.stop() == 0
