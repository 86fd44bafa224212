"""Objects that the store keeps compressed, with Content-Encoding: gzip."""

from __future__ import annotations

import zlib
from typing import Any, Callable

from ._errors import Error
from ._item import Item
from ._ring import Lease

MOST_BYTES = 1 << 30  # that come out of one object, unless another bound is given
_CHUNK_BYTES = 1 << 20  # what follows a member is copied: of a chunk, not of the object


class _TooMuch(Exception):
    pass


def _unpack(view: memoryview, most_bytes: int) -> bytes:
    """All members, one behind another, with the zeros that may pad them."""
    parts: list[bytes] = []
    left, at, member = most_bytes, 0, None
    while at < len(view):
        chunk = view[at : at + _CHUNK_BYTES]
        if member is None:
            padding = len(chunk) - len(bytes(chunk).lstrip(b"\0")) if parts else 0
            if padding:
                at += padding
                continue
            member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(chunk, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _TooMuch
        at += len(chunk) - len(member.unused_data)
        if member.eof:
            member = None
    if member is not None:
        raise EOFError("they end inside of a member")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def contents(data: Any, name: str, most_bytes: int = MOST_BYTES) -> bytes:
    """What an object holds whose bytes are gzip's. Error where they are not, or hold more than `most_bytes`."""
    try:
        return _unpack(memoryview(data), most_bytes)
    except (EOFError, zlib.error) as error:
        raise Error(
            f"{name}: its Content-Encoding is gzip, and its bytes are not: {error}; remove that from its metadata, "
            "or store it again"
        ) from error
    except _TooMuch:
        raise Error(
            f"{name}: its {memoryview(data).nbytes} bytes of gzip hold more than {most_bytes} bytes: is that what it "
            "should be? A data set's decompress=NUMBER is the most that may come out of one object"
        ) from None


class Decompress:
    """The transform of a data set that decompresses: an object stored as gzip becomes an Item of its contents."""

    def __init__(self, transform: Callable[[Any], Any] | None, most_bytes: int) -> None:
        self.transform, self.most_bytes = transform, most_bytes

    def __call__(self, lease: Lease) -> Any:
        sample: Lease | Item = lease
        if lease.encoding == "gzip":
            sample = Item(contents(lease, lease.name, self.most_bytes), lease.name)
            lease.release()
        return sample if self.transform is None else self.transform(sample)
