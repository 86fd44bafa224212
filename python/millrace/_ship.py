"""How batches get from a DataLoader worker to the main process: their bytes through shared memory, the rest as usual.

torch sends a batch as one pickle through a pipe: each byte is copied six times, 64 KiB at a time with a change of
process for each, into memory that is new every time. Here the worker copies Leases, Items and bytes once into a block
of a pool that the main process made before the workers began, and the main process copies them out as the loop takes
the batch. A batch that finds no free block, or is larger than one, is sent through the pipe.

A block is free, or a worker's until it has sent the batch, or the batch's until that is opened or thrown away: its
semaphore records which. A worker that dies takes its block with it and nothing else.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from multiprocessing import reduction
from multiprocessing.context import BaseContext
from typing import Any, Callable

from . import _timing, _torch
from ._item import Item
from ._ring import Lease

BLOCK_BYTES = 256 << 20  # of addresses; pages are taken as batches need them, and kept
LEAST_BYTES = 4096  # smaller bytes are left in the pickle
ALIGN = 64

_pools: weakref.WeakValueDictionary[bytes, Pool] = weakref.WeakValueDictionary()


class Pool:
    """Blocks of shared memory, the same number for each worker. Made by the main process, inherited by or sent to the
    workers as they start."""

    def __init__(self, workers: int, blocks: int, context: BaseContext) -> None:
        self.blocks = blocks
        descriptor = os.memfd_create("millrace-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, workers * blocks * BLOCK_BYTES)
            self._open(os.urandom(16), descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._free = [context.Semaphore(1) for _ in range(workers * blocks)]

    def _open(self, key: bytes, descriptor: int) -> None:
        self.key, self._descriptor = key, descriptor
        self._memory = mmap.mmap(descriptor, 0)
        self._close = weakref.finalize(self, os.close, descriptor)
        _pools[key] = self

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is spawned: the descriptor is sent with it."""
        state = {name: self.__dict__[name] for name in ("blocks", "key", "_free")}
        return {**state, "_descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        descriptor = state.pop("_descriptor").detach()
        self.__dict__.update(state)
        self._open(self.key, descriptor)

    def take(self, worker: int) -> int | None:
        """A free block of that worker, now its own."""
        for block in range(worker * self.blocks, (worker + 1) * self.blocks):
            if self._free[block].acquire(False):
                return block
        return None

    def give_back(self, block: int) -> None:
        self._free[block].release()

    def view(self, block: int) -> memoryview:
        return memoryview(self._memory)[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]


class Placed:
    """Stands in a batch for bytes that are in its block."""

    __slots__ = ("labels", "offset", "size")

    def __init__(self, offset: int, size: int, labels: tuple[str, str] | None) -> None:
        self.offset, self.size = offset, size
        self.labels = labels  # name and encoding of an Item; None: plain bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return Placed, (self.offset, self.size, self.labels)


class Shipped:
    """A batch under way: the rest of it, and the block with its bytes."""

    def __init__(self, key: bytes, block: int, rest: Any) -> None:
        self._key, self._rest = key, rest
        self._block: int | None = block

    def __reduce__(self) -> tuple[Any, ...]:
        block, self._block = self._block, None  # the reader's from here on
        return Shipped, (self._key, block, self._rest)

    def open(self) -> Any:
        pool = _pools[self._key]
        assert self._block is not None
        view = pool.view(self._block)
        try:
            return _mapped(self._rest, lambda one: _unpacked(one, view))
        finally:
            view.release()
            self._drop()

    def _drop(self) -> None:
        block, self._block = self._block, None
        pool = _pools.get(self._key)
        if block is not None and pool is not None:
            pool.give_back(block)

    def __del__(self) -> None:
        self._drop()


class Shipping:
    """A collate function that puts what the user's made into a block. The main process opens it: `open_batch`."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self.pool: Pool | None = None

    def __call__(self, samples: Any) -> _timing.Timed:
        fetched = time.monotonic_ns()
        batch = self._collate(samples)
        collated = time.monotonic_ns()
        worker = _torch.worker()
        if self.pool is not None and worker is not None:
            batch = _packed(batch, self.pool, worker[0])
        return _timing.Timed(batch, _timing.times(0 if worker is None else worker[0], fetched, collated))


def open_batch(batch: Any) -> Any:
    return batch.open() if isinstance(batch, Shipped) else batch


def _is_shipped(one: Any) -> bool:
    kind = type(one)
    return kind is Lease or kind is Item or (kind is bytes and len(one) >= LEAST_BYTES)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same lists, tuples and dicts with everything else changed."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_mapped(one, change) for one in value])
    if kind is dict:
        return {key: _mapped(one, change) for key, one in value.items()}
    return change(value)


def _packed(batch: Any, pool: Pool, worker: int) -> Any:
    total = 0

    def add(one: Any) -> None:
        nonlocal total
        if _is_shipped(one):
            total += (len(one) + ALIGN - 1) // ALIGN * ALIGN

    _mapped(batch, add)
    block = pool.take(worker) if 0 < total <= BLOCK_BYTES else None
    if block is None:
        return batch
    view = pool.view(block)
    end = 0

    def place(one: Any) -> Any:
        nonlocal end
        if not _is_shipped(one):
            return one
        size, at = len(one), end
        view[at : at + size] = one
        end += (size + ALIGN - 1) // ALIGN * ALIGN
        return Placed(at, size, None if type(one) is bytes else (one.name, one.encoding))

    try:
        return Shipped(pool.key, block, _mapped(batch, place))
    except BaseException:
        pool.give_back(block)
        raise
    finally:
        view.release()


def _unpacked(one: Any, view: memoryview) -> Any:
    if type(one) is not Placed:
        return one
    data = view[one.offset : one.offset + one.size]
    try:
        return bytes(data) if one.labels is None else Item(data, *one.labels)
    finally:
        data.release()
