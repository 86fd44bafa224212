"""Planted causes: jobs that wait for a known reason, and what `millrace top` names.

    .venv/bin/python -m bench.causes [--runs 10] [--only latency,gil] [--busy 4]

Each cause is a store, a configuration and a job (bench/causes_job.py) of its own; after some seconds the verdict is
read from `millrace stat --json`, as `top` shows it. A healthy job is among them, for which nothing may be named. Prints
a row a cause: how often it was named, and what was said else. --busy: beside so many busy loops.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.process import WITH_US, devstore
from bench.systems import BIN, BUILD, ROOT

SPIN = "while True: pass"
QUOTA = Path("/sys/fs/cgroup/cpu/millrace-causes")  # of cgroup v1; v2: a folder of the root
LOOK_S = 7.0  # after the first step
STEADY_S = 3.0  # between looks
LOOKS = 3
END_S = 20.0  # that a job has to end


@dataclass(frozen=True)
class Cause:
    name: str
    expected: tuple[str, ...]  # "stage/cause" as `stat` has them
    store: tuple[str, ...] = ("--synthetic", "data:20000:2000")
    config: str = ""
    job: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    beside: str = ""  # what else there is: "neighbours", "quota", "nodes"
    words: str = ""  # that the line has besides


LARGE = ("--synthetic", "data:3000:200KiB")
CAUSES = (
    Cause("nothing (a healthy job)", ("step/none",), job={"step_ms": 30}),
    Cause("a slow store", ("store/bandwidth",), store=(*LARGE, "--download-mibps", "0/4"), job={"step_ms": 5}),
    Cause("latency", ("store/latency",), store=("--synthetic", "data:60000:2000", "--latency-ms", "get:700")),
    Cause(
        "429s",
        ("store/throttled",),
        store=("--synthetic", "data:60000:2000", "--fault", "status:over=100:429:get:*"),
        config="[fetch]\ncompose = 'never'\n",
    ),
    Cause(
        "few connections",
        ("store/connections",),
        store=("--synthetic", "data:20000:2000", "--latency-ms", "20"),
        config="[fetch]\nworkers = 1\nconnections = 2\ncompose = 'never'\n",
    ),
    Cause(
        "a small window",
        ("store/window",),
        store=("--synthetic", "data:20000:2000", "--latency-ms", "50"),
        config="[lanes]\nwindow = 16\n",
        job={"batch": 8},
    ),
    Cause(
        "a small arena",
        ("store/memory",),
        store=(*LARGE, "--latency-ms", "50"),
        config="[memory]\narena_bytes = '3MiB'\n[fetch]\nworkers = 1\n",
        job={"batch": 4},
    ),
    Cause("a slow transform", ("transform/blocked",), job={"sleep_ms": 4, "workers": 2}),
    Cause("a GIL-bound transform", ("transform/gil",), job={"threads": 4, "compute_ms": 4, "workers": 1}),
    Cause("too few workers", ("transform/workers",), job={"compute_ms": 5, "workers": 1, "step_ms": 30}),
    Cause("too many workers", ("transform/crowd", "transport/crowd"), job={"compute_ms": 3, "workers": 12}),
    Cause("a slow collate", ("collate/blocked",), job={"collate_ms": 60, "workers": 1}),
    Cause("huge pickles", ("transport/pickle",), job={"pickles": 60000, "workers": 1, "batch": 8}),
    Cause(
        "little memory for batches",
        ("transport/room",),
        config="[memory]\nbatch_bytes = '1MiB'\n",
        job={"tensor_bytes": 1 << 20, "workers": 2, "batch": 16},
    ),
    Cause("a slow step", ("step/none",), job={"step_ms": 200, "compute_ms": 1}),
    Cause(
        "one slow rank",
        ("transform/blocked",),
        job={"sleep_ms": 4, "slow_rank": 1, "workers": 1, "sync": True, "step_ms": 5},
        ranks=2,
        words="rank 1's transform",
    ),
    Cause(
        "one slow node",
        ("transform/blocked",),
        store=("--synthetic", "data:2000:2000"),
        job={"sleep_ms": 4, "slow_rank": 1, "workers": 1, "sync": True, "step_ms": 5},
        ranks=2,
        beside="nodes",
        words="the slowest of 2 ranks is rank 1",
    ),
    Cause(
        "a cold listing", ("listing/listing",), store=("--synthetic", "data:2000000:2000", "--latency-ms", "list:400")
    ),
    Cause("a CPU quota", ("transform/quota",), job={"compute_ms": 2, "workers": 2}, beside="quota"),
    Cause("a noisy neighbour", ("transform/neighbours",), job={"compute_ms": 3, "workers": 2}, beside="neighbours"),
    Cause(
        "a checkpoint in the way",
        ("checkpoint/save", "store/saving"),
        store=("--synthetic", "data:20000:2000", "--memory", "--upload-mibps", "0/20"),
        job={"save_every": 5, "save_mib": 8, "step_ms": 20},
    ),
    # Added when the rules were there, and the rules were not changed for them.
    Cause(
        "a loop that keeps batches",
        ("extent/kept", "transport/kept"),
        config="[memory]\nbatch_bytes = '40MiB'\n",
        job={"tensor_bytes": 1 << 20, "batch": 8, "keep": 4, "step_ms": 5},
    ),
    Cause("a lock of all workers", ("transform/blocked",), job={"lock_ms": 4, "workers": 2}),
    Cause("no workers", ("transform/workers",), job={"compute_ms": 2, "workers": 0, "step_ms": 10}),
)


def program(cause: Cause, rank: int, port: int) -> list[str]:
    arguments = {**cause.job, "rank": rank, "world": cause.ranks, "port": port}
    return [sys.executable, "-m", "bench.causes_job", json.dumps(arguments)]


def environment(url: str, runtime: Path) -> dict[str, str]:
    paths = f"{BUILD / 'python'}:{ROOT}"
    return {**os.environ, "STORAGE_EMULATOR_HOST": url, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(runtime)}


@contextlib.contextmanager
def beside(kind: str, count: int = 4) -> Iterator[list[str]]:
    """What there is beside the job; the words that its command begins with. The kernel shares cores among sessions
    (autogroup): "neighbours" are loops in sessions of their own, as other jobs are, "busy" loops of one."""
    if kind in ("busy", "neighbours"):
        command = [*WITH_US, sys.executable, "-c", SPIN]
        loops = [subprocess.Popen(command, start_new_session=kind == "neighbours") for _ in range(count)]
        try:
            yield []
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
    elif kind == "quota":
        v1 = QUOTA.parent.is_dir()
        group = QUOTA if v1 else Path("/sys/fs/cgroup/millrace-causes")
        group.mkdir(exist_ok=True)
        if v1:
            (group / "cpu.cfs_quota_us").write_text("60000")
        else:
            (group / "cpu.max").write_text("60000 100000")
        try:
            yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        finally:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.1)
    else:
        yield []


def stat(socket: Path) -> dict[str, Any]:
    command = [str(BIN / "millrace"), "stat", "--json", "--socket", str(socket)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def look(socket: Path, listing: bool) -> tuple[str, str]:
    """What is named most, and the last line of it: some seconds after the first step, or while it is listed."""
    said: list[tuple[str, str]] = []
    until = time.monotonic() + 40
    while time.monotonic() < until:
        found = stat(socket)
        if listing and found.get("limit", {}).get("stage") == "listing":
            break
        if not listing and any(loop["counters"]["batches"] > 0 for loop in found.get("loops", [])):
            break
        time.sleep(0.2)
    time.sleep(0.5 if listing else LOOK_S)
    for _ in range(LOOKS):
        limit = stat(socket).get("limit", {})
        said.append((f"{limit.get('stage')}/{limit.get('cause')}", limit.get("text", "")))
        time.sleep(0.3 if listing else STEADY_S / LOOKS)
    most = Counter(name for name, _ in said).most_common(1)[0][0]
    return most, next(text for name, text in reversed(said) if name == most)


@contextlib.contextmanager
def job(cause: Cause, folder: Path, url: str) -> Iterator[list[Path]]:
    """The job under `millrace run`, one for each node; their sockets."""
    nodes = cause.ranks if cause.beside == "nodes" else 1
    port = 20000 + os.getpid() % 20000
    running, sockets = [], []
    with beside(cause.beside) as first:
        for node in range(nodes):
            config, socket = folder / f"{node}.toml", folder / f"{node}.socket"
            config.write_text(f"[log]\nepochs = '{folder}/epochs.jsonl'\n{cause.config}")
            ranks = [node] if nodes > 1 else list(range(cause.ranks))
            lines = " & ".join(shlex.join(program(cause, rank, port)) for rank in ranks)
            command = [*first, str(BIN / "millrace"), "run", "-q", "-c", str(config), "--socket", str(socket)]
            log = (folder / f"{node}.log").open("w")
            running.append(
                subprocess.Popen(
                    [*WITH_US, *command, "--", "sh", "-c", f"{lines}; wait"],
                    env=environment(url, folder),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
            sockets.append(socket)
        try:
            yield sockets
        finally:
            for process in running:
                process.terminate()  # what its workers have promised, and torch's shared memory, end with it
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(cause: Cause) -> tuple[bool, str]:
    """Whether it was named, and what was said."""
    with tempfile.TemporaryDirectory(prefix="causes-") as name, devstore(*cause.store) as url:
        folder = Path(name)
        with job(cause, folder, url) as sockets:
            said, text = look(sockets[-1], cause.expected[0].startswith("listing"))
        log = (folder / "0.log").read_text()
        if cause.beside == "nodes":
            text = next((line for line in log.splitlines() if "the slowest of" in line), text)
        if not text:
            text = log[-300:]
    return said in cause.expected and cause.words in text, f"{said}: {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", default="", help="parts of names, with commas between")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside each run")
    parser.add_argument("-v", "--verbose", action="store_true", help="each line that was said")
    asked = parser.parse_args()
    wanted = [part for part in asked.only.split(",") if part]
    named = total = 0
    for cause in CAUSES:
        if wanted and not any(part in cause.name for part in wanted):
            continue
        good, others = 0, Counter[str]()
        with beside("busy" if asked.busy else "", asked.busy):
            for _ in range(asked.runs):
                right, said = run(cause)
                good += right
                if not right:
                    others[said.split(": ")[0]] += 1
                if asked.verbose or not right:
                    print(f"    {said}", flush=True)
        total, named = total + 1, named + (good == asked.runs)
        also = ", ".join(f"{key} {count}" for key, count in others.items())
        print(f"{cause.name:26} {good:3} of {asked.runs}  {' or '.join(cause.expected):32} {also}", flush=True)
    print(f"{named} of {total} named in each run")


if __name__ == "__main__":
    main()
