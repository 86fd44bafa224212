"""A DataLoader worker, and the process whose loop it works for."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import select
import sys
from multiprocessing.util import Finalize
from typing import NoReturn

from . import _torch

_known = (0, 0)  # this process, and its parent when it was first asked for
_BEFORE_QUEUES = -4  # multiprocessing joins the threads of its queues at priority -5


def parent() -> int:
    """The pid of the loop's process as the first call sees it (a fork server's, where that is the parent); 0 outside of
    a worker.

    From the first call on the worker ends even where it still has a batch to send after that process has died: torch's
    queue would wait for ever to write what does not fit its pipe, of which the worker itself holds the other end. A
    worker whose main process has died before the first call ends there: torch too would take another for it.
    """
    global _known
    if _torch.worker() is None:
        return 0
    if _known[0] != os.getpid():
        _known = (os.getpid(), os.getppid())
        main = multiprocessing.parent_process()
        if main is not None and main.pid not in (None, _known[1]) and (_is_its_child() or _has_ended(main.pid)):
            _end()
        Finalize(None, _leave, exitpriority=_BEFORE_QUEUES)
    return _known[1]


def is_orphan() -> bool:
    """Whether that process has ended."""
    found = parent()
    return found != 0 and os.getppid() != found


def _is_its_child() -> bool:
    """Not a fork server's: another parent is enough then, and is seen a moment before a pidfd tells of the end."""
    return getattr(multiprocessing.current_process(), "_start_method", None) in ("fork", "spawn")


def _has_ended(pid: int) -> bool:
    # Not multiprocessing's is_alive(): the pipe that it looks at stays open in the workers that were forked later.
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))  # also before it is reaped
    finally:
        os.close(fd)


def _leave() -> None:
    if os.getppid() != _known[1]:
        _end()


def _end() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
