"""S3Reader and its kinds, and the constructors that data sets and checkpoints take them by.

The bytes come from shared memory where a data set has had the object fetched, else by millrace.open's way: a reader
holds no copy of the object, and what it costs to seek is said of each kind.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, ClassVar, Protocol, runtime_checkable

from .._ring import Lease
from ._exceptions import errors

DEFAULT_BUFFER_SIZE = 8 << 20
DEFAULT_MAX_GAP_SIZE = 32 << 20


class Content(Protocol):
    """The bytes of an object."""

    @property
    def size(self) -> int: ...
    def read(self, size: int, at: int, /) -> bytes: ...
    def read_into(self, buffer: Any, at: int, /) -> int: ...
    def close(self) -> None: ...


class Held:
    """The Content of an object that is in memory: a lease, or bytes."""

    def __init__(self, data: Lease | bytes) -> None:
        self._data: Lease | bytes | None = data
        self._view = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._view)

    def read(self, size: int, at: int, /) -> bytes:
        if isinstance(self._data, bytes) and at == 0 and size >= len(self._data):
            return self._data
        return bytes(self._view[at : at + size])

    def read_into(self, buffer: Any, at: int, /) -> int:
        target = memoryview(buffer).cast("B")
        part = self._view[at : at + len(target)]
        target[: len(part)] = part
        return len(part)

    def close(self) -> None:
        data = self._data
        if isinstance(data, Lease):  # bytes stay, for a thread that is just reading them
            self._view, self._data = memoryview(b""), None
            data.release()


class _Failing:
    """get_stream of an object that could not be fetched."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def open(self, exact: bool) -> Content:
        raise self._error


if TYPE_CHECKING:

    class _File(io.BufferedIOBase, BinaryIO): ...  # what torch.load takes
else:
    _File = io.BufferedIOBase


class S3Reader(ABC, _File):
    """A read-only file over one object of S3. Nothing is asked for before the first read."""

    @property
    @abstractmethod
    def bucket(self) -> str: ...

    @property
    @abstractmethod
    def key(self) -> str: ...

    @abstractmethod
    def read(self, size: int | None = None) -> bytes: ...

    @abstractmethod
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int: ...

    @abstractmethod
    def tell(self) -> int: ...

    @abstractmethod
    def readinto(self, buf: Any) -> int: ...

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class _Reader(S3Reader):
    """What the kinds have in common. get_stream is the client's: its open() gives the Content."""

    EXACT: ClassVar[bool]  # whether a small read asks for its own bytes alone

    def __init__(
        self, bucket: str, key: str, get_object_info: Callable[[], Any], get_stream: Callable[..., Any]
    ) -> None:
        if not bucket:
            raise ValueError("Bucket should be specified")
        self._bucket, self._key = bucket, key
        self._get_object_info, self._get_stream = get_object_info, get_stream
        self._content: Content | None = None
        self._position = 0

    @property
    def bucket(self) -> str:
        return self._bucket

    @property
    def key(self) -> str:
        return self._key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} s3://{self._bucket}/{self._key}>"

    def prefetch(self) -> None:
        """Looks the object up now."""
        self._opened()

    def read(self, size: int | None = None) -> bytes:
        """Up to size bytes, or all that is left. S3Exception where they cannot be had."""
        if size is not None and not isinstance(size, int):
            raise TypeError(f"argument should be integer or None, not {type(size)!r}")
        content = self._opened()
        left = max(content.size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        data = self._read(content, count) if count else b""
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def readinto(self, buf: Any) -> int:
        try:
            target = memoryview(buf).cast("B")
        except TypeError:
            target = memoryview(b"")
        if target.readonly:
            raise TypeError(f"argument must be a writable bytes-like object, not {type(buf).__name__}")
        content = self._opened()
        got = self._read_into(content, target) if len(target) and self._position < content.size else 0
        self._position += got
        return got

    def readinto1(self, buf: Any) -> int:
        return self.readinto(buf)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """The new position, which is never behind the object's end."""
        for value in (offset, whence):
            if not isinstance(value, int):
                raise TypeError(f"integer argument expected, got {type(value)!r}")
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError("Seek must be passed SEEK_CUR, SEEK_SET, or SEEK_END")
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._length()
        if offset < 0:
            raise ValueError(f"negative seek value {offset}")
        self._position = min(offset, self._length()) if offset else 0
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.let_go()
        super().close()

    # ---- for data sets ----

    @property
    def stream(self) -> Any:
        """What opens the object."""
        return self._get_stream

    def take_from(self, stream: Any) -> None:
        self._get_stream = stream

    def hold(self, data: Lease | bytes) -> None:
        """The bytes, which were fetched already."""
        self._content = Held(data)

    def fail(self, error: Exception) -> None:
        """It could not be fetched: a read raises this."""
        self.take_from(_Failing(error))

    def keep(self) -> None:
        """A copy in place of a lease: the reader lives on, and shared memory is for what comes next."""
        if isinstance(self._content, Held):
            held = self._content
            self._content = Held(held.read(held.size, 0))
            held.close()

    def let_go(self) -> None:
        """No bytes are held any more: another read has to ask for them."""
        content, self._content = getattr(self, "_content", None), None
        if content is not None:
            content.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        held = self._content.read(self._content.size, 0) if isinstance(self._content, Held) else None
        return _unpickled, (type(self), self._pickled(), held)

    # ---- inside ----

    def _pickled(self) -> dict[str, Any]:
        names = ("_bucket", "_key", "_get_object_info", "_get_stream", "_position")
        return {name: getattr(self, name) for name in names}

    def _opened(self) -> Content:
        self._checkClosed()
        if self._content is None:
            with errors:
                self._content = self._get_stream.open(self.EXACT)  # type: ignore[attr-defined]
        return self._content

    def _length(self) -> int:
        listed = getattr(self._get_object_info, "info", None) if self._content is None else None
        return self._opened().size if listed is None else int(listed.size)

    def _read(self, content: Content, count: int) -> bytes:
        with errors:
            return content.read(count, self._position)

    def _read_into(self, content: Content, target: memoryview) -> int:
        with errors:
            return content.read_into(target, self._position)


class SequentialS3Reader(_Reader):
    """For reading from front to back: the next parts are fetched ahead, and seeking back costs a request at most."""

    EXACT = False


class RangedS3Reader(_Reader):
    """For parts of large objects: a read asks for its own bytes, or, where they are fewer than buffer_size, for that
    many, which later reads are served from. buffer_size: None is 8 MiB, 0 is no buffer."""

    EXACT = True

    def __init__(
        self,
        bucket: str,
        key: str,
        get_object_info: Callable[[], Any],
        get_stream: Callable[..., Any],
        buffer_size: int | None = None,
    ) -> None:
        super().__init__(bucket, key, get_object_info, get_stream)
        self._buffer_size = DEFAULT_BUFFER_SIZE if buffer_size is None else buffer_size
        self._buffer, self._buffer_at = b"", 0

    def let_go(self) -> None:
        self._buffer = b""
        super().let_go()

    def _pickled(self) -> dict[str, Any]:
        return {**super()._pickled(), "_buffer_size": self._buffer_size, "_buffer": b"", "_buffer_at": 0}

    def _read(self, content: Content, count: int) -> bytes:
        data = bytearray(count)
        got = self._read_into(content, memoryview(data))
        return bytes(data[:got])

    def _read_into(self, content: Content, target: memoryview) -> int:
        if isinstance(content, Held):
            return super()._read_into(content, target)
        at = self._position
        target = target[: max(content.size - at, 0)]
        done = self._from_buffer(target, at)
        rest = target[done:]
        if not len(rest):
            return done
        with errors:
            if len(rest) >= self._buffer_size:
                return done + content.read_into(rest, at + done)
            self._buffer = content.read(min(self._buffer_size, content.size - at - done), at + done)
        self._buffer_at = at + done
        return done + self._from_buffer(rest, at + done)

    def _from_buffer(self, target: memoryview, at: int) -> int:
        begin = at - self._buffer_at
        part = self._buffer[begin : begin + len(target)] if begin >= 0 else b""
        target[: len(part)] = part
        return len(part)


class DCPOptimizedS3Reader(_Reader):
    """For checkpoints of torch.distributed.checkpoint: a read asks for its own bytes, and going on for more of them."""

    EXACT = True


def _unpickled(cls: type[_Reader], state: dict[str, Any], held: bytes | None) -> _Reader:
    reader: _Reader = cls.__new__(cls)
    reader.__dict__.update(state, _content=None if held is None else Held(held))
    return reader


@runtime_checkable
class S3ReaderConstructorProtocol(Protocol):
    """What makes a reader: get_object_info() has the object's size, etag and last_modified; get_stream(start, end) is
    an iterator over the bytes of that range, or of the whole object."""

    def __call__(
        self, bucket: str, key: str, get_object_info: Callable[[], Any], get_stream: Callable[..., Any]
    ) -> S3Reader: ...


@runtime_checkable
class DCPS3ReaderConstructorProtocol(S3ReaderConstructorProtocol, Protocol):
    """One that is told what a plan will read."""

    def set_item_ranges_by_file(self, plan_items: Any, storage_data: Any, base_path: Any) -> None: ...


class DCPOptimizedConstructor:
    """S3ReaderConstructor.dcp_optimized(). Which ranges a plan reads changes nothing here: none other is fetched."""

    def __init__(self, max_gap_size: int | float = DEFAULT_MAX_GAP_SIZE) -> None:
        if max_gap_size < 0:
            raise ValueError("max_gap_size must be non-negative")
        self._max_gap_size = max_gap_size

    def set_item_ranges_by_file(self, plan_items: Any, storage_data: Any, base_path: Any) -> None:
        """Nothing."""

    def __call__(
        self, bucket: str, key: str, get_object_info: Callable[[], Any], get_stream: Callable[..., Any]
    ) -> S3Reader:
        return DCPOptimizedS3Reader(bucket, key, get_object_info, get_stream)


class S3ReaderConstructor:
    """The constructors that are there. docs/s3torchconnector.md says what each does here."""

    @staticmethod
    def sequential() -> S3ReaderConstructorProtocol:
        """Whole objects. What a data set reads by this is fetched ahead of the loop."""
        return partial(SequentialS3Reader)

    @staticmethod
    def range_based(buffer_size: int | None = None) -> S3ReaderConstructorProtocol:
        """Parts of objects: nothing is fetched before it is read."""
        return partial(RangedS3Reader, buffer_size=buffer_size)

    @staticmethod
    def dcp_optimized(max_gap_size: int | float = DEFAULT_MAX_GAP_SIZE) -> DCPS3ReaderConstructorProtocol:
        """For S3StorageReader, which takes it by default. max_gap_size is checked, and changes nothing."""
        return DCPOptimizedConstructor(max_gap_size)

    @staticmethod
    def default() -> S3ReaderConstructorProtocol:
        """sequential()."""
        return S3ReaderConstructor.sequential()

    @staticmethod
    def get_reader_type_string(constructor: S3ReaderConstructorProtocol | None) -> str:
        """ "sequential", "range_based", "dcp_optimized" or "unknown"."""
        if isinstance(constructor, DCPOptimizedConstructor):
            return "dcp_optimized"
        made = SequentialS3Reader if constructor is None else getattr(constructor, "func", None)
        return {SequentialS3Reader: "sequential", RangedS3Reader: "range_based"}.get(made, "unknown")  # type: ignore[arg-type]
