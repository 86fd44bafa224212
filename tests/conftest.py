"""Fixtures for all Python tests: the programs, servers on free loopback ports, and a check that nothing is left behind.

MILLRACE_BUILD names another build folder than build/release (a sanitizer's, for instance).
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
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
from typing import Any

import pytest

from tests.serve import DEADLINE_S, OBJECTS, StartServe, Supervisor, launch, wait_for

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
# Nor are run folders and what dead runs have recorded: other sessions' would show in what `doctor` and `clean` print.
RUNTIME = tempfile.TemporaryDirectory(prefix="mr-")  # short: it begins the path of sockets, which has 107 bytes
os.environ["XDG_RUNTIME_DIR"] = RUNTIME.name
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, help="run each test so many times (scripts/test-repeat)")
    parser.addoption("--nightly", action="store_true", help="also the tests with the marker `nightly`")


class FailuresAtOnce:
    """A failure is in the log as it happens: a run that is killed has no report."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal:
            terminal.write_line(f"\nfailed ({report.when}): {report.nodeid}\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What has a longer limit of its own begins first: the last to end shall not be alone.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    for item in items:
        if {"fake_gcs", "strict"} & set(getattr(item, "fixturenames", ())):  # servers of scripts/test-servers
            item.add_marker(pytest.mark.nightly)
    if config.getoption("nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("repeat")
    if times > 1:
        metafunc.fixturenames.append("_repetition")
        metafunc.parametrize("_repetition", range(times))


def pytest_itemcollected(item: pytest.Item) -> None:
    """--timeout is for a busy machine (scripts/test-load): a test's own limit shall not be below it."""
    least, mark = item.config.getoption("timeout"), item.get_closest_marker("timeout")
    if least and mark and mark.args and mark.args[0] < least:
        item.add_marker(pytest.mark.timeout(least), append=False)


@pytest.fixture
def _repetition() -> None:
    """Which time it is, where --repeat asks for several."""


def our_processes() -> dict[int, str]:
    """pid -> command line of the millrace programs that this session started, however they were reparented."""
    found = {}
    marker = f"{SESSION_VARIABLE}={SESSION}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (three times a test: a Path each is slow)
        try:
            if not _read(f"/proc/{name}/comm").startswith(b"millrace"):
                continue
            if marker in _read(f"/proc/{name}/environ").split(b"\0"):
                found[int(name)] = _read(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode().strip()
        except OSError:  # it ended meanwhile
            continue
    return found


def lingers(pid: int, line: str, before: set[int]) -> bool:
    """A list worker that waits for the next file to be opened, of a supervisor that was there before."""
    try:
        return " list " in line and int(_read(f"/proc/{pid}/stat").rsplit(b")", 1)[1].split()[1]) in before
    except OSError:
        return False


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def shared_memory_names() -> set[str]:
    """What is in /dev/shm, without semaphores: Python's multiprocessing makes and removes them, and glibc makes one of
    six letters for a moment, which stays where a kill comes then."""
    return {entry.name for entry in Path("/dev/shm").iterdir() if not entry.name.startswith("sem.")}


def untracked() -> set[str]:
    """Files in the tree that git neither has nor ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    return set(listed.stdout.splitlines())


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_by_session() -> Iterator[None]:
    names, files, began = shared_memory_names(), untracked(), time.time()
    yield
    wait_until_clean(names, set())
    # Not what was there before and has become unknown to git meanwhile, by a rebase for instance.
    left = {name for name in untracked() - files if (ROOT / name).lstat().st_ctime >= began}
    assert not left, f"left in the tree: {sorted(left)}"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program writes to its working directory (Lightning does) is not written to the tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _nothing_left_by_test(_nothing_left_by_session: None) -> Iterator[None]:
    names, pids = shared_memory_names(), set(our_processes())
    yield
    supervisors = sys.modules.get("millrace._supervisor")
    if supervisors is not None:
        supervisors.keep(None)  # a private supervisor of the test process itself would stay
        vars(supervisors)["_expects_writer"] = False
    wait_until_clean(names, pids)


def wait_until_clean(names: set[str], pids: set[int]) -> None:
    """Fails when /dev/shm has a name, or this session a millrace process, that was not there before."""
    deadline = time.monotonic() + DEADLINE_S  # a supervisor that lost its client may need a moment to end
    while True:
        left_names = shared_memory_names() - names
        left = {pid: line for pid, line in our_processes().items() if pid not in pids and not lingers(pid, line, pids)}
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


# Below the ports that the kernel gives to those who ask for any, so that nobody gets one between this and its use.
# Processes begin at different ones.
_ports = itertools.cycle(range(10000, 30000))
collections.deque(itertools.islice(_ports, os.getpid() * 101 % 20000), maxlen=0)


def free_port() -> int:
    """For a server that cannot be told to take any port and say which."""
    for port in _ports:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError


@dataclass
class Server:
    """A server process on a loopback port. `stop()` may be called twice."""

    process: subprocess.Popen[str]
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def stop(self, sig: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            self.process.wait(DEADLINE_S)
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
    # It prints one line with its address as soon as it listens, or ends.
    match = re.search(r"(https?)://[^\s:]+:(\d+)", process.stdout.readline())
    if match:
        return Server(process, int(match[2]), match[1])
    process.kill()
    process.stdout.close()
    raise RuntimeError(f"millrace-devstore did not start: exit status {process.wait()}")


@pytest.fixture
def devstore() -> Iterator[StartDevstore]:
    """A function (*flags) -> Server that starts development stores; all end with the test, and each with status 0: a
    sanitizer's findings, leaks too, make it another."""
    servers: list[Server] = []

    def start(*arguments: str | Path) -> Server:
        servers.append(start_devstore(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
    assert [server.process.returncode for server in servers] == [0] * len(servers)


def start_fake_gcs(log: Path, *arguments: str | Path) -> Server:
    """Starts fake-gcs-server (third-party) on a free port. scripts/test-servers builds it."""
    cache = CALLERS_CACHE / "millrace" / "test-servers"
    program = shutil.which("fake-gcs-server") or cache / "fake-gcs-server"
    assert Path(program).exists(), f"{program} is missing: run scripts/test-servers"
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
            + ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    server = Server(process, port)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{server.url}/_internal/healthcheck", timeout=2).close()
            return True
        return False

    try:
        wait_for(answers, log.read_text)
    except BaseException:
        server.stop()
        raise
    return server


@pytest.fixture
def fake_gcs(tmp_path: Path) -> Iterator[Server]:
    """fake-gcs-server, empty."""
    server = start_fake_gcs(tmp_path / "fake-gcs-server.log")
    yield server
    server.stop()


# ---- supervisors ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """OBJECTS files, 000, 001, ... of 0, 100, ... bytes."""
    data = tmp_path / "data"
    data.mkdir()
    for i in range(OBJECTS):
        (data / f"{i:03}").write_bytes(bytes([i]) * (100 * i))
    return data


@pytest.fixture
def config(tmp_path: Path, folder: Path) -> Path:
    """A configuration with the data set "train" of that folder, which needs no server."""
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


@pytest.fixture
def serve(millrace_bin: Path, tmp_path: Path, runtime: Path) -> Iterator[StartServe]:
    """A function (config, *arguments, program=..., env=...) -> Supervisor; each is ended with the test."""
    started: list[Supervisor] = []

    def start(config: Path, *arguments: str, program: Path = millrace_bin, **env: str) -> Supervisor:
        number = len(started)
        path, log = tmp_path / f"socket{number}", tmp_path / f"supervisor{number}.log"
        started.append(launch(program, config, path, log, "-v", *arguments, **env))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        assert "does not come to rest" not in one.log.read_text()


@pytest.fixture
def ring() -> Iterator[Callable[[Supervisor], Any]]:
    """A function (supervisor) -> a Client of the extension; connections end with the test."""
    from millrace._ring import Client

    clients: list[Client] = []

    def connect(one: Supervisor) -> Client:
        clients.append(Client(str(one.socket), "job", int(1000 * DEADLINE_S)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
