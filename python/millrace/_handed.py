"""HandedKey: under which a loop's process hands its place in the epoch to its DataLoader workers."""

from __future__ import annotations

import multiprocessing
import os
import uuid
from typing import Any


class HandedKey:
    """Of one data set or loader. A copy has a key of its own, and so has each process that inherits this one, such as
    another rank; the workers of a loop have the key of the loop's process."""

    def __init__(self) -> None:
        self._text = uuid.uuid4().hex

    def of(self, in_worker: bool) -> str:
        """This process's, or in a worker that of the loop's process."""
        parent = multiprocessing.parent_process() if in_worker else None
        return f"{self._text}-{os.getpid() if parent is None else parent.pid}"

    def __deepcopy__(self, memo: dict[int, Any]) -> HandedKey:
        return HandedKey()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._text, os.getpid())


def _unpickled(text: str, pid: int) -> HandedKey:
    """In the process that pickled it, it is a copy."""
    key = HandedKey()
    if os.getpid() != pid:
        key._text = text
    return key
