"""S3Writer: a file that becomes an object by its close."""

from __future__ import annotations

import io
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from ..checkpoint import Writer
from ._exceptions import errors

log = logging.getLogger("millrace")


if TYPE_CHECKING:

    class _File(io.BufferedIOBase, BinaryIO): ...  # what torch.save takes
else:
    _File = io.BufferedIOBase


class S3Writer(_File):
    """A write-only file over one object, which is there, whole and verified, when close() returns.

    Its bytes are on their way to the store as they are written. Leaving the `with` block by an exception leaves no
    object, nor does a writer that is never closed.
    """

    def __init__(self, stream: Writer) -> None:
        self.stream = stream
        self._position = 0
        self._ended = False

    def __enter__(self) -> S3Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        log.info("nothing is saved: %s: %s", kind.__name__, error)
        self._ended = True
        with errors:
            self.stream.__exit__(kind, error, trace)

    def write(self, data: Any) -> int:
        """All of the bytes; returns how many those are. S3Exception where earlier ones could not be uploaded."""
        if self._ended:
            raise ValueError("I/O operation on closed file.")
        with errors:
            count = self.stream.write(data)
        self._position += count
        return count

    def close(self) -> None:
        """Waits until the store has confirmed the object. May be called again, also by other threads."""
        ended, self._ended = self._ended, True
        if not ended:
            with errors:
                self.stream.close()

    @property
    def closed(self) -> bool:
        return self._ended

    def flush(self) -> None:
        """Nothing: full parts are on their way already."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self._ended

    def tell(self) -> int:
        return self._position

    def __del__(self) -> None:
        """Not closed: an object that was never closed does not exist."""
