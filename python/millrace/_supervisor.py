"""Which supervisor this process talks to: the one in MILLRACE_SOCKET, or a private one, started here."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import stat
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from . import _torch
from ._connection import Connection, connect
from ._errors import Error, SupervisorGone

SOCKET_NAME = "socket"  # in a private supervisor's run folder
START_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_MS = 2000

log = logging.getLogger("millrace")
_started: list[subprocess.Popen[bytes]] = []  # kept, so that ended ones are reaped and none is complained about
_private: weakref.ref[Connection] | None = None
_numbers = itertools.count(1)


def find_program(name: str) -> Path:
    """MILLRACE_BIN, the package's own bin/, the build tree that the package lies in, then PATH."""
    package = Path(__file__).parent
    folders = [package / "bin", package.parent.parent / "bin"]
    if "MILLRACE_BIN" in os.environ:
        folders.insert(0, Path(os.environ["MILLRACE_BIN"]))
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    if found is None:
        raise Error(f"the program {name} was not found: set MILLRACE_BIN to its folder, or reinstall millrace")
    return Path(found)


def connection() -> Connection:
    """A connection for a new data set. Starts the private supervisor where there is none."""
    global _private
    path = os.environ.get("MILLRACE_SOCKET")
    if path:
        return connect(path, CONNECT_TIMEOUT_MS)
    if _torch.worker() is not None:
        raise Error(
            "a data set was made in a DataLoader worker, where no supervisor is started: make it in the main process, "
            "or start the job with `millrace run`"
        )
    known = _private() if _private is not None else None
    if known is not None and known.is_ours():
        with contextlib.suppress(SupervisorGone):
            known.client.check()
            return known
    found = _shared() if int(os.environ.get("LOCAL_WORLD_SIZE") or 1) > 1 else _own()
    _private = weakref.ref(found)
    return found


def _base() -> Path:
    """Where run folders lie (supervisor/run_folder.h). A start there removes those of supervisors that were killed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime, "millrace") if runtime.startswith("/") else Path(f"/tmp/millrace-{os.geteuid()}")
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{base} is not a folder that only this user may enter (mode 0700): remove it, or set XDG_RUNTIME_DIR"
        )
    return base


def _own() -> Connection:
    return _start(_base() / f"run-{os.getpid()}-{next(_numbers)}")


def _shared() -> Connection:
    """One private supervisor for the ranks of this node: the first to get the lock starts it."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if not job or job == "none":  # torchrun's default is not a name
        job = f"parent-{os.getppid()}"
    base = _base()
    folder = base / f"run-job-{''.join(c if c.isalnum() or c in '-_.' else '_' for c in job)[:64]}"
    with _locked(base):
        try:
            return connect(str(folder / SOCKET_NAME), 0)
        except SupervisorGone:
            pass
        log.warning(
            "starting a private supervisor for the %s ranks of this node; `millrace run -c F -- torchrun ...` gives "
            "the job one with a configuration",
            os.environ["LOCAL_WORLD_SIZE"],
        )
        return _start(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # let go with the descriptor, also by a death
        yield
    finally:
        os.close(fd)


def _start(folder: Path) -> Connection:
    command = [str(find_program("millrace")), "serve", "--private", "--run-dir", str(folder)]
    if os.environ.get("MILLRACE_CONFIG"):
        command += ["-c", os.environ["MILLRACE_CONFIG"]]
    else:
        command.append("-q")  # nobody asked for its progress; warnings and errors are shown
    _started[:] = [process for process in _started if process.poll() is None]
    # Out of our process group: a Ctrl-C is for us, and it ends after its last client.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    _started.append(process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return connect(str(folder / SOCKET_NAME), 100)
        except SupervisorGone:
            if process.poll() is not None:
                raise Error(
                    f"the private supervisor ended at once with status {process.returncode}; what it wrote to standard "
                    f"error says why ({' '.join(command)})"
                ) from None
            if time.monotonic() > deadline:
                process.kill()
                raise Error(f"the private supervisor did not start within {START_TIMEOUT_S:.0f} s") from None


def _forget_in_child() -> None:
    global _private
    _private = None
    _started.clear()


os.register_at_fork(after_in_child=_forget_in_child)
