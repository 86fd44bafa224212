"""Programs that import torch or Lightning, forked from a process that has imported them: an import takes seconds.

run() is subprocess.run() for `python PROGRAM ARGUMENTS...` and `python -m MODULE ARGUMENTS...`, and start() is like
subprocess.Popen(). millrace itself is imported by the program. One server serves all processes of a pytest run: the
first call starts it, and it ends with the last of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PRELOADED = ["numpy", "PIL.Image", "torch", "torch.distributed.run", "torch.utils.data", "torch._dynamo"]
PRELOADED += ["lightning.pytorch", "pytorch_lightning"]  # the oldest is there as the latter alone
PRELOAD_VARIABLE = "MILLRACE_FORKED_PRELOAD"
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
FOLDER = Path(tempfile.gettempdir()) / f"millrace-forked-{RUN}-{zlib.crc32(sys.prefix.encode()):08x}"
SOCKET = FOLDER / "socket"
_kept: list[socket.socket] = []


# ---- a test's side ----


def preload(*modules: str) -> None:
    """For a command that is no pytest run: these alone are loaded. Before the first start()."""
    os.environ[PRELOAD_VARIABLE] = " ".join(modules)


class Process:
    """What start() gives: a child of the server's, with pipes as they were asked for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._status: int | None = None
        self.pid = _receive(connection)["pid"]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._status is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal."""
        if self._status is None:
            self._connection.settimeout(timeout)
            self._status = int(_receive(self._connection)["status"])
            self._connection.close()
        return self._status


def run(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 250
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:  # noqa: PTH123
        process = start(command, cwd, env, (nothing.fileno(), out.fileno(), errors.fileno()))
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(command), status, *texts)


def start(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None, descriptors: tuple[int, int, int]
) -> Process:
    """The program with these descriptors as its standard input, output and error."""
    connection = _connect()
    request = {
        "command": [str(word) for word in command],
        "cwd": str(cwd),
        "env": dict(os.environ if env is None else env),
    }
    data = json.dumps(request).encode()
    socket.send_fds(connection, [struct.pack("=Q", len(data))], list(descriptors))
    connection.sendall(data)
    return Process(connection)


def _connect() -> socket.socket:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _kept:
            try:
                _kept.append(_connected())
            except OSError:
                SOCKET.unlink(missing_ok=True)
                _start_server()
                _kept.append(_connected())
    return _connected()


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(SOCKET))
    return connection


def _start_server() -> None:
    root = Path(__file__).resolve().parent.parent
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", "from tests.forked import main; main()", str(SOCKET)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, **one_thread},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"
    server.stdout.close()


def _receive(connection: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack("=Q", _exactly(connection, 8))
    return dict(json.loads(_exactly(connection, length)))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError("the other end has gone")
        data += piece
    return data


def _send(connection: socket.socket, **words: Any) -> None:
    data = json.dumps(words).encode()
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("=Q", len(data)) + data)


# ---- the server ----


def main() -> None:
    chosen = os.environ.pop(PRELOAD_VARIABLE, None)
    for name in PRELOADED if chosen is None else chosen.split():
        with contextlib.suppress(ImportError):
            __import__(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        os.write(1, b"listening\n")
        request = _serve(listener)
    if request is None:
        shutil.rmtree(Path(sys.argv[1]).parent)
    else:
        _be(request)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns in each child with what it shall run, and in the server, with None, after the last connection's end."""
    events = selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    children: dict[socket.socket, tuple[int, int]] = {}  # connection -> pid, pidfd
    open_ones: set[socket.socket] = set()
    while True:
        for key, _ in events.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                open_ones.add(connection)
                events.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                connection = key.fileobj
                if connection not in open_ones:  # its child's end came first, in this round
                    continue
                events.unregister(connection)
                got = None if connection in children else _request(connection)
                if got is None:  # its end: with it goes what runs for it
                    if connection in children:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(children[connection][0], signal.SIGKILL)
                    else:
                        open_ones.discard(connection)
                        connection.close()
                    continue
                request, descriptors = got
                pid = os.fork()
                if pid == 0:
                    events.close()
                    for other in open_ones:
                        other.close()
                    for number, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, number)
                    os.closerange(3, 1024)
                    listener.detach()
                    return request
                for descriptor in descriptors:
                    os.close(descriptor)
                children[connection] = pid, os.pidfd_open(pid)
                events.register(connection, selectors.EVENT_READ)
                events.register(children[connection][1], selectors.EVENT_READ, connection)
                _send(connection, pid=pid)
            else:
                connection = key.data
                pid, pidfd = children.pop(connection)
                events.unregister(pidfd)
                os.close(pidfd)
                _send(connection, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                with contextlib.suppress(KeyError):
                    events.unregister(connection)
                open_ones.discard(connection)
                connection.close()
        if not open_ones:
            return None


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
        if not head:
            return None
        (length,) = struct.unpack("=Q", head)
        return dict(json.loads(_exactly(connection, length))), descriptors
    except (OSError, EOFError):
        return None


def _be(request: dict[str, Any]) -> None:
    """Becomes `python COMMAND...`; what it raises ends this process as it would end that one."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:] = [path for path in sys.path if path != ""]
    word, *arguments = request["command"]
    if word == "-m":
        sys.argv = arguments
        sys.path.insert(0, request["cwd"])
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [word, *arguments]
        sys.path.insert(0, str(Path(word).resolve().parent))
        runpy.run_path(word, run_name="__main__")
