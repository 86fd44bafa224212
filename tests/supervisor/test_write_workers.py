"""The supervisor and checkpoints: write workers, checkpoint lanes, what happens at deaths and at the end of a run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, Server, StartDevstore
from tests.serve import DEADLINE_S, StartServe, Supervisor, alive, wait_for, workers
from tests.supervisor.saver import PROGRAM, Saver, make_bytes

from .test_workers import MakeProgram, with_worker

__all__ = ["with_worker"]  # a fixture

MIB = 1 << 20
PART = 5 * MIB


StartSaver = Callable[..., Saver]


@pytest.fixture
def saver() -> Iterator[StartSaver]:
    savers: list[Saver] = []

    def start(socket: Path | None = None) -> Saver:
        savers.append(Saver(socket))
        return savers[-1]

    yield start
    for one in savers:
        if one.process.poll() is None:
            one.process.kill()
        one.end()


class Store:
    """A development store with one bucket."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.env = {"STORAGE_EMULATOR_HOST": server.url}

    def read(self, name: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"{self.server.url}/storage/v1/b/bucket/o/{name}?alt=media") as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            assert error.code == 404
            return None

    def names(self) -> list[str]:
        with urllib.request.urlopen(f"{self.server.url}/storage/v1/b/bucket/o") as answer:
            return [item["name"] for item in json.load(answer).get("items", [])]


StartStore = Callable[..., Store]


@pytest.fixture
def store(devstore: StartDevstore, tmp_path: Path) -> StartStore:
    def start(*flags: str) -> Store:
        (tmp_path / "store" / "bucket").mkdir(parents=True, exist_ok=True)
        return Store(devstore("--root", tmp_path / "store", "--memory", *flags))

    return start


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two writers with two parts of 5 MiB each."""
    path = tmp_path / "millrace.toml"
    path.write_text(
        '[checkpoint]\narena_bytes = "20MiB"\npart_bytes = "5MiB"\nworkers = 2\ndrain_s = 60\n'
        '[gcs]\nauth = "anonymous"\n'
        "[retry]\ndeadline_ms = 20000\n"
    )
    return path


def checkpoint(one: Supervisor) -> dict[str, Any]:
    return dict(one.stat()["checkpoint"])


def wait_free(one: Supervisor) -> None:
    wait_for(lambda: checkpoint(one)["open"] == 0, "a checkpoint lane was never freed")
    state = checkpoint(one)
    assert state["arena_free_bytes"] == state["arena_bytes"] == 20 * MIB


def wait_running(one: Supervisor) -> None:
    """Both write workers: the second one is started once the first has the memory."""

    def running() -> bool:
        return [w["state"] for w in one.stat()["workers"] if w["role"] == "write"] == ["running"] * 2

    wait_for(running, "two write workers")


def stop_at_once(one: Supervisor) -> None:
    """Two signals: what was promised is given up."""
    one.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "saving 1 checkpoint" in log_of(one), "it says nothing")
    assert one.stop(signal.SIGTERM) == 1


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # a list of processes is old when it is made
        os.kill(pid, signal.SIGKILL)


def log_of(one: Supervisor) -> str:
    return one.log.read_text()


# ---- a save ----


@pytest.mark.parametrize("size", [0, 1000, PART, 12 * MIB + 1, 35 * MIB])
def test_a_save(serve: StartServe, config: Path, store: StartStore, saver: StartSaver, size: int) -> None:
    """Larger than the writer's memory too; then the memory is free again, and the processes are where they belong."""
    bucket = store()
    one = serve(config, **bucket.env)
    assert workers(one.process.pid, "write") == []  # they start with the first writer
    trainer = saver(one.socket)
    assert trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)[2:] == [str(PART), "2"]
    assert trainer.ok("write", 0, size) == [str(size)]
    assert trainer.ok("seal", 0) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done", log_of(one)
    trainer.ok("close", 0)
    assert bucket.read("ckpt") == make_bytes(size)
    assert bucket.names() == ["ckpt"]
    wait_free(one)
    wait_for(lambda: len(workers(one.process.pid, "write")) == 2, "the second write worker")
    assert all(os.getsid(pid) == pid for pid in workers(one.process.pid, "write"))
    assert one.stop() == 0
    assert "saved and verified" in log_of(one)


def test_a_save_to_a_folder(serve: StartServe, config: Path, saver: StartSaver, tmp_path: Path) -> None:
    one = serve(config)
    trainer = saver(one.socket)
    assert trainer.save(0, f"file://{tmp_path}/ckpt", 11 * MIB) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done", log_of(one)
    trainer.ok("close", 0)
    assert (tmp_path / "ckpt").read_bytes() == make_bytes(11 * MIB)
    wait_free(one)
    assert one.stop() == 0


def test_several_at_once(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """The second writer goes to the other worker; a third one waits for memory, and says who has it."""
    bucket = store()
    one = serve(config, **bucket.env)
    trainer, other = saver(one.socket), saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/a", 0, 1)
    wait_running(one)
    trainer.ok("open", 1, "gs://bucket/b", 0, 1)
    state = checkpoint(one)
    assert sorted(w["worker"] for w in state["writers"]) == [0, 1]
    assert state["arena_free_bytes"] == 0
    other.ok("patience", 0)
    text = other.error("open", 0, "gs://bucket/c", 0, 1)
    assert "checkpoint.arena_bytes (20.0 MiB)" in text
    assert f"gs://bucket/a (10.0 MiB, process {trainer.process.pid})" in text
    assert "gs://bucket/b" in text
    other.ok("patience", 600_000)
    other.say("open", 0, "gs://bucket/c", 0, 1)
    wait_for(lambda: checkpoint(one)["waiting"] == 1, "nobody waits")
    for number in (0, 1):
        trainer.ok("write", number, 7 * MIB)
        assert trainer.ok("seal", number) == ["sealed"]
        assert trainer.ok("wait", number)[0] == "done"
        trainer.ok("close", number)
    assert other.hear()[0] == "ok"
    other.ok("write", 0, 3)
    other.ok("seal", 0)
    assert other.ok("wait", 0)[0] == "done"
    other.ok("close", 0)
    wait_free(one)
    assert sorted(bucket.names()) == ["a", "b", "c"]
    assert one.stop() == 0


def test_what_stat_shows(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver, millrace_bin: Path
) -> None:
    bucket = store("--upload-mibps", "0.2/0.2")
    config.write_text(config.read_text() + "[metrics]\ninterval_s = 1\n")
    one = serve(config, **bucket.env)
    assert checkpoint(one)["arena_bytes"] == 0
    trainer = saver(one.socket)
    trainer.save(0, "gs://bucket/slow", 10 * MIB)
    state = checkpoint(one)
    assert [(w["state"], w["total_bytes"], w["uri"]) for w in state["writers"]] == [
        ("sealed", 10 * MIB, "gs://bucket/slow")
    ]
    arguments = ["--socket", str(one.socket)]
    text = subprocess.run([millrace_bin, "stat", *arguments], capture_output=True, text=True, check=True).stdout
    assert "10.0 MiB free of 20.0 MiB; 1 open, 0 wait" in text
    assert "of 10.0 MiB  gs://bucket/slow" in text
    text = subprocess.run([millrace_bin, "stat", "--prometheus", *arguments], capture_output=True, text=True).stdout
    assert "millrace_checkpoint_arena_free_bytes 10485760\n" in text
    assert re.search(r'millrace_writer_total_bytes\{writer="\d+",pid="\d+",uri="gs://bucket/slow",', text)
    assert "millrace_write_stored_part_bytes{" in text
    wait_for(lambda: "; 1 checkpoints under way, " in log_of(one), "the line of metrics.interval_s")
    stop_at_once(one)


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("gs://bucket", "names no object"),
        ("gs://bucket/", "names no object"),
        ("gs:///name", "names no bucket"),
        ("http://host/name", "the scheme is not gs, s3 or file"),
        ("file:///tmp/", "names no object"),
        ("gs://bucket/" + "n" * 1025, "at most 1024 bytes"),
        ("gs://bucket/" + "n" * 6000, "longer than any object's name"),
    ],
)
def test_bad_uris(serve: StartServe, config: Path, saver: StartSaver, uri: str, text: str) -> None:
    one = serve(config)
    assert text in saver(one.socket).error("open", 0, uri, 0, 1)
    assert workers(one.process.pid, "write") == []
    assert one.stop() == 0


def test_too_little_memory(serve: StartServe, config: Path, saver: StartSaver) -> None:
    config.write_text('[checkpoint]\narena_bytes = "16TiB"\n')
    one = serve(config)
    text = saver(one.socket).error("open", 0, "gs://bucket/ckpt", 0, 1)
    assert "checkpoint.arena_bytes" in text
    assert one.stop() == 0


def test_out_of_descriptors(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    one = serve(config, **store().env)
    trainer = saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/a", 0, 1)
    wait_running(one)
    before = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    assert "Too many open files" in trainer.error("open", 1, "gs://bucket/b", 0, 1)
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, before)
    trainer.ok("open", 1, "gs://bucket/b", 0, 1)
    for number in (0, 1):
        trainer.ok("write", number, 100)
        trainer.ok("seal", number)
        assert trainer.ok("wait", number)[0] == "done"
        trainer.ok("close", number)
    wait_free(one)
    assert one.stop() == 0


def test_somebody_elses_writer(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    one = serve(config, **store().env)
    trainer, thief = saver(one.socket), saver(one.socket)
    lane = trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)[0]
    assert f"is process {trainer.process.pid}'s" in thief.error("steal", lane)
    assert "no open checkpoint writer 77" in thief.error("steal", 77)
    trainer.ok("write", 0, 100)
    trainer.ok("seal", 0)
    assert trainer.ok("wait", 0)[0] == "done"
    trainer.ok("close", 0)
    assert "no open checkpoint writer" in trainer.error("steal", lane)
    assert one.stop() == 0


def test_a_writer_closed_before_its_end_is_aborted(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver
) -> None:
    bucket = store()
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    for number in range(4):  # more than there is memory for: each is freed
        trainer.ok("open", number, f"gs://bucket/{number}", 0, 1)
        trainer.ok("write", number, 6 * MIB)
        trainer.ok("hold", number)
        trainer.ok("close", number)
    wait_free(one)
    assert bucket.names() == []
    assert one.stop() == 0


def test_a_failure_that_was_seen(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """The trainer knows: the log has it too, the exit status has not."""
    one = serve(config, **store("--deny", "storage.objects.create").env)
    trainer = saver(one.socket)
    assert trainer.save(0, "gs://bucket/ckpt", 1000) == ["sealed"]
    answer = trainer.ok("wait", 0)
    assert answer[0] == "failed" and "403" in " ".join(answer), answer
    trainer.ok("close", 0)
    wait_free(one)
    assert one.stop() == 0
    assert "checkpoint gs://bucket/ckpt: not saved" in log_of(one)


# ---- deaths ----


def test_trainer_dies_while_open(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    bucket = store()
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)
    trainer.ok("write", 0, 17 * MIB)
    trainer.kill()
    wait_free(one)
    assert bucket.names() == []
    assert one.stop() == 0
    assert "given up: process" in log_of(one)


def test_trainer_dies_after_the_promise(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    bucket = store("--upload-mibps", "20/20")
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    assert trainer.save(0, "gs://bucket/ckpt", 10 * MIB) == ["sealed"]
    trainer.kill()
    wait_free(one)
    assert bucket.read("ckpt") == make_bytes(10 * MIB)
    assert one.stop() == 0


@pytest.mark.random
def test_write_worker_dies(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """Again and again, while parts are uploaded: the next one goes on with what the store has."""
    bucket = store("--upload-mibps", "10/10")
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)
    for _ in range(4):
        trainer.ok("write", 0, 4 * MIB)
        for pid in wait_for(lambda: workers(one.process.pid, "write"), "no write worker"):
            kill(pid)
    assert trainer.ok("seal", 0) == ["sealed"]
    for pid in wait_for(lambda: workers(one.process.pid, "write"), "no write worker"):
        kill(pid)
    assert trainer.ok("wait", 0)[0] == "done", log_of(one)
    trainer.ok("close", 0)
    assert bucket.read("ckpt") == make_bytes(16 * MIB)
    wait_free(one)
    assert one.stop() == 0
    assert bucket.names() == ["ckpt"]


@pytest.mark.parametrize("sealed", [True, False])
def test_supervisor_dies(serve: StartServe, config: Path, store: StartStore, saver: StartSaver, sealed: bool) -> None:
    """Write workers finish what was promised, abort the rest, and end."""
    bucket = store("--upload-mibps", "8/8")
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)
    trainer.ok("write", 0, 10 * MIB)
    if sealed:
        assert trainer.ok("seal", 0) == ["sealed"]
    left = workers(one.process.pid, "write")
    assert left
    one.process.kill()
    one.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in left), "write workers never ended")
    assert bucket.read("ckpt") == (make_bytes(10 * MIB) if sealed else None)


def test_a_lane_that_kills_its_worker(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """Nobody waits for ever: after eight deaths without progress the save has failed."""
    one = serve(config, **store("--upload-mibps", "0.1/0.1").env)
    trainer = saver(one.socket)
    assert trainer.save(0, "gs://bucket/ckpt", 10 * MIB) == ["sealed"]
    trainer.say("wait", 0)

    def failed() -> bool:
        for pid in workers(one.process.pid, "write"):
            kill(pid)
        return "not saved" in log_of(one)

    wait_for(failed, "it goes on for ever")
    answer = trainer.hear()
    assert answer[1] == "failed" and "died 8 times in a row" in " ".join(answer), answer
    trainer.ok("close", 0)
    wait_free(one)
    assert one.stop() == 0


def test_write_workers_that_cannot_work(
    serve: StartServe, config: Path, saver: StartSaver, with_worker: MakeProgram
) -> None:
    one = serve(config, program=with_worker("#!/bin/sh\nexit 2\n"))
    assert "cannot work" in saver(one.socket).error("open", 0, "gs://bucket/ckpt", 0, 1)
    assert one.stop() == 0


def test_write_workers_that_cannot_work_any_more(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver, with_worker: MakeProgram, tmp_path: Path
) -> None:
    """They worked, and then they are started in vain: nobody waits for ever."""
    program = with_worker(f'#!/bin/sh\n[ -e {tmp_path}/broken ] && exit 2\nexec {BIN}/millrace-worker "$@"\n')
    one = serve(config, program=program, **store("--upload-mibps", "0.1/0.1").env)
    trainer = saver(one.socket)
    assert trainer.save(0, "gs://bucket/promised", 10 * MIB) == ["sealed"]
    wait_running(one)
    trainer.ok("open", 1, "gs://bucket/open", 0, 1)
    trainer.ok("write", 1, 9 * MIB)
    (tmp_path / "broken").touch()
    for pid in workers(one.process.pid, "write"):
        kill(pid)
    for number in (0, 1):
        answer = " ".join(trainer.ok("wait", number))
        assert answer.startswith("failed") and "cannot work" in answer, answer
    assert trainer.ok("fate", 1) == ["aborted"]
    trainer.ok("close", 0)
    trainer.ok("close", 1)
    wait_free(one)
    assert "cannot work" in trainer.error("open", 2, "gs://bucket/later", 0, 1)
    assert one.stop() == 0


def test_reload_leaves_saves_alone(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    bucket = store()
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    trainer.ok("open", 0, "gs://bucket/ckpt", 0, 1)
    trainer.ok("write", 0, 6 * MIB)
    before = set(wait_for(lambda: workers(one.process.pid, "write"), "no write worker"))
    config.write_text(config.read_text() + "base_ms = 5\n")
    one.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "retry.base_ms" in log_of(one), "not reread")
    trainer.ok("write", 0, 6 * MIB)
    assert trainer.ok("seal", 0) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done"
    trainer.ok("close", 0)
    assert bucket.read("ckpt") == make_bytes(12 * MIB)
    wait_for(lambda: len(set(workers(one.process.pid, "write")) - before) == 2, "they keep the old configuration")
    assert one.stop() == 0


@pytest.mark.random
def test_a_wild_trainer(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """It spoils its own object, and nobody else's; its memory comes back with its death."""
    bucket = store()
    one = serve(config, **bucket.env)
    other = saver(one.socket)
    other.ok("open", 0, "gs://bucket/other", 0, 1)
    other.ok("write", 0, 6 * MIB)
    for seed in range(6):
        trainer = saver(one.socket)
        trainer.ok("open", 0, f"gs://bucket/wild-{seed}", 0, 1)
        trainer.ok("write", 0, 6 * MIB if seed % 2 else 100)
        trainer.ok("scribble", 0, seed)
        one.stat()
        trainer.kill()
        wait_for(lambda: checkpoint(one)["open"] == 1, log_of(one))
    assert other.ok("seal", 0) == ["sealed"]
    assert other.ok("wait", 0)[0] == "done", log_of(one)
    other.ok("close", 0)
    assert bucket.read("other") == make_bytes(6 * MIB)
    wait_free(one)
    assert one.stop() == 0


# ---- the end of a run ----


def run(
    millrace: Path, config: Path, env: dict[str, str], lines: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """A command that says `lines` to a saver, and ends with the status while the saver's lanes are as they are."""
    script = f'(echo "connect $MILLRACE_SOCKET"; printf "{lines}") | {PROGRAM}; exit {status}'
    return subprocess.run(
        [millrace, "run", "-v", "-c", config, "--", "sh", "-c", script],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


PROMISE = r"open 0 gs://bucket/ckpt 0 1\nwrite 0 10485760\nseal 0\n"


# One part that is not full: nothing can fail before the seal.
SMALL = r"open 0 gs://bucket/ckpt 0 1\nwrite 0 1000\nseal 0\n"


def test_run_waits_for_promised_saves(millrace_bin: Path, config: Path, runtime: Path, store: StartStore) -> None:
    bucket = store("--upload-mibps", "1/1")
    done = run(millrace_bin, config, bucket.env, PROMISE)
    assert done.returncode == 0, done.stderr
    assert "saving 1 checkpoint: gs://bucket/ckpt (" in done.stderr
    assert "(checkpoint.drain_s)" in done.stderr
    assert bucket.read("ckpt") == make_bytes(10 * MIB)


@pytest.mark.parametrize(("status", "expected"), [(0, 1), (3, 3)])
def test_a_promise_that_is_broken_shows_in_the_exit_status(
    millrace_bin: Path, config: Path, runtime: Path, store: StartStore, status: int, expected: int
) -> None:
    done = run(millrace_bin, config, store("--deny", "storage.objects.create").env, SMALL, status)
    assert done.returncode == expected, done.stderr
    assert "checkpoint gs://bucket/ckpt was promised" in done.stderr


def test_a_failure_that_the_command_has_seen_is_its_own_affair(
    millrace_bin: Path, config: Path, runtime: Path, store: StartStore
) -> None:
    bucket = store("--deny", "storage.objects.create")
    done = run(millrace_bin, config, bucket.env, SMALL + r"wait 0\nclose 0\n")
    assert done.returncode == 0, done.stderr
    assert "was promised" not in done.stderr


def test_a_save_that_was_never_promised_is_given_up(
    millrace_bin: Path, config: Path, runtime: Path, store: StartStore
) -> None:
    bucket = store()
    done = run(millrace_bin, config, bucket.env, r"open 0 gs://bucket/ckpt 0 1\nwrite 0 10485760\n")
    assert done.returncode == 0, done.stderr
    assert bucket.names() == []


def test_drain_s_ends_the_wait(millrace_bin: Path, config: Path, runtime: Path, store: StartStore) -> None:
    config.write_text(config.read_text().replace("drain_s = 60", "drain_s = 1"))
    done = run(millrace_bin, config, store("--upload-mibps", "0.2/0.2").env, PROMISE)
    assert done.returncode == 1, done.stderr
    assert "not finished within checkpoint.drain_s (1 s)" in done.stderr


def test_a_private_supervisor_ends_after_the_promise(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver
) -> None:
    bucket = store("--upload-mibps", "4/4")
    one = serve(config, "--private", **bucket.env)
    trainer = saver(one.socket)
    assert trainer.save(0, "gs://bucket/ckpt", 10 * MIB) == ["sealed"]
    trainer.kill()  # its last client
    assert one.process.wait(DEADLINE_S) == 0
    assert "its last client has gone" in log_of(one)
    assert bucket.read("ckpt") == make_bytes(10 * MIB)


def test_a_second_signal_stops_serve(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    one = serve(config, **store("--upload-mibps", "0.2/0.2").env)
    trainer = saver(one.socket)
    trainer.save(0, "gs://bucket/ckpt", 10 * MIB)
    trainer.ok("open", 1, "gs://bucket/open", 0, 1)
    trainer.ok("write", 1, 100)
    one.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "saving 1 checkpoint" in log_of(one), "it says nothing")
    assert "A second signal stops at once" in log_of(one)
    assert one.process.poll() is None
    answer = " ".join(trainer.ok("wait", 1))  # what is open is aborted, and says why
    assert answer.startswith("failed") and "supervisor is ending" in answer
    assert "is ending" in trainer.error("open", 2, "gs://bucket/late", 0, 1)
    assert one.stop(signal.SIGTERM) == 1
    assert "a second signal: stopping at once" in log_of(one)
    assert "checkpoint gs://bucket/ckpt was promised" in log_of(one)
    # Its parts are given up with it: no successor goes on from where the killed worker was.
    assert "checkpoint gs://bucket/ckpt: not saved" in log_of(one)
    assert "uploaded again" not in log_of(one)


def test_ctrl_c_while_the_end_of_run_is_drained(
    millrace_bin: Path, config: Path, runtime: Path, store: StartStore, tmp_path: Path
) -> None:
    """The first one says what is still being saved, the second one stops."""
    script = f'(echo "connect $MILLRACE_SOCKET"; printf "{PROMISE}") | {PROGRAM}'
    log = tmp_path / "run.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [millrace_bin, "run", "-v", "-c", config, "--", "sh", "-c", script],
            env={**os.environ, **store("--upload-mibps", "0.2/0.2").env},
            stderr=errors,
            stdout=subprocess.DEVNULL,
        )
    try:
        wait_for(lambda: "saving 1 checkpoint" in log.read_text(), "it does not wait")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "Another signal stops at once" in log.read_text(), log.read_text())
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 1
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "a second signal: stopping at once" in log.read_text()
