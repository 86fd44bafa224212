"""What becomes of an object's bytes: data_format_fn over them, decompressed where the reference decompresses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

from .. import _gzip
from .._item import Item
from .._ring import Lease

MOST_COMPOSED = 32  # objects in one composed object, as the store has it

Pair = tuple[str, int]


class Alone:
    """Which of the objects that one call reads the reference downloads alone, by name.

    It composes runs of up to 32 objects, until one has made the sum of their sizes exceed `limit`; a run of one is
    downloaded alone, and so is an object above the limit. Each of its threads has an equal part of the objects.
    """

    def __init__(self, objects: Callable[[], Sequence[Pair]], limit: int, threads: int = 1) -> None:
        self._objects, self._limit, self._threads = objects, limit, threads
        self._names: set[str] | None = None

    def __call__(self, name: str) -> bool:
        if self._names is None:
            objects = self._objects()
            share = max(1, -(-len(objects) // self._threads))
            parts = (objects[at : at + share] for at in range(0, len(objects), share))
            self._names = {name for part in parts for name in self._of(part)}
        return name in self._names

    def _of(self, objects: Sequence[Pair]) -> Iterator[str]:
        at = 0
        while at < len(objects):
            run = size = 0
            if objects[at][1] <= self._limit:
                while at + run < len(objects) and size <= self._limit and run < MOST_COMPOSED:
                    size += objects[at + run][1]
                    run += 1
            if run <= 1:
                yield objects[at][0]
            at += max(run, 1)


class Format:
    """The transform of a drop-in data set: data_format_fn over the object's bytes, which are the function's own.

    alone: None where every object is downloaded alone. Google's client then decompresses what is stored with
    Content-Encoding: gzip, and it does not decompress parts of a composed object.
    """

    def __init__(self, function: Callable[[bytes], Any], alone: Alone | None = None) -> None:
        self.function, self.alone = function, alone

    def __call__(self, sample: Lease | Item) -> Any:
        decompresses = sample.encoding == "gzip" and (self.alone is None or self.alone(sample.name))
        return self.function(_gzip.contents(sample, sample.name) if decompresses else bytes(sample))
