"""How batches get from a DataLoader worker to the training process: through memory that both have mapped.

torch sends each tensor of a batch in a new shared-memory file, which the training process maps anew, and all else
through a pipe. Here a loader has one batch arena (shm/ring/batch.h), with a lane for each worker: the worker reserves a
slot before it collates, what `default_collate` and `batch_empty` make lies in it, the rest is copied there once, and
the loop gets tensors over that memory. torch's queue carries order, exceptions and a short pickle. What finds no room
goes with that pickle, and is counted.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
import pickle
import threading
import time
import weakref
from collections.abc import Iterable
from multiprocessing import reduction
from typing import Any, Callable

import torch
import torch.utils.data

from . import _timing, _torch, _worker
from ._arguments import local_ranks
from ._errors import Error
from ._packing import Packer, Row, Unpacker, is_plain, tensor_at
from ._ring import Batch, BatchArena, memory_limit_bytes

MEMORY_PART = 8  # without a supervisor the batches of a node may take this part of its memory
WAIT_MS = 100  # for a slot, before it is seen whether one can come
LEAST_SLOTS_AHEAD = 3  # beside what torch asks a worker for: two that the loop has, and one to fill

_arenas: weakref.WeakValueDictionary[bytes, Arena] = weakref.WeakValueDictionary()


class Arena:
    """A loader's batch memory: made by the main process, inherited by or sent to the workers as they start."""

    def __init__(self, workers: int, ahead: int, limit_bytes: int) -> None:
        self._open(os.urandom(16), BatchArena(workers, min(ahead + LEAST_SLOTS_AHEAD, 64), limit_bytes))

    def _open(self, key: bytes, ring: BatchArena) -> None:
        self.key, self.ring = key, ring
        self.pinned: Any = None  # a Pinned, in the main process
        _arenas[key] = self

    def __getstate__(self) -> tuple[bytes, Any]:
        """For a worker that is spawned: the descriptor is sent with it."""
        return self.key, reduction.DupFd(self.ring.fileno())

    def __setstate__(self, state: tuple[bytes, Any]) -> None:
        key, descriptor = state
        self._open(key, BatchArena.attach(descriptor.detach()))


class Shipped:
    """A batch under way: its slot, which the trainer gives back, and the rest."""

    def __init__(self, arena: Arena, lane: int, batch: Batch, rows: list[Row], rest: bytes, late: bool) -> None:
        self._message = (arena.key, lane, *batch.publish(), rows, rest)
        self._batch: Batch | None = batch
        self._arrives = take_shipped if late else open_shipped

    def __reduce__(self) -> tuple[Any, ...]:
        self._batch = None  # the reader's from here on
        return self._arrives, self._message

    def __del__(self) -> None:
        if self._batch is not None:
            self._batch.withdraw()


class Pickled:
    """A batch of which nothing lies in a slot: pickled once, not again by torch's queue."""

    def __init__(self, rest: bytes) -> None:
        self._rest = rest

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._rest,)


class Arrived(_timing.Closed):
    """A batch that is the trainer's and is opened when the loop takes it: until then none of its bytes are copied."""

    def __init__(self, batch: Batch, rows: list[Row], rest: bytes) -> None:
        self._batch, self._rows, self._rest = batch, rows, rest

    def open(self) -> Any:
        return Unpacker(self._rest, self._rows, self._batch).load()


def take_shipped(key: bytes, lane: int, slot: int, word: int, rows: list[Row], rest: bytes) -> Arrived:
    """What the message stands for, in the process that made the arena."""
    return Arrived(_arenas[key].ring.take(lane, slot, word), rows, rest)


def open_shipped(key: bytes, lane: int, slot: int, word: int, rows: list[Row], rest: bytes) -> Any:
    """The batch itself, for who knows nothing of it."""
    return take_shipped(key, lane, slot, word, rows, rest).open()


class _Collating(threading.local):
    batch: Batch | None = None  # what this thread collates into


_collating = _Collating()


def batch_empty(shape: int | Iterable[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.empty(shape, dtype=dtype) for a collate function: in the memory of the batch that is being made.

    What a collate function writes there and returns is not copied again on its way to the loop. Elsewhere than in a
    DataLoader worker that collates, or where the memory of batches is used up, it is an ordinary tensor. It is the
    batch's: a worker that keeps it sees what the loop does with it, and keeps the memory.
    """
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    batch, dtype = _collating.batch, dtype or torch.get_default_dtype()
    if batch is not None and all(extent >= 0 for extent in wanted):
        size = math.prod(wanted) * dtype.itemsize
        at = batch.alloc(size)
        if at >= 0:
            return tensor_at(batch, at, size, dtype, wanted)
    return torch.empty(wanted, dtype=dtype, device="cpu")


def _stack(before: Callable[..., Any]) -> Callable[..., Any]:
    """default_collate's function for tensors, into the batch's memory."""

    def stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if _collating.batch is None or not all(
            is_plain(one) and one.dtype == first.dtype and one.shape == first.shape for one in batch
        ):
            return before(batch, collate_fn_map=collate_fn_map)
        return torch.stack(batch, 0, out=batch_empty((len(batch), *first.shape), first.dtype))

    stack.into_batches = True  # type: ignore[attr-defined]
    return stack


def _collate_into_batches() -> None:
    """In a worker: default_collate, called from anywhere, writes where the batch will be read."""
    from torch.utils.data._utils.collate import default_collate_fn_map as functions

    before = functions.get(torch.Tensor)
    if before is not None and not hasattr(before, "into_batches"):
        functions[torch.Tensor] = _stack(before)


class Sender:
    """A collate function that sends what the user's made through the arena."""

    timed = False  # whether the loop's side knows how to open a batch later

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.users = collate
        self.arena: Arena | None = None

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples, [0, 0])

    def collate(self, samples: Any, at: list[int]) -> Any:
        """The batch, or what stands for it. at: when there was memory for it, and when it was collated (ns)."""
        worker = _torch.worker()
        _worker.parent()  # from now on this process ends with its loop's
        batch = None
        if self.arena is not None and worker is not None:
            _collate_into_batches()
            batch = _reserve(self.arena.ring, worker[0])
        at[0] = time.monotonic_ns()
        _collating.batch = batch
        try:
            made = self.users(samples)
        finally:
            _collating.batch = None
        at[1] = time.monotonic_ns()
        if batch is None or self.arena is None or worker is None:
            return made
        return _packed(made, batch, self.arena, worker[0], self.timed)


def _reserve(ring: BatchArena, lane: int) -> Batch | None:
    """A slot. The trainer sees to it that one comes free, whatever its loop keeps; but not in spite of views that are
    kept here: then, and when the trainer is gone, the batch goes torch's way (None)."""
    batch = ring.reserve(lane, WAIT_MS)
    if batch is not None:
        return batch
    if ring.viewed(lane):
        gc.collect()  # of a batch with a reference cycle; nothing is collected during a wait
    while batch is None and not _worker.is_orphan():
        batch = ring.reserve(lane, WAIT_MS)
        if batch is None and ring.viewed(lane):
            break
    if batch is None:
        ring.beside(lane, 1)
    return batch


def _packed(made: Any, batch: Batch, arena: Arena, lane: int, timed: bool) -> Any:
    rest = io.BytesIO()
    packer = Packer(rest, batch)
    packer.dump(made)
    if packer.beside:
        arena.ring.beside(lane, packer.beside)
    if not packer.rows:
        return Pickled(rest.getvalue())  # a few numbers or names, or no room
    return Shipped(arena, lane, batch, packer.rows, rest.getvalue(), timed and packer.may_wait)


class TimedSender(Sender):
    """The same for millrace's own loaders, with the times of the batch."""

    timed = True

    def __call__(self, samples: Any) -> _timing.Timed:
        fetched = time.monotonic_ns()
        at = [0, 0]
        batch = self.collate(samples, at)
        worker = _torch.worker()
        return _timing.Timed(batch, _timing.times(0 if worker is None else worker[0], fetched, *at))


class Arenas:
    """The arena of a loader, from one iteration to the next: kept warm, and never shared by two at the same time."""

    def __init__(self, limit_bytes: int | None, count: Callable[[int], int] | None = None) -> None:
        self.limit_bytes = limit_bytes  # None: the default; 0: batches go torch's way
        self._count = count  # a supervisor's: takes the arena's descriptor or -1, gives what the node's loaders may use
        self._arena: Arena | None = None
        self._shape: tuple[int, ...] = ()  # what it was made for
        self._workers: list[Any] = []  # the processes that may use it
        self._owner = 0  # whose children they are

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arena": None, "_workers": []}  # a copy has none yet

    def next(self, loader: torch.utils.data.DataLoader[Any]) -> Arena | None:
        """For the workers that start next. None: there are none, or no memory may be used."""
        arena, self._arena = self._arena, None
        if loader.num_workers == 0 or self.limit_bytes == 0:
            return None
        limit = self.limit_bytes or self._share(self._count(-1) if self._count else memory_limit_bytes() // MEMORY_PART)
        shape = (loader.num_workers, loader.prefetch_factor or 2, limit)
        # In a forked child the memory is the parent's, and so are the workers.
        ours = self._shape == shape and self._owner == os.getpid()
        if arena is not None and ours and not any(worker.is_alive() for worker in self._workers):
            arena.ring.recover()
            return arena
        self._shape, self._owner = shape, os.getpid()
        made = Arena(*shape)
        if self._count:
            with contextlib.suppress(Error):  # it is statistics: reading says what is wrong with the supervisor
                self._count(made.ring.fileno())
        return made

    @staticmethod
    def _share(node_bytes: int) -> int:
        """This rank's, of what the node has."""
        return max(node_bytes // local_ranks(), 1)

    def began(self, iterator: Any, arena: Arena | None) -> None:
        """The iteration whose workers were started; it keeps the arena as long as it lives."""
        self._arena, self._workers = arena, list(getattr(iterator, "_workers", ()))
        iterator._millrace_arena = arena

    def pinned(self, runtime: Any) -> Any:
        """The part of the arena that is pinned for that device; None: there is no arena."""
        if self._arena is None:
            return None
        if self._arena.pinned is None:
            from ._device import Pinned

            self._arena.pinned = Pinned(runtime, self._arena.ring)
        return self._arena.pinned

    def counts(self) -> dict[str, int | float] | None:
        return None if self._arena is None else self._arena.ring.counts()


class Transported(torch.utils.data.DataLoader[Any]):
    """A DataLoader whose workers send their batches through an arena, and which may bring them to a device."""

    _millrace_sender: type[Sender] = Sender
    _millrace_own_arenas: Arenas | None = None  # None: of one that was made by calling this class
    _millrace_device: Any = None  # what the user said
    _millrace_copier: Any = None  # the thread of the last iteration that brought batches there

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins without what an iteration has left here: workers that live on, a thread."""
        return {**self.__dict__, "_iterator": None, "_millrace_copier": None}

    @property
    def _millrace_arenas(self) -> Arenas:
        if self._millrace_own_arenas is None:
            self._millrace_own_arenas = Arenas(None)
        return self._millrace_own_arenas

    def __iter__(self) -> Any:
        if self._millrace_device is None:
            return super().__iter__()
        from ._device import DeviceIterator, runtime_of

        if self._millrace_copier is not None and self.persistent_workers:
            self._millrace_copier.finish()  # it may still read what these workers send
        runtime = runtime_of(self._millrace_device)
        batches = super().__iter__()
        pinned = self._millrace_arenas.pinned(runtime)
        made = DeviceIterator(batches, runtime, pinned, self._millrace_device, self.num_workers > 0)
        self._millrace_copier = made.copier
        return made

    def _get_iterator(self) -> Any:
        collate, arenas = self.collate_fn, self._millrace_arenas
        if isinstance(collate, Sender):  # Ctrl-C came before an earlier one was taken out again
            collate = collate.users
        sender = self._millrace_sender(collate)
        arena = sender.arena = arenas.next(self)
        try:
            self.collate_fn = sender
            iterator = super()._get_iterator()
        finally:
            self.collate_fn = collate
        arenas.began(iterator, arena)
        return iterator


_transported: dict[type, type] = {}


def transport(loader: Any, *, batch_bytes: int | None = None, device: Any = None) -> Any:
    """Sends the batches of any torch DataLoader through shared memory that its workers and the loop have mapped.

    The same loader, changed in place: its data set, sampler, collate_fn and workers stay what they are, wherever the
    data come from. batch_bytes: how much memory its batches may take, default an eighth of what the machine or the
    cgroup has; 0: none, as before. device: as of millrace.DataLoader. Both take effect when workers start next. A
    millrace.DataLoader does all this by itself, and is returned as it is. TypeError for what is no DataLoader.
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"transport takes a torch DataLoader, not {type(loader).__name__}")
    if batch_bytes is not None and (not isinstance(batch_bytes, int) or batch_bytes < 0):
        raise ValueError(f"batch_bytes is a number of bytes, or None, not {batch_bytes!r}")
    if getattr(loader, "_millrace_moves_batches", False):
        return loader
    cls = type(loader)
    if not isinstance(loader, Transported):
        if cls not in _transported:
            members = {"__module__": cls.__module__, "__reduce_ex__": _reduce, "__doc__": cls.__doc__}
            _transported[cls] = type(cls.__name__, (Transported, cls), members)
        loader.__class__ = _transported[cls]
    loader._millrace_own_arenas = Arenas(batch_bytes)
    loader._millrace_device = check_device(device, loader.pin_memory)
    return loader


def check_device(device: Any, pin_memory: bool) -> Any:
    """ValueError, RuntimeError: there is no such device, or it does not go with pin_memory."""
    if device is None:
        return None
    if pin_memory:
        raise ValueError("device brings the batches there itself: leave pin_memory off")
    from ._device import runtime_of

    runtime_of(device)
    return device


def _reduce(loader: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickled as the loader that it was, and changed again."""
    cls = type(loader).__mro__[2]
    plain: Any = object.__new__(cls)
    plain.__dict__.update((name, value) for name, value in vars(loader).items() if not name.startswith("_millrace"))
    return _transport_again, (plain, loader._millrace_arenas.limit_bytes, loader._millrace_device)


def _transport_again(loader: Any, batch_bytes: int | None, device: Any) -> Any:
    return transport(loader, batch_bytes=batch_bytes, device=device)
