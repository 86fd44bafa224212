"""Supervisors for tests: started, asked, stopped. The fixtures are those of tests/conftest.py; where a supervisor lasts
longer than a test, a module's fixture calls start_supervisor().
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 100.0  # of every wait: none is a measurement, so it is only there for what would hang
OBJECTS = 20


def wait_for(what: Callable[[], Any], why: object = "it never happened", deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of what(); fails after deadline_s with `why`, or with what why() returns then."""
    deadline = time.monotonic() + deadline_s
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, why() if callable(why) else why
        time.sleep(0.02)


def processes() -> Iterator[tuple[int, str, list[str]]]:
    """pid, name, and the fields of /proc/PID/stat behind it ([0] state, [1] parent, [3] session), dead ones too."""
    for folder in Path("/proc").glob("[0-9]*"):  # not */stat: glob looks whether it is there, and fails if it goes
        try:
            head, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        except OSError:  # it has ended
            continue
        if fields := rest.split():
            yield int(folder.name), head.partition("(")[2], fields


def children(pid: int) -> dict[int, list[str]]:
    """pid -> words of the command line of each living child."""
    found = {}
    for child, _, fields in processes():
        if int(fields[1]) == pid and fields[0] != "Z":
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
    return found


def workers(pid: int, role: str) -> list[int]:
    return [child for child, words in children(pid).items() if role in words[1:2]]


def strike(pid: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal to a process that may have ended since it was found: whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_and_wait(*pids: int) -> None:
    """A busy machine ends them only after a while, and until then what they hold is theirs."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in pids), "a process outlives SIGKILL")


@dataclass
class Supervisor:
    """A `millrace serve`."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path
    program: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "MILLRACE_SOCKET": str(self.socket)}

    def workers(self, role: str) -> list[int]:
        """Process ids of the living workers of a role."""
        return workers(self.process.pid, role)

    def stat(self) -> dict[str, Any]:
        command = [str(self.program), "stat", "--json", "--socket", str(self.socket)]
        return dict(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))

    def is_ready(self) -> bool:
        try:
            datasets = self.stat()["datasets"]
            assert not (failed := [d["error"] for d in datasets if d["state"] == "failed"]), failed
            return all(d["state"] == "ready" for d in datasets)
        except subprocess.CalledProcessError:  # a socket file that an earlier one left: nobody listens yet
            assert self.process.poll() is None
            return False

    def wait_ready(self) -> None:
        wait_for(self.is_ready, "the data sets never got ready")

    def wait_settled(self) -> None:
        """Ready, the list workers have gone, the fetch workers run: its descriptors and mappings stay as they are."""

        def settled() -> bool:
            states = {(w["role"], w["state"]) for w in self.stat()["workers"] if w["role"] in ("list", "fetch")}
            return ("fetch", "running") in states and states <= {("fetch", "running"), ("list", "none")}

        self.wait_ready()
        wait_for(settled, lambda: f"it never settled: {self.stat()['workers']}")

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Ends it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


StartServe = Callable[..., Supervisor]


def launch(program: Path, config: Path, path: Path, log: Path, *arguments: str, **env: str) -> Supervisor:
    """`millrace serve -c CONFIG --socket PATH ARGUMENTS...`, which listens when this returns."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [program, "serve", "-c", config, "--socket", path, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **env},
        )
    wait_for(lambda: listens(path) or process.poll() is not None, "no socket")
    assert process.poll() is None, f"status {process.poll()}: {log.read_text()}"
    return Supervisor(process, path, log, program)


def start_supervisor(program: Path, folder: Path, endpoint: str, toml: str = "", **env: str) -> Supervisor:
    """One whose configuration, socket and log lie in the folder, and whose bucket URIs go to the endpoint."""
    if "[memory]" not in toml:  # an eighth of the machine, whose pages are touched at each start, is much for a test
        toml += "\n[memory]\narena_bytes = '64MiB'\n"
    config = folder / "millrace.toml"
    config.write_text(toml)
    return launch(
        program, config, folder / "socket", folder / "supervisor.log", **{"STORAGE_EMULATOR_HOST": endpoint, **env}
    )


def listens(path: Path) -> bool:
    try:
        connect(path).close()
    except OSError:
        return False
    return True


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(DEADLINE_S)
    client.connect(str(path))
    return client
