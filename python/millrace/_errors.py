"""The exceptions of millrace, and which one stands for which code of the C side."""

from __future__ import annotations

import errno
import logging
import time

log = logging.getLogger("millrace")


class Error(OSError):
    """Something that millrace was asked for failed; the text names what, for which object, and what to do."""

    _code = 0  # of the C side


class ChangedError(Error):
    """An object is not the one that was listed: it was replaced or changed since."""


class SupervisorGone(Error, ConnectionError):
    """The supervisor has ended, or gives no sign of life: nothing new can be read. Views that are held stay valid."""


for _public in (Error, ChangedError, SupervisorGone):
    _public.__module__ = "millrace"  # what a traceback shows is the name that a user catches

# enum mr_code of base/error.h. What is not here is an Error.
_CLASSES: dict[int, type[Exception]] = {
    1: ValueError,  # usage
    2: ValueError,  # configuration
    3: FileNotFoundError,
    4: FileExistsError,
    5: PermissionError,
    6: ChangedError,
    13: SupervisorGone,
}


NETWORK, TIMEOUT, BUSY = 9, 10, 11  # what is repeated until retry.deadline_ms
_NO_MEMORY = 12


def warn(text: str) -> None:
    """A warning of the C side."""
    log.warning("%s", text)


_EVERY_S, _AT_ONCE = 10.0, 10  # as in base/log.c
_spent: dict[str, float] = {}  # for each kind of line, when all ten may be written again
_left_out: dict[str, int] = {}


def warn_often(kind: str, text: str, *values: object) -> None:
    """A warning that may come by the thousand: ten of a kind at once, then one in 10 s, with how many were left out."""
    now = time.monotonic()
    spent = max(_spent.get(kind, now), now) + _EVERY_S
    if spent - now > _AT_ONCE * _EVERY_S:
        _left_out[kind] = _left_out.get(kind, 0) + 1
        return
    _spent[kind] = spent
    left_out = _left_out.pop(kind, 0)
    log.warning(text + (f" (before it, {left_out} more of the kind)" if left_out else ""), *values)


def from_code(code: int, text: str) -> Exception:
    """The exception for an error of the C side."""
    error = _CLASSES.get(code, Error)(text)
    if isinstance(error, Error):
        error._code = code
    if code == _NO_MEMORY and isinstance(error, OSError):  # the code stands for memory, descriptors, room of any kind
        error.errno = errno.ENOSPC if "No space left on device" in text else errno.ENOMEM
    return error


# mr_code_name of base/error.c, as the programs' JSON has it.
_NAMES = {
    "usage": 1,
    "configuration": 2,
    "not found": 3,
    "exists": 4,
    "denied": 5,
    "changed": 6,
    "no memory": _NO_MEMORY,
    "gone": 13,
}


def from_name(name: str, text: str) -> Exception:
    """The exception for an error that a program has printed."""
    return from_code(_NAMES.get(name, 0), text)
