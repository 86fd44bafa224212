"""Batches on the device: copied ahead of the loop by a thread, on a stream of its own, from memory that is pinned once.

The thread takes a batch from the workers, copies it, waits for the event of that copy and lets the batch's memory go:
nobody else can say when it may be written again. The loop takes batches that are there. What torch's `pin_memory=True`
copies a second time on the host is not copied here: the arena itself is registered with the driver, each slot when it
has grown, by this thread, and released before it is unmapped.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from . import _timing, _trace
from ._ring import BatchArena

log = logging.getLogger("millrace")
AHEAD = 2  # batches on the device beside the one that the loop has: one that is there, one on its way
_END = object()


class Runtime(Protocol):
    """The few calls that differ by the kind of device. All but `take` are the thread's; it calls `begin` first."""

    def begin(self) -> None:
        """This thread works on the device."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device; it may not be there before `wait` returns."""

    def wait(self) -> None:
        """Until every copy since the last call is there. Without the GIL."""

    def take(self, tensor: torch.Tensor) -> None:
        """The loop's present stream will use what `copy` made: its memory is not given to another before that ends."""

    def register(self, address: int, size: int) -> str | None:
        """Pins host memory (size > 0), for all devices of this process. Why not, where it cannot be."""

    def unregister(self, address: int) -> None: ...


class Host:
    """device="cpu": plain copies, so that the loop owns what it gets."""

    def begin(self) -> None: ...

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def wait(self) -> None: ...

    def take(self, tensor: torch.Tensor) -> None: ...

    def register(self, address: int, size: int) -> str | None:
        return None

    def unregister(self, address: int) -> None: ...


class Cuda:
    """CUDA, and HIP under torch's same names."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda: Any = torch.cuda  # whose functions are typed in some versions only
        self._stream = self._cuda.Stream(device)
        self._event = self._cuda.Event(blocking=True)

    def begin(self) -> None:
        self._cuda.set_device(self.device)  # registering and events go to the thread's device

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._cuda.stream(self._stream):
            return tensor.to(self.device, non_blocking=True)

    def wait(self) -> None:
        self._event.record(self._stream)
        self._event.synchronize()

    def take(self, tensor: torch.Tensor) -> None:
        stream = self._cuda.current_stream(self.device)
        for part in plain_parts(tensor):
            if part.is_cuda:  # sizes of nested ones stay on the host
                part.record_stream(stream)

    def register(self, address: int, size: int) -> str | None:
        status = self._cuda.cudart().cudaHostRegister(address, size, 1)  # portable: for every device of the process
        if int(status) == 0:
            return None
        self._clear()
        return f"cudaHostRegister failed with error {int(status)}"

    def unregister(self, address: int) -> None:
        if int(self._cuda.cudart().cudaHostUnregister(address)) != 0:
            self._clear()

    def _clear(self) -> None:
        """An error stays in the runtime until it is asked for, and would be reported as the next kernel's."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Dense tensors over all of its memory: record_stream() takes no others."""
    flatten = getattr(tensor, "__tensor_flatten__", None)  # of a subclass that wraps others, as nested ones are
    if flatten is not None:
        for name in flatten()[0]:
            yield from plain_parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif tensor.is_nested or tensor.is_quantized:
        yield torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    else:
        yield tensor


def runtime_of(device: Any) -> Runtime:
    """ValueError, RuntimeError: for a device that cannot be had."""
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return Host()
    if wanted.type != "cuda":
        raise ValueError(f"device is {device!r}: batches are brought to 'cuda', 'cuda:N' or 'cpu'")
    if not torch.cuda.is_available():
        raise RuntimeError(f"device is {device!r}, and torch finds no GPU (torch.cuda.is_available() is False)")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, and there are {torch.cuda.device_count()} GPUs")
    return Cuda(torch.device("cuda", index))


class Pinned:
    """What of an arena is registered: each slot whole, since no copy may reach from one registration into another."""

    def __init__(self, runtime: Runtime, ring: BatchArena) -> None:
        self._runtime, self._ring = runtime, ring
        self._sizes: dict[int, int] = {}
        self._refused = False
        # It keeps the mapping until the last slot is unregistered: the address may be another's right after.
        weakref.finalize(self, _unregister, runtime, ring, self._sizes, os.getpid())

    def follow(self) -> None:
        """Registers what has grown. While no copy is under way."""
        if self._refused:
            return
        for address, size in self._ring.extents():
            before = self._sizes.get(address, 0)
            if size == before:
                continue
            if before:
                self._runtime.unregister(address)
                del self._sizes[address]
            why = self._runtime.register(address, size) if size else None
            if why is not None:
                self._refused = True
                log.warning("batches go to the device from memory that is not pinned, which is slower: %s", why)
                return
            if size:
                self._sizes[address] = size


def _unregister(runtime: Runtime, ring: BatchArena, sizes: dict[int, int], owner: int) -> None:
    if os.getpid() != owner:  # a forked child has none of it
        return
    for address in sizes:
        runtime.unregister(address)
    sizes.clear()
    del ring


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Of these together, for a trace; of those that can tell: a sparse one raises, and a subclass may do anything."""
    count = 0
    for tensor in tensors:
        with contextlib.suppress(Exception):
            count += tensor.nbytes
    return count


def moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor], device: Any) -> Any:
    """The same lists, tuples, named tuples, mappings and dataclasses with their tensors moved; objects with a `to` of
    their own are asked, and waited for."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, (str, bytes)):
        return value
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        return value.to(device)
    if isinstance(value, Mapping):
        items = list(value.items())
        found = {key: moved(one, move, device) for key, one in items}
        if type(value) is dict:
            return found
        if all(found[key] is one for key, one in items):
            return value  # nothing was moved: a Sample stays one
        try:
            made: Any = copy.copy(value)
            made.update(found)
            return made
        except (TypeError, AttributeError):
            return found
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(one, move, device) for one in value))
    if type(value) is list or type(value) is tuple:
        return type(value)([moved(one, move, device) for one in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, moved(getattr(value, field.name), move, device))
        return made
    return value


class Copier:
    """Copies the batches of one iteration. `run` is the thread; what it gives is (batch, its tensors, error)."""

    def __init__(self, batches: Iterator[Any], runtime: Runtime, pinned: Pinned | None, device: Any) -> None:
        self._batches, self._runtime, self._pinned, self._device = batches, runtime, pinned, device
        self._ready: queue.Queue[Any] = queue.Queue(AHEAD - 1)
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="millrace-device", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def get(self) -> tuple[Any, list[torch.Tensor], BaseException | None]:
        """RuntimeError where it was stopped, as by a new iteration of the same workers."""
        while not self._stopped.is_set():  # a batch that is there then is of an iteration that is over
            with contextlib.suppress(queue.Empty):
                found: tuple[Any, list[torch.Tensor], BaseException | None] = self._ready.get(timeout=0.1)
                return found
        raise RuntimeError("this iteration is over: a new one of the same loader has begun")

    def stop(self) -> None:
        """The thread ends once the batch that it waits for is there, or immediately."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()

    def finish(self) -> None:
        """Ends the thread, and waits for it: another iteration may use the same workers then."""
        self.stop()
        if self.thread.ident is not None:
            self.thread.join()
        self.stop()  # and what it put as the queue was emptied

    def one(self) -> tuple[Any, list[torch.Tensor]]:
        """The next batch, on the device, and its tensors there. StopIteration after the last."""
        host = next(self._batches)
        arrived = time.monotonic_ns()
        if self._pinned is not None:
            self._pinned.follow()
        made: list[torch.Tensor] = []

        def move(tensor: torch.Tensor) -> torch.Tensor:
            made.append(self._runtime.copy(tensor))
            return made[-1]

        with _trace.span("millrace: copy to the device"):
            if isinstance(host, _timing.Timed):
                batch: Any = _timing.Timed(moved(host.open(), move, self._device), host.times)
                batch.arrived = arrived
            else:
                batch = moved(host, move, self._device)
            self._runtime.wait()
        _trace.trace("device", arrived, bytes=_bytes(made) if _trace.tracing() else 0)
        return batch, made  # and here ends `host`: its memory goes back

    def _run(self) -> None:
        try:
            self._runtime.begin()
            while not self._stopped.is_set():
                self._put((*self.one(), None))
        except StopIteration:
            self._put((_END, [], None))
        except BaseException as error:
            self._put((None, [], error))
        finally:
            del self._batches

    def _put(self, found: Any) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(found, timeout=0.1)
                break


class DeviceIterator(Iterator[Any]):
    """What iterating a loader with a device gives: the batches of `batches`, on the device."""

    def __init__(self, batches: Any, runtime: Runtime, pinned: Pinned | None, device: Any, threaded: bool) -> None:
        self._inner: Any = batches
        self._runtime = runtime
        self.copier = Copier(batches, runtime, pinned, device)
        self._threaded, self._ended = threaded, False  # without workers the loop's own thread reads, as always
        if self._threaded:
            self.copier.start()
            weakref.finalize(self, self.copier.stop)

    def __len__(self) -> int:
        return len(self._inner)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._threaded:
            batch, made, error = self.copier.get()
        else:
            batch, made = self.copier.one()
            error = None
        if error is not None or batch is _END:
            self._ended = True
            self.copier.thread.join()
            raise error if error is not None else StopIteration
        for tensor in made:
            self._runtime.take(tensor)
        return batch

    def _shutdown_workers(self) -> None:
        self._ended = True
        shut_down = getattr(self._inner, "_shutdown_workers", None)
        self.copier.stop()
        if shut_down is not None:
            shut_down()
            # The thread may be waiting for a batch, which nobody will send: the end of the pipe wakes it.
            with contextlib.suppress(AttributeError, OSError):
                self._inner._worker_result_queue._writer.close()
