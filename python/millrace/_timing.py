"""Where the time of a training loop goes: what a DataLoader's workers and its loop measure, batch by batch.

A worker notes when it begins a batch, has its samples, has memory for the batch, has collated, has packed and begins to
send it, and sends that with the batch (CLOCK_MONOTONIC, which the processes of a machine share). The loop notes when it
asks for the batch and has it. From both follows how long the loop waited, and for what: a worker that was still at it,
or the way from there. torch's queue sends on a thread of its own, which first needs the GIL: behind a transform in
Python that takes 5 ms, and is no part of the way. It costs a few clock readings a batch. The sums are a Meter
(shm/meter/), which the supervisor reads too; the rules that name a cause are there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Protocol

from . import _arguments
from ._errors import Error
from ._ring import Client, Meter, delay_ns, trace_made, tracing
from ._trace import span

# The clocks of CPU time cost 15 us a batch. One that is made in less than QUICK_NS has them read one time in
# QUICK_EVERY, so that they cost less than a hundredth in any case.
QUICK_NS = 2_000_000
QUICK_EVERY = 16


class Waits(Protocol):
    """A Lane: how long its reader has waited for objects, in all."""

    @property
    def waited_ns(self) -> int: ...


class Times(NamedTuple):
    """Of one batch, by the process that made it; ns."""

    worker: int
    began: int
    fetched: int  # the samples are there, transformed
    reserved: int  # there is memory for the batch
    collated: int
    packed: int
    sent: int  # the queue's thread begins to send it; without one: packed
    waited: int  # for objects, between began and fetched
    cpu: int  # of the whole process, between began and packed
    thread: int  # of that, of the thread that made it
    delay: int  # that this thread could have run, and no core was free


class Closed:
    """A batch that has come and is not opened yet."""

    def open(self) -> Any:
        raise NotImplementedError


class Timed:
    """A batch under way with its times."""

    __slots__ = ("arrived", "batch", "times")

    def __init__(self, batch: Any, times: Times) -> None:
        self.batch, self.times = batch, times
        self.arrived: int | None = None  # when it came to this process, if it was copied to a device since

    def __reduce__(self) -> tuple[Any, ...]:
        return Timed, (self.batch, self.times._replace(sent=time.monotonic_ns()))

    def open(self) -> Any:
        """The batch; the memory that it came in is its alone from here on."""
        if isinstance(self.batch, Closed):
            self.batch = self.batch.open()
        return self.batch

    def pin_memory(self) -> Timed:
        """torch's pinning asks what it does not know to do it itself."""
        from torch.utils.data._utils import pin_memory as pinning

        pin: Any = pinning.pin_memory
        self.batch = pin(self.open())
        return self


class _Making(threading.local):
    """The batch that this thread makes."""

    began = fetched = waited = cpu = thread = delay = 0
    took = QUICK_NS  # the one before, without its wait for samples
    count = 0
    measured = False  # whether its CPU time is
    shares: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of the time that it took: cpu, thread, delay


_making = _Making()


def begin(lane: Waits) -> None:
    _making.count += 1
    _making.measured = _making.took >= QUICK_NS or _making.count % QUICK_EVERY == 0
    if _making.measured:
        _making.cpu, _making.thread, _making.delay = time.process_time_ns(), time.thread_time_ns(), delay_ns()
    _making.began = time.monotonic_ns()
    _making.waited = lane.waited_ns


def fetched(lane: Waits) -> None:
    _making.waited = lane.waited_ns - _making.waited
    _making.fetched = time.monotonic_ns()


def each(batches: Iterator[list[Any]], lane: Waits) -> Iterator[list[Any]]:
    """The same lists of samples, timed."""
    while True:
        begin(lane)
        made = []
        for samples in batches:
            made.append(samples)
            break
        else:
            return
        del samples
        fetched(lane)
        yield made.pop()  # the loop's alone from here on


def times(worker: int, fetched: int, reserved: int, collated: int) -> Times:
    """Of the batch that this thread has just packed. fetched: before there was memory for it, for samples that came
    another way (a data set's own __getitems__)."""
    making, now = _making, time.monotonic_ns()
    if making.began == 0:
        return Times(worker, fetched, fetched, reserved, collated, now, now, 0, 0, 0, 0)
    took = making.took = max(now - making.began - making.waited, 1)
    if making.measured:  # those that follow are taken to be like it
        cpu, thread = time.process_time_ns() - making.cpu, time.thread_time_ns() - making.thread
        delay = max(delay_ns() - making.delay, 0)
        making.shares = cpu / took, min(thread, cpu) / took, delay / took
    cpu, thread, delay = (int(share * took) for share in making.shares)
    made = Times(worker, making.began, making.fetched, reserved, collated, now, now, making.waited, cpu, thread, delay)
    making.began = 0
    if tracing():
        trace_made(made)
    return made


class _Saving(threading.local):
    """What this thread has spent in calls of checkpoints."""

    ns = 0


_saving = _Saving()


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Around a call that may make the loop wait for a checkpoint. Not within another one."""
    began = time.monotonic_ns()
    try:
        with span("millrace: checkpoint"):
            yield
    finally:
        _saving.ns += time.monotonic_ns() - began


class LoopMeter:
    """A loader's meter, from one iteration to the next; a forked child makes its own.

    client: of the supervisor that reads it, once it is known. millrace.Error: there is none, and the loop measures for
    itself alone. batches: what its batches have counted so far (BatchArena.counts): batches, beside, held.
    """

    def __init__(self, workers: int, client: Callable[[], Client], batches: Callable[[], tuple[int, int, int]]) -> None:
        self._workers, self._client, self._batches = workers, client, batches
        self._meter: Meter | None = None
        self._pid = 0
        self._told: Client | None = None  # the supervisor that knows of it
        self._saved = 0
        self.epochs = ""  # log.epochs, as the supervisor says

    def __getstate__(self) -> dict[str, Any]:
        """A copy measures for itself."""
        return {**self.__dict__, "_meter": None, "_told": None, "_pid": 0}

    def begin(self, epoch: int, rank: int, world: int) -> None:
        """An iteration begins: what was measured until now is counted no more."""
        if self._meter is None or self._pid != os.getpid():
            self._meter, self._pid, self._told = Meter(self._workers, rank, world), os.getpid(), None
        # It is statistics: reading says what is wrong with the supervisor, which takes those of some loaders only.
        with contextlib.suppress(Error, ValueError):
            client = self._client()
            if client is not self._told:
                self.epochs = client.meter(self._meter.fileno())
                self._told = client
        self._saved = _saving.ns
        self._meter.begin(epoch, _cores(), _arguments.local_ranks(), self._batches(), self._told)

    def ask(self) -> int:
        """The loop wants its next batch: when (ns)."""
        return self._made().ask()

    def take(self, asked: int, times: Times, arrived: int | None) -> None:
        """It has it. arrived: when it was there to be copied to the device, if it was."""
        saved, self._saved = _saving.ns - self._saved, _saving.ns
        self._made().take(asked, time.monotonic_ns(), arrived or 0, max(saved, 0), times)

    def rest(self) -> None:
        """The loop wants no batch any more."""
        self._made().rest()

    def report(self) -> dict[str, Any]:
        """See DataLoader.stats. ValueError before the first begin()."""
        if self._meter is None:
            raise ValueError("no iteration of this loader has begun: there is nothing to report")
        try:
            return self._meter.report(self._batches(), self._told)
        except ValueError:  # the connection is closed
            return self._meter.report(self._batches(), None)

    def _made(self) -> Meter:
        assert self._meter is not None  # begin() comes first
        return self._meter


def _cores() -> int:
    return len(os.sched_getaffinity(0))
