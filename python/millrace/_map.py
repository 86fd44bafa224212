"""MapDataset: objects by number, fetched a batch at a time, ahead of the batches that a loader has announced."""

from __future__ import annotations

import itertools
import logging
import operator
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import _timing, _torch
from ._dataset import Dataset
from ._errors import Error, warn_often
from ._ring import Failure, Lane, Lease
from ._stream import REPLACEMENTS, Transform

log = logging.getLogger("millrace")
_logged_no_look_ahead = False
_iterations = itertools.count(1)  # negative as a run, so that they are no loader's
ITERATED_AHEAD = 16


class Announced(list[int]):
    """A batch's object numbers, with those of the same worker's next batches that it has not been sent yet."""

    def __init__(self, indices: Iterable[int], run: int, ahead: list[list[int]]) -> None:
        super().__init__(indices)
        self.run = run  # which iteration: what was announced before an earlier one's end does not count
        self.ahead = ahead

    def __reduce__(self) -> tuple[Any, ...]:
        return Announced, (list(self), self.run, self.ahead)


def announce(batches: Iterable[Sequence[int]], workers: int, depth: int, run: int) -> Iterator[Announced]:
    """Each batch with the ones that its worker (k of `workers`, in turn) gets after it, `depth` deep.

    An exception of the sampler's comes after the batches that it gave.
    """
    source = (list(batch) for batch in batches)
    upcoming: deque[list[int]] = deque()
    number = 0
    failure: Exception | None = None
    while True:
        while len(upcoming) <= workers * depth and failure is None:
            try:
                following = next(source, None)
            except Exception as error:
                failure = error
                break
            if following is None:
                break
            upcoming.append(following)
        if not upcoming:
            if failure is None:
                return
            try:
                raise failure
            finally:
                del failure  # it refers to this frame
        batch = upcoming.popleft()
        # upcoming[workers * d - 1] is this worker's d-th batch after this one. Its first batch carries all of them.
        deep = range(1 if number < workers else max(depth, 1), depth + 1)
        ahead = [upcoming[workers * d - 1] for d in deep if workers * d <= len(upcoming)]
        yield Announced(batch, run, ahead)
        number += 1


class _Reader:
    """A process's lane of a map-style data set, and what was fed into it."""

    def __init__(self, lane: Lane, dataset: int) -> None:
        self.pid = os.getpid()
        self.dataset = dataset  # the supervisor's number of the listing that it reads
        self.run: int | None = None
        self.lane = lane
        self._fed: deque[int] = deque()
        self._is_torn = False  # a signal broke off a call that changes both the lane and _fed

    def is_ours(self) -> bool:
        return self.pid == os.getpid()

    def starts_with(self, indices: Sequence[int]) -> bool:
        """Whether what was fed and not taken begins with these (or is empty)."""
        if not self.ahead():
            return True
        return not self._is_torn and len(self._fed) >= len(indices) and all(a == b for a, b in zip(self._fed, indices))

    def feed(self, indices: Sequence[int]) -> None:
        self._is_torn = True
        self.lane.feed_all(indices)
        self._fed.extend(indices)
        self._is_torn = False

    def ahead(self) -> int:
        """How much was fed and not taken; where that is not known, more than nothing."""
        return len(self._fed) + self._is_torn

    def take(self) -> Lease | Failure:
        self._is_torn = True
        delivery = self.lane.next()
        if delivery is None:
            raise Error("the lane ended before a batch was whole: please report this")
        self._fed.popleft()
        self._is_torn = False
        return delivery

    def count(self, what: str) -> None:
        self.lane.count(what)

    def close(self) -> None:
        self.lane.close()


class MapDataset(Dataset):
    """The objects under a URI by number: `dataset[i]`, `len`, `.objects[i] -> (name, size)`.

    It never shards: samplers do. In millrace.DataLoader the next batches of a worker are fetched while it works; in a
    plain torch DataLoader each batch is fetched when it is asked for, all of it at once.
    """

    _torch_base = "Dataset"

    def __init__(
        self,
        source: Any,
        *,
        transform: Transform = None,
        on_error: str | None = None,
        window: int | None = None,
        writable: bool = False,
        decompress: bool | int = False,
        format: str | None = None,
    ) -> None:
        self._readers: list[_Reader | None] = []  # the second: of a transform that reads this data set; and so on
        self._level = 0
        self._locks: dict[int, threading.RLock] = {}  # a lane is for one thread at a time
        super().__init__(source, transform, on_error, window, writable, decompress, format)

    def __len__(self) -> int:
        return len(self._source.index())

    def __iter__(self) -> Iterator[Any]:
        """All of it, one by one, with the next few fetched ahead."""
        run, count, depth = -next(_iterations), len(self), min(ITERATED_AHEAD, self._window or ITERATED_AHEAD) - 1
        try:
            for i in range(count):
                with self._lock():
                    reader = self._lane_reader(1)
                    if reader.run != run or not reader.starts_with([i]):
                        if i > 0:
                            depth = 0  # something else is read in between, which would drop what is ahead each time
                        if reader.ahead():
                            self._close()
                            reader = self._lane_reader(1)
                        reader.run = run
                    reader.feed(range(i + reader.ahead(), min(i + 1 + depth, count)))
                    samples = self._take(1, reader)
                if samples:
                    yield samples.pop()  # the loop's alone from here on
        finally:
            with self._lock():
                left = self._reader
                if left is not None and left.is_ours() and left.run == run and left.ahead():
                    self._close()  # a loop that was left early: what is ahead is not needed

    def __getitem__(self, index: int) -> Any:
        number = self._number(index)
        with self._lock():
            return self._samples([number], self._lane_reader(1), True)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A batch: all of it is asked for at once, then what a millrace.DataLoader has announced."""
        numbers = [self._number(i) for i in indices]
        with self._lock():
            return self._batch(numbers, indices)

    def _batch(self, numbers: list[int], indices: Sequence[int]) -> list[Any]:
        reader = self._lane_reader(len(numbers))
        if not isinstance(indices, Announced):
            self._log_no_look_ahead()
            return self._samples(numbers, reader, True)
        if reader.run != indices.run or not reader.starts_with(numbers):
            self._close()  # what was fetched ahead is of no use any more
            reader = self._lane_reader(len(numbers))
            reader.run = indices.run
        if not reader.ahead():
            reader.feed(numbers)
        for batch in indices.ahead:
            reader.feed([self._number(i) for i in batch])
        _timing.begin(reader.lane)
        samples = self._take(len(numbers), reader, True)
        _timing.fetched(reader.lane)
        return samples

    def _pickled(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": [], "_level": 0, "_locks": {}}

    def _lock(self) -> threading.RLock:
        """This process's: one that was locked at a fork stays locked in the child."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _number(self, index: Any) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"an object is named by an integer, not by {type(index).__name__}") from None
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"object {number} of {count}")
        return number % count

    @property
    def _reader(self) -> _Reader | None:
        return self._readers[self._level] if self._level < len(self._readers) else None

    @_reader.setter
    def _reader(self, reader: _Reader | None) -> None:
        self._readers[self._level :] = [reader]  # those of deeper levels are made again

    def _lane_reader(self, batch: int) -> _Reader:
        reader = self._reader
        if reader is not None and reader.is_ours() and reader.dataset != self._source.number:
            self._close()  # another listing was loaded since
            reader = None
        if reader is None or not reader.is_ours():
            lane, _ = self._source.open_lane(self._window, batch, None, self._writable, self._decompress)
            reader = self._reader = _Reader(lane, self._source.number)
        return reader

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and reader.is_ours():
            reader.close()

    def _samples(self, numbers: list[int], reader: _Reader, some: bool = False) -> list[Any]:
        if reader.ahead():  # of an earlier iteration, or a batch that ended in an exception
            self._close()
            reader = self._lane_reader(len(numbers))
        reader.feed(numbers)
        return self._take(len(numbers), reader, some)

    def _take(self, count: int, reader: _Reader, some: bool = False) -> list[Any]:
        """What was fed; with `some` at least one sample: a collate function has no use for an empty batch, nor has a
        wrapper such as ConcatDataset for no sample."""
        deliveries = [reader.take() for _ in range(count)] if self._on_error != "raise" else None
        if deliveries is None:
            return [self._open(reader.take()) for _ in range(count)]
        samples = []
        for number, delivery in enumerate(deliveries):
            try:
                samples.append(self._open(delivery))
            except Exception as error:
                self._warn("cannot use object %d: %s", delivery.index, error)
                if self._on_error == "replace" or (some and number == count - 1 and not samples):
                    samples.append(self._replacement(delivery.index, error))
                    reader.count("replaced")
                else:
                    reader.count("skipped")
        return samples

    def _warn(self, text: str, *values: object) -> None:
        kind = f"{text} {type(values[-1]).__name__}"
        warn_often(kind, f"on_error=%r: {text}", self._on_error, *values)

    def _open(self, delivery: Lease | Failure) -> Any:
        if not isinstance(delivery, Lease):
            raise self._error_of(delivery)
        self._level += 1  # a transform may read this data set: it must not take what is on its way here
        try:
            return self._delivered(delivery)
        finally:
            self._level -= 1

    def _replacement(self, index: int, cause: Exception) -> Any:
        """The first readable one of a keyed few, the same each time; through a lane of its own."""
        plan = self._source.plan_of_numbers()
        lane, _ = self._source.open_lane(1, 1, None, self._writable, self._decompress)
        try:
            for attempt in range(REPLACEMENTS):
                other = plan.replacement(index, attempt)
                if other is None:
                    break
                lane.feed(other, other)
                delivery = lane.next()
                try:
                    if delivery is not None:
                        found = self._open(delivery)
                        self._warn("object %d takes the place of object %d", other, index)
                        return found
                except Exception as error:
                    self._warn("cannot use object %d either: %s", other, error)
        finally:
            lane.close()
        raise Error(f"no readable replacement was found for object {index}") from cause

    def _log_no_look_ahead(self) -> None:
        global _logged_no_look_ahead
        worker = _torch.worker()
        if not _logged_no_look_ahead and (worker is None or worker[0] == 0) and _torch.data_module() is not None:
            _logged_no_look_ahead = True
            log.info("each batch is fetched when it is asked for: millrace.DataLoader fetches the next ones ahead")
