"""Which supervisor this process talks to: the one in MILLRACE_SOCKET, or a private one, started here."""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import stat
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from . import _torch
from ._arguments import local_ranks
from ._connection import Connection, connect
from ._errors import Error, SupervisorGone

SOCKET_PATH_MAX = 107  # unix(7): sun_path has 108 bytes with its NUL
SOCKET_NAME = "socket"  # in a private supervisor's run folder
START_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_MS = 2000
PREPARE_PAUSE_S = 0.05
AHEAD_NICE = 5  # of work that nothing waits for yet

log = logging.getLogger("millrace")


class Settings(NamedTuple):
    """How a data set's private supervisor shall be configured. Data sets with equal settings share one."""

    toml: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    asked_by: tuple[str, ...] = ()  # what the user wrote, for the message that it was not applied

    @property
    def key(self) -> tuple[object, ...]:
        return self.toml, self.environment


NO_SETTINGS = Settings()
_preferred = NO_SETTINGS
_used: contextvars.ContextVar[Settings] = contextvars.ContextVar("millrace-settings")  # by using()
_started: list[subprocess.Popen[bytes]] = []  # kept, so that ended ones are reaped without a ResourceWarning
_private: dict[tuple[object, ...], weakref.ref[Connection]] = {}
_adopted: dict[tuple[object, ...], str] = {}  # sockets by the settings that they are for
_expects_writer = False
# The last connection of checkpoint writers stays: a private supervisor, its memory, and what of it this process has in
# its page tables serve the next checkpoint too.
_kept: Connection | None = None
_warned_ignored: set[tuple[str, ...]] = set()
_lock = threading.RLock()
_holds_folder = False  # this process, by _locked(); under _lock


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


def prefer(settings: Settings) -> None:
    """From now on connection() without settings takes these: for checkpoints, which any thread may open."""
    global _preferred
    if settings.key == NO_SETTINGS.key:
        return
    if _preferred.key not in (NO_SETTINGS.key, settings.key):
        raise ValueError(
            f"the checkpoints of one process go one way: {', '.join(settings.asked_by)} asks for another than an "
            "earlier storage_client did"
        )
    _preferred = settings


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[None]:
    """connection() without settings takes these in the block: for checkpoints of several stores in one process."""
    token = _used.set(settings)
    try:
        yield
    finally:
        _used.reset(token)


def preferred() -> Settings:
    return _used.get(_preferred)


def connection(settings: Settings = NO_SETTINGS, maker: str = "a data set", in_worker: bool = False) -> Connection:
    """A connection for something new. Starts a private supervisor where there is none with these settings; in a
    DataLoader worker only with in_worker, and then one for all workers of its parent.

    A supervisor that the user started, or configures by MILLRACE_CONFIG, keeps its configuration, with a warning.
    """
    found = _connection(settings, maker, in_worker)
    if settings.key in (NO_SETTINGS.key, preferred().key):  # those of checkpoints
        _prepare(found)
    return found


def keep(connection: Connection | None) -> None:
    global _kept
    _kept = connection


def expect_writer() -> None:
    """This process will save: its supervisor is told now if there is one, else as soon as there is."""
    global _expects_writer
    _expects_writer = True
    if os.environ.get("MILLRACE_SOCKET") or _known(preferred()) is not None:
        with contextlib.suppress(Error, OSError):  # who uses it will be told
            connection()


def _prepare(connection: Connection) -> None:
    if _expects_writer and not connection.prepared and _torch.worker() is None:
        connection.prepared = True
        keep(connection)
        with contextlib.suppress(Error, OSError):  # who uses it will be told
            if connection.client.prepare():  # the supervisor knows now, even if this process ends
                return
        thread = threading.Thread(target=_prepare_in_time, args=(connection,), name="millrace-prepare", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread: the first save does it
            thread.start()


def _prepare_in_time(connection: Connection) -> None:
    """Has the memory of checkpoints made, and enters it into this process's page tables."""
    with contextlib.suppress(Error, OSError):  # who uses it will be told
        mine = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, mine, os.getpriority(os.PRIO_PROCESS, mine) + AHEAD_NICE)
        while not (done := connection.client.prepare()):
            if done is None:
                time.sleep(PREPARE_PAUSE_S)


def _known(settings: Settings) -> Connection | None:
    """This process's connection to its private supervisor with these settings."""
    reference = _private.get(settings.key)
    found = reference() if reference is not None else None
    return found if found is not None and found.is_ours() else None


def _connection(settings: Settings, maker: str, in_worker: bool) -> Connection:
    if settings.key == NO_SETTINGS.key:
        settings = preferred()
    path = os.environ.get("MILLRACE_SOCKET")
    if path:
        _warn_ignored(settings, "this job's supervisor (MILLRACE_SOCKET) has a configuration of its own")
        return connect(path, CONNECT_TIMEOUT_MS)
    if _torch.worker() is not None and not in_worker:
        raise Error(
            f"{maker} was made in a DataLoader worker, where no supervisor is started: make it in the main process, "
            "or start the job with `millrace run`"
        )
    if os.environ.get("MILLRACE_CONFIG"):
        _warn_ignored(settings, "MILLRACE_CONFIG names the configuration")
        settings = NO_SETTINGS
    with _lock:  # threads that come together start one
        return _private_one(settings)


def _private_one(settings: Settings) -> Connection:
    known = _known(settings)
    if known is not None:
        with contextlib.suppress(SupervisorGone):
            known.client.check()
            return known
    found = _of_parent(settings)
    if found is None:
        together = local_ranks() > 1 or _torch.worker() is not None
        found = _shared(settings) if together else _own(settings)
    _private[settings.key] = weakref.ref(found)
    return found


def adopt(path: str, key: tuple[object, ...]) -> None:
    """In a process that was given a storage writer: the supervisor of the process which gave it, while it runs,
    rather than a private one of its own; for what has the settings of this key."""
    _adopted[key] = path


def _of_parent(settings: Settings) -> Connection | None:
    path = _adopted.get(settings.key)
    if path is not None:
        with contextlib.suppress(SupervisorGone):
            return connect(path, 0)
    return None


def _warn_ignored(settings: Settings, why: str) -> None:
    if settings.asked_by and settings.asked_by not in _warned_ignored:
        _warned_ignored.add(settings.asked_by)
        log.warning("not applied: %s; %s, which counts", ", ".join(settings.asked_by), why)


def _base() -> Path:
    """Where run folders lie (supervisor/run_folder.h). A start there removes those of supervisors that were killed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime, "millrace") if runtime.startswith("/") else Path(f"/tmp/millrace-{os.geteuid()}")
    try:
        base.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Error(
            f"cannot make the run folder {base}: {error.strerror} (set XDG_RUNTIME_DIR to a folder of yours)"
        ) from error
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{base} is not a folder that only this user may enter (mode 0700): remove it, or set XDG_RUNTIME_DIR"
        )
    return base


def _own(settings: Settings) -> Connection:
    return _start(_base() / f"run-{os.getpid()}-{secrets.token_hex(4)}", settings)


def _job_folder(base: Path, job: str, other: str) -> Path:
    """The run folder of a job of that name. A name that a socket's path has no room for is cut, and has a digest of
    the whole instead, so that two jobs whose long names begin alike do not share a supervisor."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in job)
    room = SOCKET_PATH_MAX - len(os.fsencode(base / f"run-job-{other}" / SOCKET_NAME))
    if len(name.encode()) > room:
        digest = "-" + hashlib.sha256(job.encode()).hexdigest()[:8]
        if room < len(digest):
            raise ValueError(f"{base} is too long for a socket's path: set XDG_RUNTIME_DIR to a shorter one")
        name = name.encode()[: room - len(digest)].decode(errors="ignore") + digest
    return base / f"run-job-{name}{other}"


def _shared(settings: Settings) -> Connection:
    """One private supervisor for the ranks of this node, or the DataLoader workers of a process: the first to get the
    lock starts it."""
    in_worker = _torch.worker() is not None
    job = None if in_worker else os.environ.get("TORCHELASTIC_RUN_ID")
    if not job or job == "none":  # torchrun's default is not a name
        job = f"parent-{os.getppid()}"
    job += _container()
    base = _base()
    other = "" if settings.key == NO_SETTINGS.key else "-" + hashlib.sha256(repr(settings.key).encode()).hexdigest()[:8]
    folder = _job_folder(base, job, other)
    with _locked(base):
        try:
            return connect(str(folder / SOCKET_NAME), 0)
        except SupervisorGone:
            pass
        if not in_worker:
            log.warning(
                "starting a private supervisor for the %s ranks of this node; `millrace run -c F -- torchrun ...` "
                "gives the job one with a configuration",
                os.environ["LOCAL_WORLD_SIZE"],
            )
        return _start(folder, settings)


def _container() -> str:
    """Of containers that share the folder of run folders each has its own supervisor, which sees no other's
    processes."""
    try:
        return f"-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other process of this user starts one. Error in a signal handler that came in the middle of this: it would
    wait for its own process."""
    global _holds_folder
    if _holds_folder:
        raise Error(
            "a signal handler came while the supervisor of this node's ranks is being started: nothing can be opened "
            "before that is done"
        )
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _holds_folder = True
        fcntl.flock(fd, fcntl.LOCK_EX)  # released with the descriptor, also by a death
        yield
    finally:
        _holds_folder = False
        os.close(fd)


def _start(folder: Path, settings: Settings) -> Connection:
    command = [str(find_program("millrace")), "serve", "--private", "--run-dir", str(folder)]
    if os.environ.get("MILLRACE_CONFIG"):
        command += ["-c", os.environ["MILLRACE_CONFIG"]]
    else:
        command.append("-q")  # its progress was not asked for; warnings and errors are shown
    if settings.toml:
        command += ["-c", "/proc/self/fd/0"]  # no file that a dead process could leave behind
    _started[:] = [process for process in _started if process.poll() is None]
    # What ends this function before there is a connection (a signal handler's exception, no memory) closes our end of
    # its standard output, and so ends it.
    ours, its = socket.socketpair()
    with ours:
        with its, text_file(settings.toml) as stdin:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=its.fileno(),
                env={**os.environ, **dict(settings.environment)},
                start_new_session=True,  # a Ctrl-C is for us, and it ends after its last client
            )
        _started.append(process)
        return _first_connection(process, folder, command)


def _first_connection(process: subprocess.Popen[bytes], folder: Path, command: list[str]) -> Connection:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return connect(str(folder / SOCKET_NAME), 100)
        except SupervisorGone:
            if process.poll() is not None:
                why = (
                    f"the private supervisor ended at once with status {process.returncode}; what it wrote to standard "
                    f"error says why ({' '.join(command)})"
                )
                raise Error(_refused() or why) from None
            if time.monotonic() > deadline:
                process.kill()
                raise Error(f"the private supervisor did not start within {START_TIMEOUT_S:.0f} s") from None


def _refused() -> str | None:
    """What is wrong with the configuration that MILLRACE_CONFIG names: a notebook does not show standard error."""
    path = os.environ.get("MILLRACE_CONFIG")
    if not path:
        return None
    command = [str(find_program("millrace")), "check", "-c", path]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:  # such as a pipe that nobody writes into any more
        return None
    if done.returncode == 0:
        return None
    return f"MILLRACE_CONFIG: {done.stderr.decode(errors='replace').strip().removeprefix('millrace[check] error: ')}"


def toml_text(sections: dict[str, dict[str, Any]]) -> str:
    """A configuration file of these sections."""
    lines = []
    for section, keys in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in keys.items()]
    return "".join(f"{line}\n" for line in lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {json.dumps(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


def text_file(text: str) -> IO[bytes]:
    """A file of this text, in memory."""
    fd = os.memfd_create("millrace-settings", os.MFD_CLOEXEC)
    file = os.fdopen(fd, "w+b")
    file.write(text.encode())
    file.flush()
    return file


def _forget_in_child() -> None:
    global _lock, _holds_folder
    _lock = threading.RLock()  # another thread may have held it
    _holds_folder = False
    keep(None)
    _private.clear()
    _started.clear()


os.register_at_fork(after_in_child=_forget_in_child)
