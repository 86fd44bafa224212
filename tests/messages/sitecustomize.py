"""The Python side of the recorder: exceptions and warnings of the package, while MILLRACE_TEST_MESSAGES names a file.

Python imports a module of this name by itself where it finds one; `scripts/messages.py record` puts it on the path.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any

FILE = os.environ.get("MILLRACE_TEST_MESSAGES")
PACKAGE = f"{os.sep}python{os.sep}millrace{os.sep}"


def note(text: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    line = f"{test}\t\t{' '.join(text.split())}\n".encode(errors="replace")
    fd = os.open(str(FILE), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def trace(frame: FrameType, event: str, argument: Any) -> Any:
    """As sys.settrace has it: frames of the package alone, and of those the exceptions alone."""
    if event == "call":
        if PACKAGE not in frame.f_code.co_filename:
            return None
        frame.f_trace_lines = False
        return trace
    if event == "exception" and argument[1] is not None:
        note(str(argument[1]))
    return trace


def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **others: Any) -> None:
    note(str(message))
    real_warn(message, category, stacklevel + 1, source, **others)


if FILE:
    real_warn = warnings.warn
    warnings.warn = warn
    threading.settrace(trace)
    sys.settrace(trace)
