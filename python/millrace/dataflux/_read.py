"""Objects of a bucket by their names, in any order: through a listing that has them, else looked up one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from typing import Any, Callable, NamedTuple

from .._connection import Connection, Source
from .._item import Item
from .._stream import Stream
from ..checkpoint import _reader
from . import _google

AT_ONCE = 16  # objects that are looked up and read together

Transform = Callable[[Any], Any]


def pairs(source: Source) -> list[tuple[str, int]]:
    """(name, size) of each object, without names that end in a slash, as the reference lists them."""
    return [pair for pair in source.index() if not pair[0].endswith("/")]


def has_folders(source: Source) -> bool:
    """Whether the listing has such names: millrace leaves out those that stand for folders, which are empty."""
    return any(name.endswith("/") for name, _ in source.index())


class Reading(NamedTuple):
    """How the objects of a listing are read: the choices of a data set."""

    source: Source
    transform: Transform
    on_error: str = "raise"
    window: int | None = None
    writable: bool = False

    def numbered(self, numbers: Iterable[int]) -> Iterator[Any]:
        lane, _ = self.source.open_lane(self.window, 1, None, self.writable)
        plan = self.source.plan_of_numbers()
        return Stream(lane, plan, self.transform, self.on_error, _google.failed).numbered(numbers)

    def named(self, bucket: str, names: Iterable[str]) -> Iterator[Any]:
        index = self.source.index()

        def number(name: str) -> int | None:
            try:
                return index.find(name)
            except KeyError:
                return None

        places = ((number(name), name) for name in names)
        for is_listed, run in groupby(places, key=lambda place: place[0] is not None):
            if is_listed:
                yield from self.numbered(at for at, _ in run if at is not None)
            else:
                yield from looked_up(self.source.connection(), bucket, (name for _, name in run), self.transform)


def looked_up(connection: Connection, bucket: str, names: Iterable[str], transform: Transform) -> Iterator[Any]:
    """Each object as it is now, an Item to transform. FileNotFoundError where there is none."""
    rest = iter(names)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while some := [f"gs://{bucket}/{name}" for name in islice(rest, AT_ONCE)]:
            with _google.errors():
                opened = _reader.opened(connection, some, _reader.Reader)
            try:
                for item in pool.map(lambda reader: _whole(reader, bucket), opened):
                    yield transform(item)
            finally:
                for reader in opened:
                    reader.close()


def _whole(reader: _reader.Reader, bucket: str) -> Item:
    with _google.errors():
        data = reader.read()
        return Item(data, reader.name[len(f"gs://{bucket}/") :], reader.encoding)
