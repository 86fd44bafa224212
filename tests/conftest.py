"""Fixtures for all Python tests: the programs, servers on free loopback ports, and a check that nothing is left behind.

MILLRACE_BUILD names another build folder than build/release (a sanitizer's, for instance).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build" / "release"))
BIN = BUILD / "bin"

# Every process that a test starts inherits this, so that ours are told from another session's on the same machine.
SESSION_VARIABLE = "MILLRACE_TEST_SESSION"
SESSION = uuid.uuid4().hex

os.environ[SESSION_VARIABLE] = SESSION
os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BUILD / "python"), os.environ.get("PYTHONPATH")]))
if str(BUILD / "python") not in sys.path:
    sys.path.insert(0, str(BUILD / "python"))
# Every data set's listing is cached: not among the caller's own.
# Kept in the environment: xdist's workers are started with the line below already done.
CALLERS_CACHE = Path(
    os.environ.setdefault("MILLRACE_CALLERS_CACHE", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
)
CACHE = tempfile.TemporaryDirectory(prefix="millrace-test-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
# A shell that starts the tests in the background, or nohup, has these ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
# Nothing from the caller's surroundings decides which server a test talks to.
for variable in (
    "STORAGE_EMULATOR_HOST",
    "MILLRACE_SOCKET",
    "MILLRACE_CONFIG",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
):
    os.environ.pop(variable, None)

GONE_WITHIN_S = 60.0  # a supervisor that lost its client may need a moment to end


def our_processes() -> dict[int, str]:
    """pid -> command line of the millrace programs that this session started, however they were reparented."""
    found = {}
    marker = f"{SESSION_VARIABLE}={SESSION}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not (folder / "comm").read_text().startswith("millrace"):
                continue
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # it ended while we looked
            continue
    return found


def shared_memory_names() -> set[str]:
    """What is in /dev/shm, without the semaphores that Python's multiprocessing makes and its own tracker removes."""
    return {entry.name for entry in Path("/dev/shm").iterdir() if not entry.name.startswith("sem.mp-")}


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_by_session() -> Iterator[None]:
    names = shared_memory_names()
    yield
    wait_until_clean(names, set())


@pytest.fixture(autouse=True)
def _nothing_left_by_test(_nothing_left_by_session: None) -> Iterator[None]:
    names, pids = shared_memory_names(), set(our_processes())
    yield
    writers = sys.modules.get("millrace.checkpoint._writer")
    if writers is not None:
        writers._keep(None)  # a private supervisor of the test process itself would stay
    wait_until_clean(names, pids)


def wait_until_clean(names: set[str], pids: set[int]) -> None:
    """Fails when /dev/shm has a name, or this session a millrace process, that was not there before."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        left_names = shared_memory_names() - names
        left = {pid: line for pid, line in our_processes().items() if pid not in pids}
        if not left_names and not left:
            return
        if time.monotonic() > deadline:
            for pid in left:  # the next test shall not fail for this one's sake
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"left behind: /dev/shm {sorted(left_names)}, processes {left}", pytrace=False)
        time.sleep(0.05)


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    return BIN


@pytest.fixture(scope="session")
def millrace_bin() -> Path:
    """The `millrace` program of the build under test."""
    program = BIN / "millrace"
    assert program.exists(), f"{program} is not built: run `make build`, or set MILLRACE_BUILD"
    return program


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """A server process on a loopback port. `stop()` may be called twice."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, sig: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


StartDevstore = Callable[..., Server]


def start_devstore(*arguments: str | Path) -> Server:
    """Starts millrace-devstore on a free port; it ends with this process at the latest."""
    command = [BIN / "millrace-devstore", "--listen", "127.0.0.1:0", "--exit-with-parent", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    # It prints one line with its address as soon as it listens.
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.2)[0]:
            match = re.search(r"http://[^\s:]+:(\d+)", process.stdout.readline())
            if match:
                return Server(process, int(match[1]))
    process.kill()
    raise RuntimeError(f"millrace-devstore did not start: exit status {process.wait()}")


@pytest.fixture
def devstore() -> Iterator[StartDevstore]:
    """A function (*flags) -> Server that starts development stores; all end with the test."""
    servers: list[Server] = []

    def start(*arguments: str | Path) -> Server:
        servers.append(start_devstore(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def fake_gcs(tmp_path: Path) -> Iterator[Server]:
    """fake-gcs-server (third-party), empty, on a free port. scripts/test-servers builds it."""
    cache = CALLERS_CACHE / "millrace" / "test-servers"
    program = shutil.which("fake-gcs-server") or cache / "fake-gcs-server"
    assert Path(program).exists(), f"{program} is missing: run scripts/test-servers"
    port = free_port()
    log = (tmp_path / "fake-gcs-server.log").open("w")
    process = subprocess.Popen(
        [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        + ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"],
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log.close()
    server = Server(process, port)
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(f"{server.url}/_internal/healthcheck", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (
                    tmp_path / "fake-gcs-server.log"
                ).read_text()
                time.sleep(0.05)
        yield server
    finally:
        server.stop()
