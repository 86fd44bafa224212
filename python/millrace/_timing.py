"""Where the time of a training loop goes: what a DataLoader's workers and its loop measure, batch by batch.

A worker notes when it begins a batch, has its samples, has memory for the batch, has collated and has packed it, and
sends that with the batch (CLOCK_MONOTONIC, which the processes of a machine share). The loop notes when it asks for the
batch and has it. From both follows how long the loop waited, and for what: a worker that was still at it, or the way
from there. It costs a few clock readings a batch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

STAGES = ("store", "transform", "collate", "extent", "transport", "device")
RARE = ("extent", "device")  # left out of the line where they are nothing
LEAST_CPU_SHARE = 0.25  # workers that wait themselves may be more than there are cores, but not any number
HEALTHY = 0.05  # share of a step's time; below it nothing is named
_NS = 1e-9


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
    waited: int  # for objects, between began and fetched
    cpu: int  # of the whole process, between began and packed


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
        return Timed, (self.batch, self.times)

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

    began = fetched = waited = cpu = 0


_making = _Making()


def begin(lane: Waits) -> None:
    _making.began, _making.cpu = time.monotonic_ns(), time.process_time_ns()
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
        return Times(worker, fetched, fetched, reserved, collated, now, 0, 0)
    cpu = time.process_time_ns() - making.cpu
    made = Times(worker, making.began, making.fetched, reserved, collated, now, making.waited, cpu)
    making.began = 0
    return made


class Totals:
    """What a loop has seen of its batches since its iteration began. The first batch is counted apart: with it comes
    what happens once, as the start of the workers."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.batches = 0
        self.first = 0
        self.step = self.wait = self.transport = self.device = 0  # ns: the loop's own time, and its waits
        self.late = 0  # ns of the waits: the worker was not ready
        self.store = self.transform = self.extent = self.collate = self.pack = 0  # ns of the workers
        self.cpu = self.idle = 0
        self._given = 0
        self._last: dict[int, int] = {}  # worker -> when it had packed its last batch

    def add(self, asked: int, taken: int, made: Times, arrived: int | None = None) -> None:
        """asked: when the loop wanted the next batch; taken: when it came; arrived: when it was there to be copied to
        the device, if it was."""
        before, self._given = self._given, taken
        idle = made.began - self._last.get(made.worker, made.began)
        self._last[made.worker] = made.packed
        if before == 0:
            self.first = taken - asked
            return
        self.batches += 1
        self.step += asked - before
        self.wait += taken - asked
        late = min(max(made.packed - asked, 0), taken - asked)
        self.late += late
        rest = taken - asked - late
        device = 0 if arrived is None else min(max(taken - max(arrived, asked), 0), rest)
        self.device += device
        self.transport += rest - device
        self.store += made.waited
        self.transform += made.fetched - made.began - made.waited
        self.extent += made.reserved - made.fetched
        self.collate += made.collated - made.reserved
        self.pack += made.packed - made.collated
        self.cpu += made.cpu
        self.idle += max(idle, 0)

    def report(self, epoch: int, cores: int | None = None) -> dict[str, Any]:
        """Means a step, in seconds, and the verdict; see DataLoader.stats."""
        n = max(self.batches, 1)
        made = {
            "store": self.store,
            "transform": self.transform,
            "collate": self.collate,
            "extent": self.extent,
            "transport": self.pack,
        }
        busy = sum(made.values())
        waited = {name: self.late * spent / busy if busy else 0.0 for name, spent in made.items()}
        waited["transport"] += self.transport
        waited["device"] = float(self.device)
        found: dict[str, Any] = {
            "epoch": epoch,
            "batches": self.batches,
            "first_batch_s": self.first * _NS,
            "step_s": (self.step + self.wait) / n * _NS,
            "wait_s": self.wait / n * _NS,
            "wait_share": self.wait / (self.step + self.wait) if self.step + self.wait else 0.0,
            "waits_s": {name: spent / n * _NS for name, spent in waited.items()},
            "worker_s": {name: spent / n * _NS for name, spent in made.items()},
            "workers": self.workers,
            "worker_idle_share": self.idle / (self.idle + busy) if self.idle + busy else 0.0,
            "worker_cpu_share": self._cpu_share(busy),
        }
        found["stage"] = stage(found)
        found["verdict"] = verdict(found, _cores() if cores is None else cores)
        return found

    def _cpu_share(self, busy: int) -> float:
        """Of the time that workers waited for neither store nor memory. Inline, other threads of the process count."""
        working = busy - self.store - self.extent
        return min(self.cpu / working, 1.0) if working > 0 else 0.0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def stage(found: dict[str, Any]) -> str | None:
    """The stage that the loop waits for most; None where it hardly waits."""
    if found["batches"] == 0 or found["wait_share"] < HEALTHY:
        return None
    waits: dict[str, float] = found["waits_s"]
    return max(STAGES, key=lambda name: waits[name])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def verdict(found: dict[str, Any], cores: int) -> str:
    """One line for people: what a step takes, what it waits for, what to try."""
    if found["batches"] == 0:
        return "too few steps to say what they wait for"
    step, wait = found["step_s"], found["wait_s"]
    head = f"step {_ms(step)} ms, waited {_ms(wait)} ms ({found['wait_share']:.0%})"
    slow = found["stage"]
    if slow is None:
        return f"{head}: nothing waits"
    waits: dict[str, float] = found["waits_s"]
    where = _where(found["workers"]) if slow in ("transform", "collate") else ""
    at = f" at {found['worker_cpu_share']:.0%} CPU" if where else ""
    told = [name for name in STAGES if name != slow and (name not in RARE or waits[name])]
    others = ", ".join(f"{name} {_ms(waits[name])}" for name in told)
    return (
        f"{head}: {slow} {_ms(waits[slow])} ms{where}{at}; {others}; without waiting {_ms(step - wait)} ms; "
        f"{_remedy(found, slow, cores)}"
    )


def _where(workers: int) -> str:
    return " in the loop's own process" if workers == 0 else f" in {workers} worker{'s' if workers > 1 else ''}"


def _remedy(found: dict[str, Any], slow: str, cores: int) -> str:
    if slow == "store":
        return "`millrace top` names what the store, the memory or the look-ahead lacks"
    if slow == "extent":
        return "the loop keeps batches, and their memory with them: keep copies (`clone()`) of what it needs"
    if slow == "device":
        return "the copy to the device: smaller types (uint8, converted there), or fewer other copies beside it"
    if slow == "transport":
        return "try smaller batches or types (uint8); `stats()` counts what did not fit the memory of batches"
    made: dict[str, float] = found["worker_s"]
    own = found["step_s"] - found["wait_s"]
    wanted = math.ceil(sum(made.values()) / own) if own > 0 else cores + 1
    wanted = max(wanted, found["workers"] + 1)
    if found["workers"] >= cores and found["worker_cpu_share"] < 0.6:
        return f"{found['workers']} workers share {cores} cores with other work: fewer of it, or a lighter {slow}"
    if wanted > cores / max(found["worker_cpu_share"], LEAST_CPU_SHARE):
        return f"it would take {wanted} workers, and there are {cores} cores: a lighter {slow}, or larger machines"
    return f"try num_workers={wanted}"
