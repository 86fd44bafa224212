"""What becomes of an object once all of its bytes are in shared memory: Saved, Save, and the thread that waits."""

from __future__ import annotations

import atexit
import concurrent.futures
import copy
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from .. import _timing
from .._errors import SupervisorGone, from_code
from . import _changes

if TYPE_CHECKING:
    from .. import _ring
    from .._connection import Connection

log = logging.getLogger("millrace")

SLICE_MS = 100
SEVERAL_MS = 20  # of each, where one thread waits for several
GONE = 13  # enum mr_code of base/error.h


def without_frames(error: Exception) -> Exception:
    """A copy to keep, or to raise of one that is kept: a traceback holds the caller's frames, and so what it saves."""
    copied = copy.copy(error)
    if isinstance(error, OSError) and isinstance(copied, OSError):
        copied.errno = error.errno
    return copied


class Saved(NamedTuple):
    """An object that is there: the store has confirmed the checksum of the whole."""

    uri: str
    size: int  # bytes
    generation: int  # of the object in the store; for a file, as `millrace ls -l` shows it
    crc32c: int


class Save(concurrent.futures.Future[Saved]):
    """A promised save: every byte is in shared memory, and the upload continues even if this process dies.

    A concurrent.futures.Future whose result is Saved. It cannot be cancelled. A failure that nobody has asked for (by
    result() or exception()) is raised by the next writer(), written to standard error at exit, and logged.
    """

    def __init__(self, uri: str, ring: _ring.Writer, connection: Connection) -> None:
        super().__init__()
        self.uri = uri
        self._ring = ring
        self._connection: Connection | None = connection  # keeps a private supervisor
        self._pid = os.getpid()
        self._size = ring.bytes
        self._outcome: tuple[bool, int, str, int, int] | None = None
        self._gone_at: float | None = None
        self._reported = False
        self._error: BaseException | None = None
        self.set_running_or_notify_cancel()  # from here on cancel() returns False

    def progress(self) -> tuple[int, int]:
        """(bytes that the store has confirmed, bytes of the object). Does not wait."""
        if self.done() and self._error is None:
            return self._size, self._size
        return self._ring.stored(), self._size

    def result(self, timeout: float | None = None) -> Saved:
        """Waits up to `timeout` seconds (None: forever), and raises the failure of the save."""
        self._check_process()
        try:
            with _timing.saving():
                left = _waiter.wait(self, timeout)
                error = super().exception(left)
                if isinstance(error, Exception):
                    raise without_frames(error)
                return super().result(left)
        finally:
            self._mark_reported()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as result() does; the failure of the save, or None."""
        self._check_process()
        try:
            return super().exception(_waiter.wait(self, timeout))
        finally:
            self._mark_reported()

    def _mark_reported(self) -> None:
        """The program has been told the outcome. Until then the supervisor counts a failure as unreported."""
        if self.done():
            self._note_reported()

    def _note_reported(self) -> None:
        if not self._reported:
            self._reported = True
            self._ring.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid() and not self.done():
            raise RuntimeError(f"the save of {self.uri} belongs to the process before the fork, and is awaited there")

    def _poll(self, timeout_ms: int) -> bool:
        """Waits briefly; True once it is decided. For one thread at a time. What a signal handler raises comes out."""
        if self._outcome is None:
            self._outcome = self._ring.outcome(timeout_ms)
        if self._outcome is None:
            gone = self._check_supervisor()
            if gone is not None:
                self._end(gone)
            return gone is not None
        done, code, text, generation, crc32c = self._outcome  # kept: a signal may break off what follows
        self._end(None if done else from_code(code or GONE, text), generation, crc32c)
        return True

    def _check_supervisor(self) -> SupervisorGone | None:
        """The write worker finishes what is promised without the supervisor, as long as it may."""
        try:
            if self._connection is not None:
                self._connection.client.check()
            self._gone_at = None  # it was stopped, and continues
        except SupervisorGone as error:
            if self._gone_at is None:
                self._gone_at = time.monotonic()
                log.warning("%s; its write worker may still finish the save of %s", error, self.uri)
            elif time.monotonic() > self._gone_at + self._ring.drain_s + 1:
                return SupervisorGone(
                    f"the save of {self.uri} is not confirmed: {error}; and its write worker has not recorded within "
                    f"checkpoint.drain_s ({self._ring.drain_s} s) whether the object is there: check it"
                )
        return None

    def _end(self, error: BaseException | None, generation: int = 0, crc32c: int = 0) -> None:
        self._connection = None
        if self.done():
            if self._error is not None:  # a signal broke it off before it was watched
                _waiter.note_failure(self)
            return
        _changes.note()
        if error is None:
            self._ring.close()
            self.set_result(Saved(self.uri, self._size, generation, crc32c))
            return
        log.error("the save of %s failed: %s", self.uri, error)
        self._error = error
        _waiter.note_failure(self)  # before its result can be had: the next writer, and the exit, look there
        self.set_exception(error)


class _Waiter:
    """One thread per process that waits for all saves that no caller waits for. It does not delay the exit.

    Where no thread can be had (a limit of processes, or Python is ending), whoever asks for a result waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may ask too
        self._turn = threading.RLock()  # of who polls
        self._pending: list[Save] = []
        self._failed: list[Save] = []
        self._running = False  # it has been begun, or is about to be
        self._alive = False  # it polls

    def add(self, save: Save) -> None:
        with self._lock:
            self._pending.append(save)
        self._begin()

    def wait(self, save: Save, timeout: float | None) -> float | None:
        """Returns once the thread polls, the save has ended, or the time is over: how much of it is left."""
        end = None if timeout is None else time.monotonic() + timeout
        while not save.done() and not (self._alive and save in self._pending):
            self._begin()
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            with self._turn:
                ended = save._poll(SLICE_MS if left is None else min(SLICE_MS, int(left * 1000) + 1))
            if ended:
                self._ended(save)
        return None if end is None else max(end - time.monotonic(), 0)

    def _begin(self) -> None:
        with self._lock:
            if self._running or not self._pending:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="millrace-saves", daemon=True).start()
        except RuntimeError:
            self._running = False

    def note_failure(self, save: Save) -> None:
        """It still pends: a signal may break off what follows, and it is then polled again."""
        with self._lock:
            if save in self._pending and save not in self._failed and not save._reported:
                self._failed.append(save)

    def failures(self) -> list[Save]:
        """Saves that failed and whose failure was never asked for; each is returned once."""
        with self._lock:
            found, self._failed = [save for save in self._failed if not save._reported], []
        return found

    def _run(self) -> None:
        self._alive = True
        while True:
            with self._lock:
                pending = list(self._pending)
                if not pending:
                    self._running = self._alive = False
                    return
            for save in pending:
                with self._turn:
                    try:
                        ended = save._poll(SLICE_MS if len(pending) == 1 else SEVERAL_MS)
                    except Exception as error:  # of ours; the others shall not be left without an answer
                        save._end(error)
                        ended = True
                if ended:
                    self._ended(save)

    def _ended(self, save: Save) -> None:
        with self._lock:
            if save in self._pending:
                self._pending.remove(save)


_waiter = _Waiter()


def watch(save: Save) -> None:
    """Lets the process's thread wait for this save."""
    _waiter.add(save)


def raise_unreported() -> None:
    """Raises the failures of earlier saves that were never asked for, once."""
    failures = _waiter.failures()
    if not failures:
        return
    for save in failures:
        save._note_reported()
    for other in failures[1:]:
        log.error("the save of %s before this one failed too: %s", other.uri, other._error)
    first = failures[0]
    cause = first._error
    text = f"the save of {first.uri} before this one failed: {cause}"
    error: BaseException = SupervisorGone(text)
    if isinstance(cause, Exception):
        error = type(cause)(text)
        if isinstance(cause, OSError) and isinstance(error, OSError):
            error.errno = cause.errno
    raise error from cause


def _print_unreported() -> None:
    for save in _waiter.failures():
        print(f"millrace: the save of {save.uri} failed, and nothing asked for it: {save._error}", file=sys.stderr)


def _forget_in_child() -> None:
    global _waiter
    _waiter = _Waiter()  # those saves are the parent's


atexit.register(_print_unreported)
os.register_at_fork(after_in_child=_forget_in_child)
