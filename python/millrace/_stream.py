"""Samples of a lane in the plan's order, with the policy for those that cannot be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Callable, Optional

from ._errors import Error, from_code, warn_often
from ._ring import Failure, Lane, Lease, Plan

Transform = Optional[Callable[[Any], Any]]  # of a Lease or a Sample

REPLACEMENTS = 8  # as in shm/index/plan.h
_REPLACES = 1 << 63  # marks what was fed as a replacement, as in src/ring.h
_MANY = 10  # samples of a stream that cannot be used: they are counted at its end
_BAD = object()


def failed(failure: Failure) -> Exception:
    return from_code(failure.code, failure.text)


class Stream:
    """One lane from its start to its end. Not for several threads."""

    def __init__(
        self,
        lane: Lane,
        plan: Plan,
        transform: Transform,
        on_error: str,
        error_of: Callable[[Failure], Exception] = failed,
        loop: Any = None,
    ) -> None:
        self.lane, self._plan = lane, plan
        self.loop = loop  # which the plan is of
        self._transform, self._on_error, self._error_of = transform, on_error, error_of
        self._stash: deque[Lease | Failure] = deque()  # taken on the way to a replacement
        self._bad = 0
        self.done = 0  # steps, or without batches samples, that are behind it; what is set before it begins is left out
        self._last: Exception | None = None

    def batches(self, worker: int, workers: int) -> Iterator[list[Any]]:
        """What that worker makes: its steps' samples, a list a step."""
        try:
            self.lane.start(self._plan, worker, workers, skip=self.done)
            for step in range(worker + self.done * workers, self._plan.steps, workers):
                first, count = self._plan.share(step)
                batch = self._batch(first, count)
                self.done += 1
                yield batch
                del batch  # the loop's alone from here on
        finally:
            self.close()

    def singles(self, worker: int, workers: int) -> Iterator[Any]:
        """The form without batches."""
        try:
            self.lane.start(self._plan, worker, workers, single=True, skip=self.done)
            for _ in range(self.done, self._plan.single_count(worker, workers)):
                sample = self._sample()
                self.done += 1
                if sample is not _BAD:
                    yield sample
                del sample
        finally:
            self.close()

    def numbered(self, numbers: Iterable[int]) -> Iterator[Any]:
        """The objects of these numbers, in this order. For a plan whose positions are the objects' numbers."""
        rest, window = iter(numbers), self.lane.window
        fed = 0
        try:
            while True:
                if fed <= window:  # as far ahead again as the lane asks for
                    for number in islice(rest, 2 * window - fed):
                        self.lane.feed(number, number)
                        fed += 1
                    if fed == 0:
                        return
                fed -= 1
                sample = self._sample()
                if sample is not _BAD:
                    yield sample
                del sample  # the loop's alone from here on
        finally:
            self.close()

    def close(self) -> None:
        self._stash.clear()
        self._last = None  # its traceback holds a sample
        self.lane.close()
        if self._bad > _MANY:
            text = "%d objects could not be read in this epoch of this worker"
            warn_often("an epoch with bad samples", text, self._bad)

    def _batch(self, first: int, count: int) -> list[Any]:
        samples = []
        for _ in range(count):
            sample = self._sample()
            if sample is not _BAD:
                samples.append(sample)
        if not samples:  # an empty batch cannot be collated, and a missing one would leave the other ranks waiting
            samples.append(self._replacement(first))
        return samples

    def _sample(self) -> Any:
        delivery = self._stash.popleft() if self._stash else self.lane.next()
        if delivery is None:
            raise Error("the lane ended before its plan: please report this")
        if self._on_error == "raise":
            return self._open(delivery)
        try:
            return self._open(delivery)
        except Exception as error:
            self._note(delivery, error)
            if self._on_error == "replace":
                return self._replacement(delivery.position)
            self.lane.count("skipped")
            return _BAD

    def _open(self, delivery: Lease | Failure) -> Any:
        if isinstance(delivery, Lease):
            return delivery if self._transform is None else self._transform(delivery)
        raise self._error_of(delivery)

    def _replacement(self, position: int) -> Any:
        """The first readable one of the positions that the plan names for this one."""
        for attempt in range(REPLACEMENTS):
            other = self._plan.replacement(position, attempt)
            if other is None:
                break
            delivery = self._fetch(other, position)
            try:
                sample = self._open(delivery)
            except Exception as error:
                self._note(delivery, error)
            else:
                self.lane.count("replaced")
                return sample
        raise Error(f"no readable replacement was found for the sample at position {position}") from self._last

    def _fetch(self, position: int, place: int) -> Lease | Failure:
        """One more object, in the place of one that failed, after all that was fed: a lane is taken in order, so the
        rest is put aside."""
        self.lane.feed(self._plan.object(position), place | _REPLACES)
        while True:
            delivery = self.lane.next_fed()
            if delivery is None:
                raise Error("the lane ended before a replacement came: please report this")
            fed_with = delivery._cookie if isinstance(delivery, Lease) else delivery.position
            if fed_with == place | _REPLACES:
                return delivery
            self._stash.append(delivery)

    def _note(self, delivery: Lease | Failure, error: Exception) -> None:
        self._bad += 1
        self._last = error
        what = delivery.name if isinstance(delivery, Lease) else f"object {delivery.index}"
        kind = type(error).__name__
        warn_often(f"a bad sample: {kind}", "on_error=%r: cannot use %s: %s: %s", self._on_error, what, kind, error)
