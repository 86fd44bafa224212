"""The exceptions of millrace, and which one stands for which code of the C side."""

from __future__ import annotations

import errno
import logging

log = logging.getLogger("millrace")


class Error(OSError):
    """Something that millrace was asked for failed; the text names what, for which object, and what to do."""


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


_NO_MEMORY = 12


def warn(text: str) -> None:
    """A warning of the C side."""
    log.warning("%s", text)


def from_code(code: int, text: str) -> Exception:
    """The exception for an error of the C side."""
    error = _CLASSES.get(code, Error)(text)
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
