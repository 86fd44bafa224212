"""A supervisor over a small folder of files: `file` needs no server, so these tests are about processes alone."""

from __future__ import annotations

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

import pytest

DEADLINE_S = 60.0
OBJECTS = 20


def wait_for(what: Callable[[], Any], why: str) -> Any:
    """The first true value of what(); fails after DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def children(pid: int) -> dict[int, list[str]]:
    """pid -> words of the command line of each living child."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            words = (stat.parent / "cmdline").read_bytes().decode().split("\0")
        except (OSError, IndexError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found[int(stat.parent.name)] = words
    return found


def workers(pid: int, role: str) -> list[int]:
    return [child for child, words in children(pid).items() if role in words[1:2]]


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Serve:
    process: subprocess.Popen[str]
    socket: Path
    log: Path
    program: Path

    def stat(self) -> dict[str, Any]:
        command = [str(self.program), "stat", "--json", "--socket", str(self.socket)]
        return dict(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))

    def is_ready(self) -> bool:
        try:
            return all(d["state"] == "ready" for d in self.stat()["datasets"])
        except subprocess.CalledProcessError:  # a socket file that an earlier one left: nobody listens yet
            assert self.process.poll() is None
            return False

    def wait_ready(self) -> None:
        wait_for(self.is_ready, "the data sets never got ready")

    def stop(self, sig: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(OBJECTS):
        (data / f"{i:03}").write_bytes(bytes([i]) * (100 * i))
    return data


@pytest.fixture
def config(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "millrace.toml"
    path.write_text(f'[dataset.train]\nuri = "file://{folder}/"\n[memory]\narena_bytes = "8MiB"\n')
    return path


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty XDG_RUNTIME_DIR."""
    path = tmp_path_factory.mktemp("r")
    path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


StartServe = Callable[..., Serve]


@pytest.fixture
def serve(millrace_bin: Path, tmp_path: Path, runtime: Path) -> Iterator[StartServe]:
    """A function (config, *arguments, program=..., env=...) -> Serve; each is ended with the test."""
    started: list[Serve] = []

    def start(config: Path, *arguments: str, program: Path = millrace_bin, **env: str) -> Serve:
        number = len(started)
        path, log = tmp_path / f"socket{number}", tmp_path / f"supervisor{number}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [program, "serve", "-v", "-c", config, "--socket", path, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                env={**os.environ, **env},
            )
        one = Serve(process, path, log, millrace_bin)
        started.append(one)
        wait_for(lambda: listens(path) or process.poll() is not None, "no socket")
        assert process.poll() is None, log.read_text()
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        assert "does not come to rest" not in one.log.read_text()


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
