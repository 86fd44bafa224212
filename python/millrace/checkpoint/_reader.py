"""reader(): an object of the store as a seekable file, read by parallel ranges through shared memory."""

from __future__ import annotations

import errno
import io
import operator
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _supervisor
from .._looked_up import LookedUp
from ._uri import Place, object_uri

if TYPE_CHECKING:
    from typing import BinaryIO

    from .. import _ring
    from .._connection import Connection

    class _File(io.RawIOBase, BinaryIO): ...  # as typeshed has io.FileIO
else:
    _File = io.RawIOBase


class SeekError(OSError, ValueError):
    """As of a file of the system, whose programs expect an OSError, and as of io.BytesIO."""


LINE_BYTES = 256  # that a line is expected to have at most
BUFFER_BYTES = 1 << 20  # of read1() and of copies of the standard library
MOST_BYTES = (1 << 63) - 1


class Reader(_File):
    """A readable, seekable binary file over one object; reader() makes it.

    Reads return all that was asked for, except at the object's end. Threads take turns. In a forked child it is of no
    use. It has no file descriptor (fileno() raises io.UnsupportedOperation), so nothing can map it.
    """

    _KIND = "checkpoint reader"  # in messages
    _EXACT = False  # whether a small read elsewhere asks for its own bytes alone, not for a block

    def __init__(self, uri: str, opened: LookedUp, ring: _ring.RangeReader) -> None:
        self.uri = uri
        self._opened: LookedUp | None = opened
        self._ring = ring
        self._size = ring.size
        self._at = 0
        self._turns: dict[int, threading.RLock] = {}

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__module__}.{type(self).__name__} {self.uri} {state}, {self._size} bytes>"

    @property
    def name(self) -> str:
        return self.uri

    @property
    def mode(self) -> str:
        return "rb"

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    @property
    def generation(self) -> int:
        """The version of the object that is read: ChangedError where it is replaced meanwhile."""
        return self._ring.generation

    @property
    def encoding(self) -> str:
        """ "gzip" where the store says so (Content-Encoding) of what has been read, which is compressed; else ""."""
        return self._ring.encoding

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, _data: Any, /) -> int:
        raise io.UnsupportedOperation(f"a {self._KIND} is for reading")

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        offset = _integer(offset)
        with self._turn():
            if whence == io.SEEK_CUR:
                offset += self._at
            elif whence == io.SEEK_END:
                offset += self._size
            elif whence != io.SEEK_SET:
                raise ValueError(f"whence is {whence}: it must be 0, 1 or 2")
            if offset < 0:
                raise SeekError(errno.EINVAL, f"seek to {offset}, before the start of {self.uri}")
            self._at = _integer(offset)
        return offset

    def readinto(self, buffer: Any, /) -> int:
        """Copies straight from shared memory into the buffer: it is filled, except at the object's end."""
        self._check()
        with self._turn():
            got = self._ring.read_into(buffer, self._at)
            self._at += got
        return got

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        most = -1 if size is None else _integer(size)
        with self._turn():
            data = self._ring.read(max(self._size - self._at, 0) if most < 0 else most, self._at)
            self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def getvalue(self) -> bytes:
        """The whole object, regardless of the position, which does not change; like io.BytesIO's."""
        self._check()
        return self._ring.read(self._size, 0)

    def getbuffer(self) -> memoryview:
        """A copy of the whole object that may be changed; as io.BytesIO has it, but the object stays as it is."""
        self._check()
        data = bytearray(self._size)
        got = self._ring.read_into(data, 0)
        return memoryview(data)[:got]

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(BUFFER_BYTES if size < 0 else size)

    def readinto1(self, buffer: Any, /) -> int:
        return self.readinto(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Up to and with the next newline, at most size bytes. Iterating gives these lines."""
        self._check()
        most = -1 if size is None else _integer(size)
        with self._turn():
            return self._line(self._size if most < 0 else most)

    def _line(self, left: int) -> bytes:
        pieces = []
        step = LINE_BYTES
        while left > 0:
            piece = self._ring.read(min(step, left), self._at)
            end = piece.find(b"\n") + 1
            if end > 0:
                piece = piece[:end]
            self._at += len(piece)
            pieces.append(piece)
            left = 0 if end > 0 or not piece else left - len(piece)
            step = min(4 * step, BUFFER_BYTES)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Releases the memory. May be called twice."""
        opened = getattr(self, "_opened", None)  # also where __init__ has not run
        if opened is not None:
            self._ring.close()  # RuntimeError in the middle of a read of this thread: it stays open
            opened.close(self._ring)
            self._opened = None
        super().close()

    def __enter__(self) -> Reader:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {self._KIND} cannot be pickled or copied: give its URI, and open it where it is used")

    def _check(self) -> None:
        if self._opened is None:
            raise ValueError(f"I/O operation on the closed {self._KIND} of {self.uri}")

    def _turn(self) -> threading.RLock:
        """For a read and the position that it moves. This process's: one that was held at a fork stays held in the
        child."""
        return self._turns.setdefault(os.getpid(), threading.RLock())


def _integer(value: Any) -> int:
    """Of numpy too. OverflowError, as io has it, for what no file reaches."""
    number = operator.index(value)
    if number > MOST_BYTES:
        raise OverflowError(f"{number} is more than the {MOST_BYTES} bytes that a file may have")
    return number


_kept: list[Connection] = []  # keeps the supervisor that was used last for the next one


def connection(maker: str = "a checkpoint reader", in_worker: bool = False) -> Connection:
    """The supervisor's, which stays for the next reader."""
    found = _supervisor.connection(maker=maker, in_worker=in_worker)
    if not _kept or _kept[0] is not found:
        _kept[:] = [found]
    return found


os.register_at_fork(after_in_child=_kept.clear)


def reader(uri: Place) -> Reader:
    """Opens an object for reading: "gs://bucket/name", "s3://bucket/name", or a path of this machine.

        with millrace.checkpoint.reader("gs://bucket/step1.pt") as file:
            state = torch.load(file, weights_only=True)

    The object is looked up now: FileNotFoundError names it where it is missing, PermissionError where it is denied.
    What is read is that version: millrace.ChangedError where it is replaced while it is read. Once every byte has been
    read its checksum is compared with the store's, and the read that completes it raises millrace.Error if they differ.

    Blocks come through the fetch workers into the memory that data sets use too (memory.arena_bytes), at most 12 of
    them ahead of the reader, and a few that small reads may come back to are kept: memory does not depend on the
    object's size.
    """
    return readers([uri])[0]


def readers(uris: Iterable[Place]) -> list[Reader]:
    """A reader for each of these objects, all of one bucket, looked up together. They may be read in parallel."""
    targets = [object_uri(uri) for uri in uris]
    return opened(connection(), targets, Reader) if targets else []


_Kind = TypeVar("_Kind", bound=Reader)


def opened(connection: Connection, targets: list[str], kind: type[_Kind]) -> list[_Kind]:
    """The readers of these URIs, one at least, through this connection."""
    made: list[_Kind] = []
    with LookedUp(connection, targets) as found:
        try:
            for target in targets:
                made.append(kind(target, found, found.range_reader(target, kind._EXACT)))
        except BaseException:
            for one in made:
                one.close()
            raise
    return made
