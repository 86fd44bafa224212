"""Objects that were looked up together: opened by readers, or read by ranges that are in flight together."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import _worker
from ._connection import Connection, with_room, write_names
from ._errors import from_code
from ._ring import Failure, Lane, Lease, Opened, RangeReader

BLOCK_BYTES = 8 << 20  # of one request; fewer where the arena is small
BLOCKS_AHEAD = 16  # bytes in flight, in blocks
WINDOW = 128  # requests in flight


class Range(NamedTuple):
    """Bytes [start, stop) of an object."""

    number: int  # the object's, by LookedUp.find
    start: int
    stop: int


class Piece(NamedTuple):
    """What came of a range: bytes, good until the next piece is taken, or why there are none."""

    which: int  # the number of the range
    data: Lease | Exception
    is_last: bool


class LookedUp:
    """The objects, at the supervisor, each in the version that was there. Closed with the last of its users."""

    def __init__(self, connection: Connection, uris: list[str]) -> None:
        """Looks up these URIs, one at least, all of one bucket: FileNotFoundError, PermissionError name one that is
        not to be had."""
        self.connection = connection
        self._users: set[RangeReader | None] = {None}  # None: who has made this
        self._opened = _open(connection, uris)
        self._number = self._opened.number
        try:
            connection.wait_listed(self._number)
            self._index = connection.client.index(self._number)
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> LookedUp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, reader: RangeReader | None = None) -> None:
        """This user needs it no more. Twice is harmless, also by two threads at once."""
        self._users.discard(reader)
        if not self._users:
            self._opened.close()

    def find(self, uri: str) -> tuple[int, int]:
        """The object's number, and its bytes."""
        number = self._index.find(_name(uri))
        return number, int(self._index[number][1])

    @property
    def block_bytes(self) -> int:
        """The most that one request asks for. An object of no more is verified before it is given."""
        return self.connection.client.block_bytes(self._number)

    def range_reader(self, uri: str, exact: bool) -> RangeReader:
        """For one more user, who calls close with it afterwards."""
        reader = self.connection.client.range_reader(self._number, self._index, self.find(uri)[0], uri, exact)
        self._users.add(reader)
        return reader

    def read(self, ranges: Iterable[Range]) -> Iterator[Piece]:
        """The ranges in their order, each in pieces of a block at most, many in flight. An empty one gives none."""
        lane = self._lane()
        block = self.block_bytes
        pieces = self._pieces(ranges, block)
        fed: deque[tuple[int, int, bool]] = deque()
        bytes_ahead = 0
        following = next(pieces, None)
        try:
            while fed or following is not None:
                while following is not None and len(fed) < WINDOW and (bytes_ahead < BLOCKS_AHEAD * block or not fed):
                    which, number, offset, length, is_last = following
                    lane.feed(number, which, offset, length)
                    fed.append((which, length, is_last))
                    bytes_ahead += length
                    following = next(pieces, None)
                which, length, is_last = fed.popleft()
                bytes_ahead -= length
                got = lane.next_fed()
                if got is None:
                    raise RuntimeError("the lane ended before all ranges were read: please report this")
                yield Piece(which, from_code(got.code, got.text) if isinstance(got, Failure) else got, is_last)
                if isinstance(got, Lease):
                    got.release()
        finally:
            lane.close()

    def whole(self, ranges: list[Range]) -> Iterator[tuple[int, bytes | Exception]]:
        """The number and the bytes of each range, or its first failure: in their order, and then the empty ones."""
        parts: list[bytes] = []
        failure: Exception | None = None
        for piece in self.read(ranges):
            if isinstance(piece.data, Exception):
                failure = failure or piece.data
            else:
                parts.append(bytes(piece.data))
            if piece.is_last:
                yield piece.which, failure or (parts[0] if len(parts) == 1 else b"".join(parts))
                parts, failure = [], None
        yield from ((at, b"") for at, each in enumerate(ranges) if each.start >= each.stop)

    @staticmethod
    def _pieces(ranges: Iterable[Range], block: int) -> Iterator[tuple[int, int, int, int, bool]]:
        for which, (number, start, stop) in enumerate(ranges):
            for offset in range(start, stop, block):
                length = min(block, stop - offset)
                yield which, number, offset, length, offset + length == stop

    def _lane(self) -> Lane:
        self.connection.wait_ready()
        lane, _ = self.connection.client.open_lane(self._number, self._index, WINDOW, 2, parent=_worker.parent())
        return lane


def _name(uri: str) -> str:
    """As the index has it: without the bucket; a file's is its path."""
    rest = uri.partition("://")[2]
    return rest if uri.startswith("file://") else rest.partition("/")[2]


def _open(connection: Connection, uris: list[str]) -> Opened:
    opened = Opened(connection.client)
    fd = write_names(dict.fromkeys(uris))
    try:
        with_room(connection, lambda: connection.client.open_ranged(fd, BLOCK_BYTES, opened))
    finally:
        os.close(fd)
    return opened
