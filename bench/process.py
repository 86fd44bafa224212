"""A reader's process: started, spoken to, watched, ended."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.meter import Family, Memory
from bench.systems import BIN, ROOT, System

MEMORY_LOOK_S = 0.1
# Some peers would go on retrying for a day if this program were killed.
WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@contextmanager
def devstore(*flags: str) -> Iterator[str]:
    """The development store with these flags; its URL. It dies with this program."""
    command = [str(BIN / "millrace-devstore"), "--listen", "127.0.0.1:0", "--exit-with-parent", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"https?://\S+", process.stdout.readline())
        assert found, "millrace-devstore does not start"
        yield found[0]
    finally:
        process.kill()
        process.wait()


class Failed(Exception):
    """A reader that did not do what it should; the text is its own."""


class Process:
    """A reader (readers/common.py says how it talks), and what it has said."""

    def __init__(self, system: System, url: str, log: Path) -> None:
        self.system, self.log = system, log
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": url, "OMP_NUM_THREADS": "1", **system.environment}
        environment["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks Google about the bucket, past the emulator
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [*WITH_US, *system.command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.family = Family(self.process.pid)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def answer(self, limit_s: float) -> str:
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            raise Failed(f"no answer in {limit_s:.0f} s") from None
        if not line:
            raise Failed(self._last_words())
        return line.strip()

    def _last_words(self) -> str:
        """The line of the exception, else the last one that says something."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if len(line) > 3]
        exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Panic|SystemExit)\b.*:", line)]
        return (exceptions or lines or ["ended without a word"])[-1][:200]

    def wait_ready(self, end: float) -> None:
        while True:
            line = self.answer(max(1.0, end - time.monotonic()))
            if line == "ready":
                return

    def read(self, seconds: float, skip: int, verify: bool) -> dict[str, Any]:
        return self.command({"skip": skip, "seconds": seconds, "verify": verify}, 60 + 5 * seconds)

    def command(self, what: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        found: dict[str, Any] = json.loads(self.answer(limit_s))
        return found

    def end(self) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(timeout=10)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def memory_watched(family: Family, look_s: float = MEMORY_LOOK_S) -> Iterator[Memory]:
    """The most that the family held at once; complete when the block ends."""
    most, stop = Memory(), threading.Event()

    def watch() -> None:
        while True:
            now = family.memory()
            if now.total > most.total:
                most.__dict__.update(now.__dict__)
            if stop.wait(look_s):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        stop.set()
        watcher.join()
