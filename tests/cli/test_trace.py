"""`millrace trace`: what is in the file, how it ends, and who may read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, StartDevstore
from tests.serve import DEADLINE_S, StartServe, Supervisor, start_supervisor, wait_for

OBJECTS, BATCH, WORKERS = 60, 4, 2
JOB_S = 280  # of a program that imports torch

JOB = f"""
import sys
import millrace
from millrace import checkpoint

def work(item):
    return len(bytes(item))

if __name__ == "__main__":
    ds = millrace.IterableDataset("gs://bucket", transform=work)
    how = dict(batch_size={BATCH}, num_workers={WORKERS}, device="cpu", multiprocessing_context=sys.argv[1])
    for batch in millrace.DataLoader(ds, **how):
        pass
    with checkpoint.writer("gs://bucket/saved/model.pt") as file:
        file.write(b"x" * 1000)
"""


def command(server: Supervisor, *arguments: str | Path) -> list[str]:
    return [str(server.program), "trace", "--socket", str(server.socket), *map(str, arguments)]


def has_begun(out: Path) -> bool:
    return out.exists() and out.stat().st_size > 0


@contextmanager
def tracing(server: Supervisor, out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """All processes write when this begins."""
    process = subprocess.Popen(command(server, "-o", out, *arguments), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: has_begun(out) or process.poll() is not None, "it never began")
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def finish(process: subprocess.Popen[str], sig: int = signal.SIGINT) -> str:
    """What it says at its end."""
    process.send_signal(sig)
    said = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 0, said
    return said


@pytest.fixture
def server(serve: StartServe, config: Path) -> Supervisor:
    one = serve(config)
    one.wait_settled()
    return one


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Complete events of a thread lie within each other or apart: a viewer draws nonsense otherwise."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for spans in threads.values():
        open_spans: list[tuple[float, float, str]] = []
        for span in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_spans and open_spans[-1][1] <= span[0] + 0.001:  # thousandths of a microsecond are rounded
                open_spans.pop()
            assert not open_spans or span[1] <= open_spans[-1][1] + 0.001, (span, open_spans)
            open_spans.append(span)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_a_job(millrace_bin: Path, tmp_path: Path, devstore: StartDevstore, start: str) -> None:
    (tmp_path / "job.py").write_text(JOB)
    store = devstore("--memory", "--synthetic", f"bucket:{OBJECTS}:2000").url
    server = start_supervisor(millrace_bin, tmp_path, store, "[fetch]\nworkers = 1\n")
    out = tmp_path / "trace.json"
    try:
        with tracing(server, out) as process:
            subprocess.run(
                [sys.executable, "job.py", start], cwd=tmp_path, env=server.environment, check=True, timeout=200
            )
            wait_for(lambda: '"name":"upload"' in out.read_text(), "the write worker has told nothing")
            said = finish(process)
    finally:
        assert server.stop() == 0
    events = json.loads(out.read_text())
    spans = [event for event in events if event["ph"] in "Xb"]
    assert f"{len(spans):d} spans of " in said
    assert f"in {out}: open it in https://ui.perfetto.dev" in said
    assert "missing" not in said
    named = defaultdict(list)
    for span in spans:
        named[span["name"]].append(span)
    steps = OBJECTS // BATCH
    assert sorted(span["args"]["object"] for span in named["ticket"]) == list(range(OBJECTS))
    assert sorted(span["args"]["object"] for span in named["transform"]) == list(range(OBJECTS))
    assert {span["args"]["bytes"] for span in named["ticket"]} == {2000}
    for name in ("samples", "collate", "wait for a batch", "copy to the device"):
        assert len(named[name]) == steps, name
    assert len(named["step"]) == steps - 1
    assert {span["args"]["worker"] for span in named["samples"]} == set(range(WORKERS))
    gets = [span for span in named["GET"] if span["args"]["bytes"] == 2000]
    assert len(gets) == OBJECTS
    assert all(span["args"]["status"] == 200 and span["args"]["path"].startswith("/") for span in gets)
    (save,), (upload,) = named["save"], named["upload"]
    assert save["args"] == {"bytes": 1000, "uri": "gs://bucket/saved/model.pt"}
    assert upload["args"] == {**save["args"], "outcome": "done"}
    (post,) = (span for span in named["POST"] if span["pid"] == upload["pid"])
    assert 1000 <= post["args"]["bytes"] < 3000
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {threads[span["tid"]] for span in named["copy to the device"]} == {"copies to the device"}
    assert {threads[span["tid"]] for span in named["step"] + named["collate"] + gets} == {"main thread"}
    check_nesting(events)
    begun = {event["id2"]["local"]: event["ts"] for event in events if event["ph"] == "b"}
    ended = {event["id2"]["local"]: event["ts"] for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys()
    assert all(begun[each] <= ended[each] for each in begun)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[named["step"][0]["pid"]] == "training, rank 0"
    workers = {f"DataLoader worker {i}, rank 0" for i in range(WORKERS)}
    assert {names[span["pid"]] for span in named["ticket"]} == {f"tickets of {worker}" for worker in workers}
    assert {names[span["pid"]] for span in named["collate"]} == workers
    assert names[gets[0]["pid"]].startswith("millrace-worker fetch --slot 0")
    assert names[upload["pid"]].startswith("millrace-worker write --slot 0")


TWO = f"""
import faulthandler
import millrace

faulthandler.dump_traceback_later({JOB_S - 20}, exit=True)
if __name__ == "__main__":
    loaders = [millrace.DataLoader(millrace.IterableDataset("gs://bucket"), batch_size={BATCH}) for _ in range(2)]
    for batch, other in zip(*loaders):
        pass
"""

HANGS = """
import time
import millrace

def work(item):
    if item.index > 8:
        print("hangs", flush=True)
        time.sleep(1000)
    return len(bytes(item))

if __name__ == "__main__":
    for batch in millrace.DataLoader(millrace.IterableDataset("gs://bucket", transform=work), batch_size=4):
        pass
"""


def test_a_loop_over_two_loaders(millrace_bin: Path, tmp_path: Path, devstore: StartDevstore) -> None:
    """A step of one reaches into a step of the other: they do not share a track."""
    (tmp_path / "job.py").write_text(TWO)
    server = start_supervisor(millrace_bin, tmp_path, devstore("--synthetic", f"bucket:{OBJECTS}:2000").url, "")
    out = tmp_path / "trace.json"
    try:
        with tracing(server, out) as process:
            subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=server.environment, check=True, timeout=JOB_S)
            finish(process)
    finally:
        assert server.stop() == 0
    events = json.loads(out.read_text())
    check_nesting(events)
    steps = [event for event in events if event["name"] == "step" and event["ph"] in "Xb"]
    assert len(steps) == 2 * (OBJECTS // BATCH - 1)
    assert {event["ph"] for event in steps} == {"X", "b"}


def test_a_loop_that_hangs(millrace_bin: Path, tmp_path: Path, devstore: StartDevstore) -> None:
    (tmp_path / "job.py").write_text(HANGS)
    server = start_supervisor(millrace_bin, tmp_path, devstore("--synthetic", f"bucket:{OBJECTS}:2000").url, "")
    try:
        job = subprocess.Popen(
            [sys.executable, "job.py"], cwd=tmp_path, env=server.environment, stdout=subprocess.PIPE, text=True
        )
        with job:
            assert job.stdout and job.stdout.readline() == "hangs\n"
            wait_for(
                lambda: [each["pending"] + each["filling"] for each in server.stat()["lanes"]] == [0], "it fetches"
            )
            done = subprocess.run(
                command(server, "-o", "-", "--seconds", "0.1"), capture_output=True, text=True, timeout=DEADLINE_S
            )
            job.kill()
    finally:
        assert server.stop() == 0
    events = json.loads(done.stdout)
    (wait,) = (event for event in events if event["name"] == "wait for a batch, not over")
    assert wait["pid"] == job.pid
    assert wait["args"]["waited_s"] >= wait["dur"] / 1e6 >= 0.09
    assert "1 spans of" in done.stderr


def test_the_page_has_each_span() -> None:
    rows = re.findall(r'\[MR_SPAN_.*\.name = "([^"]+)"', (ROOT / "cli/trace_json.c").read_text())
    assert len(rows) == 13
    page = (ROOT / "docs/tracing.md").read_text()
    assert [name for name in rows if f"`{name}`" not in page and name != "request"] == []


def test_it_ends_after_its_time(server: Supervisor, tmp_path: Path) -> None:
    done = subprocess.run(
        command(server, "-o", "-", "--seconds", "0.1"), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert re.search(r"info: 0 spans of \d+\.\d s: ", done.stderr), done.stderr


def test_it_ends_with_the_run(server: Supervisor, tmp_path: Path) -> None:
    with tracing(server, tmp_path / "out") as process:
        server.kill()
        process.wait(DEADLINE_S)
        assert process.returncode == 0
    assert json.loads((tmp_path / "out").read_text()) == []


def test_one_at_a_time(server: Supervisor, tmp_path: Path) -> None:
    out = tmp_path / "second"
    with tracing(server, tmp_path / "first") as first:
        second = subprocess.run(command(server, "-o", out), capture_output=True, text=True, timeout=DEADLINE_S)
        assert second.returncode == 1
        assert f"process {first.pid} traces this run: end it first" in second.stderr
        assert not out.exists()
        first.kill()
        first.wait()
    assert (tmp_path / "first").read_text().startswith("[")

    def again() -> bool:  # the supervisor has seen the end of the first one
        done = subprocess.run(command(server, "-o", out, "--seconds", "0.1"), capture_output=True, timeout=DEADLINE_S)
        return done.returncode == 0

    wait_for(again, "nobody can trace after a reader that was killed")
    assert json.loads(out.read_text()) == []


def test_a_signal_while_a_fifo_has_no_reader(server: Supervisor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    waiting = subprocess.Popen(command(server, "-o", tmp_path / "fifo"))
    other = command(server, "-o", "/dev/null", "--seconds", "0.1")
    try:

        def has_begun() -> bool:
            nonlocal waiting
            if waiting.poll() is not None:  # the other one was before it
                waiting = subprocess.Popen(command(server, "-o", tmp_path / "fifo"))
            done = subprocess.run(other, capture_output=True, text=True)
            return f"process {waiting.pid} traces this run" in done.stderr

        wait_for(has_begun)
        waiting.terminate()
        assert waiting.wait(DEADLINE_S) == -signal.SIGTERM
    finally:
        waiting.kill()
        waiting.wait()


def test_a_full_disk(server: Supervisor) -> None:
    done = subprocess.run(
        command(server, "-o", "/dev/full", "--seconds", "0.1"), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 1
    assert "cannot write /dev/full: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "a trace has no place to go: add -o FILE"),
        (("-o", "gs://bucket/t.json"), 2, "a trace goes into a local file"),
        (("-o", "/no/such/folder/t.json"), 1, "cannot write /no/such/folder/t.json: No such file or directory"),
    ],
)
def test_no_place_for_it(server: Supervisor, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = subprocess.run(command(server, *arguments), capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr


def test_nobody_to_trace(millrace_bin: Path, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "MILLRACE_SOCKET"}
    done = subprocess.run(
        [millrace_bin, "trace", "-o", tmp_path / "out"],
        capture_output=True,
        text=True,
        env={**env, "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()
