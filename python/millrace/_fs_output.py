"""Files that millrace.fs writes: compressed, or kept until the end of fsspec's transaction."""

from __future__ import annotations

import io
from typing import Any

from fsspec.transaction import Transaction

from ._file import WholeOrNothing


class FileTransaction(Transaction):  # type: ignore[misc]
    """fsspec's, which of some versions goes on for ever where a file cannot be committed."""

    def complete(self, commit: bool = True) -> None:
        system = self.fs
        try:
            super().complete(commit)
        finally:
            while self.files:
                self.files.popleft().discard()
            if system is not None:
                system._intrans, system._transaction = False, None


class Output(WholeOrNothing, io.BufferedWriter):
    """A file that becomes an object by its close, or by the commit of fsspec's transaction."""

    def __init__(self, raw: Any, autocommit: bool) -> None:
        super().__init__(raw)
        self._autocommit = autocommit
        self._has_end = self._is_aborted = False

    def _publish(self) -> None:
        self._has_end = True
        if self._autocommit:
            self.commit()
        else:
            self.__dict__["write"] = self._refuse

    def _refuse(self, data: Any, /) -> int:
        raise ValueError("write to a file that is closed, and appears at the end of its transaction")

    def commit(self) -> None:
        if self._is_aborted:  # by an exception in its `with` block: the transaction goes on without it
            return
        if not self._has_end:  # text and compressed bytes may be on their way to it
            raw: Any = self.raw
            raw.abort()
            raise ValueError(f"{raw.uri}: it was not closed before the end of its transaction, and is not written")
        io.BufferedWriter.close(self)

    def abort(self) -> None:
        self._is_aborted = True
        raw: Any = self.raw
        raw.abort()

    discard = abort


class Compressed(WholeOrNothing, io.BufferedIOBase):
    """What is written goes through a codec into the object, which ends with it."""

    def __init__(self, codec: Any, out: Output) -> None:
        self._codec, self._out = codec, out

    @property
    def closed(self) -> bool:
        return bool(self._out.closed)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return int(self._codec.write(data))

    def tell(self) -> int:
        """Of what was written, before it is compressed."""
        return int(self._codec.tell())

    def _end(self) -> None:
        self._codec.close()

    def _publish(self) -> None:
        self._out.close()

    def abort(self) -> None:
        self._out.abort()
