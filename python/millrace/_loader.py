"""DataLoader: torch's, over whole planned batches, with a state that outlives the number of ranks and workers."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, Callable, cast

import torch.utils.data

from . import _accelerate, _arguments, _timing, _torch, _trace
from ._batches import Transported, check_device
from ._epochs import Epochs
from ._errors import Error
from ._iterable import IterableDataset
from ._map import MapDataset
from ._progress import MAX_EPOCH
from ._sources import (
    BatchSource,
    Collate,
    Iterated,
    Mapped,
    Order,
    PlannedSampler,
    PlannedSequence,
    UserSampled,
    collate_of,
    refuse,
    shuffle_of,
)

log = logging.getLogger("millrace")

_MISSING: Any = object()
# In the DataLoader's own words; the rest torch itself refuses.
_MAY_BE_SET = {"collate_fn", "worker_init_fn", "timeout", "pin_memory", "generator", "multiprocessing_context"}
_MAY_BE_SET |= {"prefetch_factor", "pin_memory_device"}


class DataLoader(_accelerate.Preparable, torch.utils.data.DataLoader[Any]):
    """torch's DataLoader for millrace's data sets, with state_dict, load_state_dict and set_epoch.

    The order depends on (digest, seed, epoch) alone. The state records what the loop has been given, and serves any
    number of ranks and workers. `iter` begins at the epoch and cursor that were loaded or set; after the last batch, or
    a `break`, comes the next epoch. `len` is the steps of this rank that `iter` would begin now. After an exception the
    iteration is over, as after a `break`: once more, `next` raises Error, and not the StopIteration of a whole epoch.

    As of torch's, worker_init_fn, collate_fn, timeout and the like may be set later, for workers that start then.

    batch_size defaults to the data set's, else 1; None gives single samples. shuffle and seed are the data set's for
    an IterableDataset, and given here for a MapDataset. tail is "short", "drop" (as drop_last=True) or "pad".

    device ("cuda", "cuda:1", "cpu"): batches come with their tensors there, copied ahead of the loop on a stream of its
    own; in place of pin_memory. ValueError or RuntimeError where there is no such device.
    """

    _millrace_moves_batches = True  # transport() has nothing to do
    _warned_of_trainer = False

    def __init__(
        self,
        dataset: IterableDataset | MapDataset,
        batch_size: int | None = _MISSING,
        shuffle: bool | str | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        tail: str | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        block_bytes: int | None = None,
        mix_blocks: int | None = None,
        device: Any = None,
        **more: Any,
    ) -> None:
        dataset = getattr(dataset, "millrace", dataset)  # a drop-in data set holds one of millrace's
        _check_dataset(dataset, more)
        _torch.register_collate()
        if batch_size is _MISSING:
            batch_size = 1 if batch_sampler is not None else getattr(dataset, "batch_size", None) or 1
        if sampler is None and batch_sampler is None:
            batch_size = _arguments.batch_size(batch_size)
        workers: dict[str, Any] = dict(
            num_workers=num_workers,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            **({"pin_memory_device": pin_memory_device} if pin_memory_device else {}),
            **more,
        )
        # torch checks the arguments and keeps them where other libraries expect them.
        super().__init__(
            cast(Any, dataset),
            batch_size=batch_size,
            shuffle=None if shuffle is None or isinstance(dataset, IterableDataset) else bool(shuffle),
            sampler=sampler,
            batch_sampler=batch_sampler,
            collate_fn=collate_fn,
            drop_last=_arguments.boolean("drop_last", drop_last),
            **workers,
        )
        sampled = sampler is not None or batch_sampler is not None
        chosen_tail = tail if sampled else _arguments.tail(tail, drop_last)  # drop_last is then the batch sampler's
        order = Order(batch_size, chosen_tail, shuffle, seed, rank, world_size, block_bytes, mix_blocks)
        self._batch_source = self._batch_source_of(dataset, order, sampled)
        if isinstance(self._batch_source, Mapped):
            kind = PlannedSampler if self._batch_source._shuffle.on else PlannedSequence
            self.__dict__["sampler"] = kind(self._batch_source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has issued them once, above
            self._single = batch_size is None
            self._inner = self._batch_source.loader(collate_fn, workers, self._single)
        self._listing = dataset._source.number  # which the workers read
        self._inner._millrace_device = check_device(device, pin_memory)
        self._meter = _timing.LoopMeter(num_workers, self._batch_source.client, self._inner.sent)
        self._epochs = Epochs(self._meter, self._batch_source.name)

    def _batch_source_of(self, dataset: IterableDataset | MapDataset, order: Order, sampled: bool) -> BatchSource:
        """The source of the batches; ValueError for arguments that do not go together."""
        if isinstance(dataset, IterableDataset):
            refuse(sampled, "a sampler is for a MapDataset")
            unsaid = order.shuffle is False and not dataset._shuffle.on  # as torch takes it
            given = (None if unsaid else order.shuffle, order.seed, order.block_bytes, order.mix_blocks)
            refuse(given != (None,) * 4, "shuffle, seed, block_bytes and mix_blocks are given to the IterableDataset")
            refuse(order.has_rank(), "rank and world_size are given to the IterableDataset")
            return Iterated(dataset, order.batch, order.tail or dataset._tail)
        if not sampled:
            return Mapped(dataset, order, self.num_workers)
        if not isinstance(getattr(cast(Any, self).batch_sampler, "sampler", self.sampler), PlannedSampler):
            refuse(order.seed is not None or order.tail is not None, "seed and tail are for the loader's own order")
            refuse(order.has_rank(), "with a sampler, rank and world_size are the sampler's")
        shuffle_of(order)
        batches = cast(Any, self).batch_sampler
        return UserSampled(dataset, self.sampler if batches is None else batches, batches is None, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        """What torch lets a program set after the loader was made, as Lightning sets worker_init_fn."""
        inner = self.__dict__.get("_inner")
        if name == "num_workers" and inner is not None:
            raise ValueError("num_workers is fixed once a millrace.DataLoader is made: make a new one")
        if name == "pin_memory" and inner is not None:
            check_device(inner._millrace_device, value)
        super().__setattr__(name, value)
        if inner is not None and name in _MAY_BE_SET:
            setattr(inner, name, collate_of(value, self._single) if name == "collate_fn" else value)

    def __iter__(self) -> Any:
        self._end_useless_workers()
        if not self._is_prepared:
            return _Iteration(self._batch_source, self._inner, self._meter, self._epochs)
        move = _accelerate.mover(self)
        iteration = _Iteration(self._batch_source, self._inner, self._meter, self._epochs, move)
        return _accelerate.PreparedIteration(self, iteration)

    def __len__(self) -> int:
        return self._batch_source.steps()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its start, unless a state of this epoch was just loaded."""
        self._batch_source.set_epoch(_arguments.integer("epoch", epoch, 0, MAX_EPOCH))

    def state_dict(self) -> dict[str, Any]:
        """{digest, seed, epoch, cursor, shuffle}: what the loop has been given. Taken at the same step, any rank's
        serves all."""
        self._warn_of_trainer(sys._getframe(1))
        if self._batch_source.progress.cursor > 0:
            self._batch_source.check_listing()
        return self._batch_source.state()

    def stats(self) -> dict[str, Any]:
        """Where the time of the present iteration went, or of the last one: why the loop waits.

        Means over its steps without the first, in seconds (`_s`) or as shares: step_s, and of it wait_s for batches;
        waits_s, the same by stage: "store" (an object was not there yet), "transform", "collate", "extent" (no memory
        for the batch was free), "transport" (from the worker to the loop), "device" (the copy there); worker_s, what a
        worker took for a batch by stage; workers, worker_idle_share, worker_cpu_share, worker_delay_share (waiting for
        a core); checkpoint_s, of a step in calls of checkpoints; first_batch_s; epoch, batches. stage names what the
        loop waits for most, and cause why (docs/waiting.md), or both are None where it hardly waits; verdict is a line
        that says all this, and what to try, try_workers a number of workers or 0. transport, where there are workers,
        counts what they sent through shared memory: batches and bytes, memory_bytes that it takes, waited_s for it,
        copies (the loop held three quarters of a worker's), beside (what found no room), held (batches that the loop
        still held as it took one, summed up). Blocks nothing; of this rank alone.

        ValueError before the first iteration.
        """
        return {
            **self._meter.report(),
            "transport": self._inner._millrace_arenas.counts(),
            "before": self._epochs.before,
            "slowest": self._epochs.slowest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration continues where the loop was when the state was taken, over the listing of that time."""
        self._batch_source.load(state)
        self._batch_source.note_listing()
        self._warn_of_trainer(sys._getframe(1))

    def _warn_of_trainer(self, caller: FrameType) -> None:
        """caller: of who saves or loads the state, which says whether that is Lightning's."""
        package = str(caller.f_globals.get("__name__")).partition(".")[0]
        inside = self._batch_source.progress.cursor > 0
        if inside and package in ("lightning", "pytorch_lightning") and not self._warned_of_trainer:
            self._warned_of_trainer = True
            log.warning(
                "a Trainer that goes on in the middle of an epoch leaves out batches of this loader: it counts the "
                "whole epoch, and len() is here what is left of it; use millrace.lightning.DataLoader",
            )

    def _end_useless_workers(self) -> None:
        """Persistent workers read the listing that the data set had when they began. A state of another one may have
        been loaded since, here or by another loader of the data set. And one of them may have died."""
        number = self.dataset._source.number
        workers = getattr(self._inner, "_iterator", None)
        dead = any(each.exitcode is not None for each in getattr(workers, "_workers", ()))
        if dead or number != self._listing:
            _end_workers(self._inner)
        self._listing = number


def _check_dataset(dataset: Any, more: dict[str, Any]) -> None:
    if not isinstance(dataset, (IterableDataset, MapDataset)):
        raise TypeError(f"millrace.DataLoader reads millrace's data sets, not {type(dataset).__name__}")
    if isinstance(dataset, IterableDataset) and type(dataset).__iter__ is not IterableDataset.__iter__:
        raise ValueError(
            f"{type(dataset).__name__} has an __iter__ of its own, which millrace.DataLoader would not call: give it "
            "to torch.utils.data.DataLoader"
        )
    if not more.get("in_order", True):
        raise ValueError("in_order=False would lose the order that the state stands for")


class _Iteration(Iterator[Any]):
    """One pass: counts what the loop is given, in the main process only."""

    def __init__(
        self,
        source: BatchSource,
        inner: Transported,
        meter: _timing.LoopMeter,
        epochs: Epochs,
        move: Callable[[Any], Any] | None = None,
    ) -> None:
        self._batch_source, self._meter, self._epochs, self._move = source, meter, epochs, move
        self._serial = source.progress.begin()
        if source.progress.cursor > 0:
            source.check_listing()
        self._steps = source.begin()
        source.note_listing()
        self._step = 0
        self._in_next = False
        self._failure = ""  # what has ended it, until that was said
        self._number = epochs.begin(source.progress.epoch, *source.rank())
        self._inner = inner
        try:
            self._batches: Iterator[Any] | None = iter(inner)
        except BaseException:  # such as KeyboardInterrupt: workers that live on are between two epochs
            _end_workers(inner)
            raise

    def __len__(self) -> int:
        if self._steps is None:
            raise TypeError("the sampler has no length")
        return self._steps - self._step

    def is_over(self) -> bool:
        """The loop has the last batch. False where a sampler has no length."""
        return self._step == self._steps

    def __next__(self) -> Any:
        if self._batches is None:
            self._say_failure()
            raise StopIteration
        if self._in_next:
            raise RuntimeError(
                "this iterator is in the middle of a next() already, of another thread or of the code that a signal "
                "handler interrupted: take its batches in one thread, or with a lock around each next()"
            )
        self._in_next = True  # no thread or handler comes between these two lines: nothing is called
        try:
            return self._take()
        finally:
            self._in_next = False

    def _take(self) -> Any:
        assert self._batches is not None
        progress = self._batch_source.progress
        progress.check(self._serial)
        self._batch_source.check_listing()
        asked, place = self._meter.ask(), progress.place()
        try:
            with _trace.span("millrace: wait for a batch"):
                timed = next(self._batches)
                batch = timed.open()
            self._meter.take(asked, timed.times, timed.arrived)
            del timed
            if self._move is not None:
                batch = self._move(batch)
            self._step += 1
            progress.give(self._batch_source.cursor_after(self._step - 1))  # last: what is counted is returned
        except StopIteration:
            self._batches = None
            self._meter.rest()
            self._epochs.end()
            if self._steps is not None and self._step < self._steps:
                raise Error(f"the workers ended after {self._step} of {self._steps} steps") from None
            if self._step > 0:
                self._batch_source.end()
            progress.finish()
            raise
        except BaseException as error:
            progress.take_back(place)
            self._failure = _last_line(error)
            self._abandon(error)
            raise
        return batch

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self._epochs.leave(self._number)
        except Exception:
            pass

    def _say_failure(self) -> None:
        """Once, to a loop that goes on after an exception: StopIteration alone would say that it has all batches."""
        failure, self._failure = self._failure, ""
        if failure:
            of = "" if self._steps is None else f" of {self._steps}"
            raise Error(
                f"this iteration has ended after {self._step}{of} steps, with {failure}. on_error='skip' leaves out "
                "what cannot be used, 'replace' puts another sample there; load_state_dict(state_dict()) has the next "
                "iteration go on here"
            )

    def _abandon(self, error: BaseException) -> None:
        """Ends the workers now. Left to the garbage collector, which takes their queues apart first, each takes 5 s.

        Workers that live on do so after an exception of their own. After another, such as KeyboardInterrupt, torch may
        have read half of a batch, and takes what they send for the next epoch's. Not where a thread of its own reads
        them, to copy them to a device.
        """
        batches, self._batches = self._batches, None
        self._meter.rest()
        shut_down = getattr(batches, "_shutdown_workers", None)
        if shut_down is not None and not self._inner.persistent_workers:
            shut_down()
        elif self._inner._millrace_device is None and not _is_of_worker(error):
            _end_workers(self._inner)


def _end_workers(inner: Transported) -> None:
    """Of a loader whose workers live on: the next iteration starts new ones."""
    workers = getattr(inner, "_iterator", None)
    if workers is None:
        return
    if inner._millrace_copier is not None:
        inner._millrace_copier.finish()  # it may be reading what they send
    cast(Any, inner)._iterator = None
    workers._shutdown_workers()


def _is_of_worker(error: BaseException) -> bool:
    """It was raised by torch's ExceptionWrapper, which has a worker's exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "reraise"


def _last_line(error: BaseException) -> str:
    """Of an exception of a worker torch makes a text with the worker's traceback."""
    name, text = type(error).__name__, str(error).strip().rpartition("\n")[2]
    return text if text.startswith(name) else f"{name}: {text}"
