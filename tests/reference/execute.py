"""Runs one program on one side against one store, and collects what can be compared."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import free_port
from tests.reference import data, stores
from tests.reference.environment import HERE, Side
from tests.reference.programs import BUCKET, Program

LIMIT_S = 1200.0  # of one program: none is a measurement, so it is only there for what would hang

RAISED = re.compile(r"[\w.]+(Error|Exception|Exit|Gone|Interrupt|Found)\b")


@dataclass
class Result:
    """What one side did."""

    statuses: list[int]
    printed: list[str]
    said: list[str]  # to standard error
    batches: list[list[dict[str, Any]]]  # of each process, in order
    names: set[str]  # of all objects, as bucket/object
    saved: Path  # the objects that are not of the data, downloaded
    files: set[str] = field(default_factory=set)  # in the working directory

    @property
    def failed(self) -> bool:
        return any(self.statuses)

    def error(self) -> str:
        """The last line of a traceback, of the first process that has one."""
        if -signal.SIGKILL in self.statuses:
            return f"TimeoutError: it did not end within {LIMIT_S:.0f} s"
        for text in self.said:
            lines = [line for line in text.splitlines() if RAISED.match(line)]
            if lines:
                return lines[-1]
        return next((text.strip().splitlines()[-1] for text in self.said if text.strip()), f"status {self.statuses}")


def command(program: Program, side: Side) -> list[str]:
    values = {"tree": str(side.tree), "checkout": str(side.checkout), "here": str(HERE), "bucket": BUCKET}
    return [str(side.python), *(re.sub(r"\{(\w+)\}", lambda m: values[m[1]], word) for word in program.words)]


def variables(program: Program, rank: int, port: int) -> dict[str, str]:
    if program.ranks == 1:
        return dict(program.variables)
    return {
        **program.variables,
        "COORDINATOR_ADDRESS": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(program.ranks),
        "JOB_INDEX": "0",
        "JOB_COMPLETION_INDEX": str(rank),
        "PROCESSES_IN_JOB": str(program.ranks),
    }


def wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Their statuses. Where one fails, or at the end of the time, the others' process groups are ended."""
    deadline = time.monotonic() + LIMIT_S
    failed_at = None
    try:
        while any(process.poll() is None for process in processes):
            now = time.monotonic()
            if failed_at is None and any(process.poll() for process in processes):
                failed_at = now
            if now > deadline or (failed_at is not None and now > failed_at + 20):  # a rank that waits for the dead one
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return [process.wait() for process in processes]


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def execute(program: Program, side: Side, kind: str, folder: Path, work: Path) -> Result:
    """`folder` has the data; `work` is empty, and holds afterwards what Result names."""
    cwd = work / "directory"
    for path in (cwd, work / "observed", work / "home", work / "saved"):
        path.mkdir(parents=True)
    data.working_directory(cwd)
    before = {str(path.relative_to(cwd)) for path in cwd.rglob("*")}
    port = free_port()
    with stores.store(kind, folder, work) as url:
        processes = []
        environment = side.environment(work, url)
        if program.beside:
            environment["PYTHONPATH"] += f"{os.pathsep}{side.tree / program.beside}"
        for rank in range(program.ranks):
            with (work / f"out{rank}").open("wb") as out, (work / f"err{rank}").open("wb") as err:
                processes.append(
                    subprocess.Popen(
                        command(program, side),
                        cwd=cwd,
                        env={**environment, **variables(program, rank, port)},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                )
        statuses = wait(processes)
        names = stores.left(url, folder, work / "saved")
    files = {str(path.relative_to(cwd)) for path in cwd.rglob("*") if path.is_file()} - before
    shutil.rmtree(cwd)
    return Result(
        statuses,
        [(work / f"out{rank}").read_text(errors="replace") for rank in range(program.ranks)],
        [(work / f"err{rank}").read_text(errors="replace") for rank in range(program.ranks)],
        [lines_of(file) for file in sorted((work / "observed").iterdir())],
        names,
        work / "saved",
        files,
    )
