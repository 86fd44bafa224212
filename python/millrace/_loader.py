"""DataLoader: torch's, over whole planned batches, with a state that outlives the number of ranks and workers."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Any, Callable, NamedTuple, cast

import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler, default_collate
from torch.utils.data._utils.collate import default_convert

from . import _accelerate, _arguments, _mesh, _shuffle, _timing, _torch, _trace
from ._batches import Arenas, TimedSender, Transported, check_device
from ._connection import Loop
from ._draws import Draws
from ._epochs import Epochs
from ._errors import Error
from ._handed import HandedKey
from ._iterable import Failed, IterableDataset, log_left_out
from ._map import Announced, MapDataset, announce
from ._progress import MAX_EPOCH, Progress, check_shuffle, digest_of, listing_of, number
from ._ring import Client, Plan
from ._shuffle import Shuffle

log = logging.getLogger("millrace")

Collate = Callable[[Any], Any]
_MISSING: Any = object()
# In the DataLoader's own words; the rest torch itself refuses.
_MAY_BE_SET = {"collate_fn", "worker_init_fn", "timeout", "pin_memory", "generator", "multiprocessing_context"}
_MAY_BE_SET |= {"prefetch_factor", "pin_memory_device"}
WINDOW = 256  # what to announce ahead for; the configuration's default of lanes.window


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
        order = _Order(batch_size, chosen_tail, shuffle, seed, rank, world_size, block_bytes, mix_blocks)
        self._batch_source = self._batch_source_of(dataset, order, sampled)
        if isinstance(self._batch_source, _Mapped):
            self.__dict__["sampler"] = _PlannedSampler(self._batch_source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has issued them once, above
            self._single = batch_size is None
            self._inner = self._batch_source.loader(collate_fn, workers, self._single)
        self._listing = dataset._source.number  # which the workers read
        self._inner._millrace_device = check_device(device, pin_memory)
        self._meter = _timing.LoopMeter(num_workers, self._batch_source.client, self._inner.sent)
        self._epochs = Epochs(self._meter, self._batch_source.name)

    def _batch_source_of(self, dataset: IterableDataset | MapDataset, order: _Order, sampled: bool) -> _BatchSource:
        """The source of the batches; ValueError for arguments that do not go together."""
        if isinstance(dataset, IterableDataset):
            refuse(sampled, "a sampler is for a MapDataset")
            unsaid = order.shuffle is False and not dataset._shuffle.on  # as torch takes it
            given = (None if unsaid else order.shuffle, order.seed, order.block_bytes, order.mix_blocks)
            refuse(given != (None,) * 4, "shuffle, seed, block_bytes and mix_blocks are given to the IterableDataset")
            refuse(order.has_rank(), "rank and world_size are given to the IterableDataset")
            return _Iterated(dataset, order.batch, order.tail or dataset._tail)
        if not sampled:
            return _Mapped(dataset, order, self.num_workers)
        refuse(order.seed is not None or order.tail is not None, "seed and tail are for the loader's own order")
        _shuffle_of(order)
        refuse(order.has_rank(), "with a sampler, rank and world_size are the sampler's")
        batches = cast(Any, self).batch_sampler
        return _UserSampled(dataset, self.sampler if batches is None else batches, batches is None, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        """What torch lets a program set after the loader was made, as Lightning sets worker_init_fn."""
        inner = self.__dict__.get("_inner")
        if name == "num_workers" and inner is not None:
            raise ValueError("num_workers is fixed once a millrace.DataLoader is made: make a new one")
        if name == "pin_memory" and inner is not None:
            check_device(inner._millrace_device, value)
        super().__setattr__(name, value)
        if inner is not None and name in _MAY_BE_SET:
            setattr(inner, name, _collate(value, self._single) if name == "collate_fn" else value)

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


class _Order(NamedTuple):
    """What the arguments choose of the order. None: not given."""

    batch: int | None
    tail: str | None
    shuffle: bool | str | None
    seed: int | None
    rank: int | None
    world_size: int | None
    block_bytes: int | None
    mix_blocks: int | None

    def has_rank(self) -> bool:
        return self.rank is not None or self.world_size is not None


def _shuffle_of(order: _Order) -> Shuffle:
    """Like torch, it accepts any true or false value as shuffle."""
    shuffle = order.shuffle if isinstance(order.shuffle, str) else bool(order.shuffle)
    return _shuffle.of_arguments(shuffle, order.block_bytes, order.mix_blocks)


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


def refuse(condition: bool, text: str) -> None:
    if condition:
        raise ValueError(text)


class _Iteration(Iterator[Any]):
    """One pass: counts what the loop is given, in the main process only."""

    def __init__(
        self,
        source: _BatchSource,
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


class _Inner(Transported):
    """The torch DataLoader behind ours: its batches come with their times."""

    _millrace_sender = TimedSender

    def __init__(self, source: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._millrace_own_arenas = Arenas(None, source.count_batches)

    def sent(self) -> tuple[int, int, int]:
        """What the memory of batches has counted: batches, what found no room, what the loop held at each take."""
        counts = self._millrace_arenas.counts()
        return (0, 0, 0) if counts is None else (int(counts["batches"]), int(counts["beside"]), int(counts["held"]))


class _BatchSource:
    """Where a loader's batches come from: what differs between the kinds of data sets and samplers."""

    progress: Progress
    _dataset: IterableDataset | MapDataset
    _listing: tuple[int, str] | None = None  # number and digest of the one that the cursor counts in

    def client(self) -> Client:
        """This process's connection to the supervisor."""
        return self._dataset._source.connection().client

    def name(self) -> str:
        """The data set's; explicit lists have none, and go by what is in them. It is listed."""
        source = self._dataset._source
        return f"{source}, {source.index().digest[:12]}" if source.is_list else str(source)

    def rank(self) -> tuple[int, int]:
        return _arguments.resolve_rank(None, None)

    def loader(self, collate: Collate | None, workers: dict[str, Any], single: bool) -> Any:
        raise NotImplementedError

    def note_listing(self) -> None:
        """The cursor counts in the listing that the data set reads now."""
        source = self._dataset._source
        self._listing = source.number, source.index().digest

    def check_listing(self) -> None:
        """RuntimeError if the data set reads another one than the cursor counts in."""
        source = self._dataset._source
        if self._listing is None or source.number == self._listing[0] or source.index().digest == self._listing[1]:
            return
        raise RuntimeError(
            "a state of another listing was loaded into the data set meanwhile, by another loader of it or by itself: "
            "what this loader has left of the epoch is not in that one. Give each loader a data set of its own"
        )

    def begin(self) -> int | None:
        """Prepares an iteration at progress's epoch and cursor; its steps, None where a sampler has no length."""
        raise NotImplementedError

    def steps(self) -> int:
        """Of the iteration that would begin now."""
        raise NotImplementedError

    def left(self) -> int:
        """Of the present iteration, or of the epoch whose state was loaded."""
        raise NotImplementedError

    def cursor_after(self, step: int) -> int:
        raise NotImplementedError

    def samples_since(self, cursor: int) -> int:
        """How many different ones all ranks together were given since; -1: not known."""
        return -1

    def set_epoch(self, epoch: int) -> None:
        self.progress.set_epoch(epoch)

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class _Planned(_BatchSource):
    """The loader's own order: planned, sharded by rank, and independent of the number of ranks that resume it."""

    def __init__(
        self,
        dataset: IterableDataset | MapDataset,
        batch: int | None,
        tail: str,
        shuffle: Shuffle,
        seed: int,
    ) -> None:
        self._dataset, self._batch, self._tail = dataset, batch or 1, tail
        self._shuffle = shuffle
        self.progress = Progress(seed)
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}  # of a copy: its loop makes one

    def _loop(self, cursor: int | None = None) -> Loop:
        """Of the iteration that would begin now, or from that cursor of the present epoch."""
        rank, world = self.rank()
        at = self.progress
        epoch, cursor = at.next() if cursor is None else (at.epoch, cursor)
        return Loop(epoch, cursor, at.seed, self._batch, world, rank, *(at.blocks or ()))

    def _new_plan(self, cursor: int | None = None) -> Plan:
        return self._dataset._source.plan(self._loop(cursor), self._shuffle, self._tail)

    def given_rank(self) -> tuple[int | None, int | None]:
        """The arguments; None: not given."""
        raise NotImplementedError

    def begin(self) -> int:
        _mesh.check(self.rank(), self.given_rank())
        self._dataset._source.agree_on_order(self._loop(), self._shuffle, self._tail, self.progress)
        self._plan = self._new_plan()
        log_left_out(self._plan)
        return self._plan.steps

    def steps(self) -> int:
        return self._new_plan().steps

    def left(self) -> int:
        return self._new_plan(self.progress.cursor).steps

    def cursor_after(self, step: int) -> int:
        assert self._plan is not None
        return self._plan.cursor_after(step)

    def samples_since(self, cursor: int) -> int:
        return self.progress.cursor - cursor

    def state(self) -> dict[str, Any]:
        state = self.progress.state(self._dataset.digest, self._shuffle.blocks(self._dataset._source.index()))
        return {**state, "shuffle": self._shuffle.on}

    def load(self, state: dict[str, Any]) -> None:
        check_shuffle(state, self._shuffle.on)
        self.progress.load(state, self._dataset._source, self._shuffle.in_blocks)


class _Iterated(_Planned):
    """An IterableDataset: the workers make whole planned batches."""

    _dataset: IterableDataset

    def __init__(self, dataset: IterableDataset, batch: int | None, tail: str) -> None:
        super().__init__(dataset, batch, tail, dataset._shuffle, dataset._progress.seed)
        self.progress.begin_at(dataset._progress)
        self._key = HandedKey()

    def rank(self) -> tuple[int, int]:
        return self._dataset._rank()

    def given_rank(self) -> tuple[int | None, int | None]:
        return self._dataset._rank_arguments

    def loader(self, collate: Collate | None, workers: dict[str, Any], single: bool) -> Any:
        steps = _Steps(self._dataset, self._key, self._batch, self._tail, workers["num_workers"])
        return _Inner(self._dataset._source, steps, batch_size=None, collate_fn=_collate(collate, single), **workers)

    def begin(self) -> int:
        steps = super().begin()
        key = self._key.of(in_worker=False)
        self._dataset._source.put_loop(key, self._loop())  # for workers that live on: read as they open lanes
        return steps


class _Steps(torch.utils.data.IterableDataset[Any]):
    """What the inner loader iterates in each worker: lists of samples, a list a step. Without workers of its own the
    loop's process makes them all, also where that is a worker of another loader."""

    def __init__(self, dataset: IterableDataset, key: HandedKey, batch: int, tail: str, workers: int) -> None:
        self._dataset, self._key, self._batch, self._tail, self._workers = dataset, key, batch, tail, workers

    def __iter__(self) -> Iterator[list[Any]]:
        ours = _torch.worker() if self._workers else None
        worker, workers = ours or (0, 1)
        loop = self._dataset._loop(self._batch)  # for the size of the window; what the main process put decides
        try:
            key = self._key.of(in_worker=ours is not None)
            stream = self._dataset._stream(key, loop, self._tail, required=True)
        except Exception as error:
            if ours is None:
                raise
            return Failed(error)
        return _timing.each(stream.batches(worker, workers), stream.lane)


class _Mapped(_Planned):
    """A MapDataset in the loader's own order: the workers are told the numbers of the objects."""

    _dataset: MapDataset

    def __init__(self, dataset: MapDataset, order: _Order, workers: int) -> None:
        seed = _arguments.integer("seed", 0 if order.seed is None else order.seed, 0, _arguments.MAX_SEED)
        self._ranks = _arguments.rank_pair(order.rank, order.world_size)
        super().__init__(dataset, order.batch, order.tail or dataset._source.tail, _shuffle_of(order), seed)
        self._workers = workers

    def rank(self) -> tuple[int, int]:
        return _arguments.resolve_rank(*self._ranks)

    def given_rank(self) -> tuple[int | None, int | None]:
        return self._ranks

    def loader(self, collate: Collate | None, workers: dict[str, Any], single: bool) -> Any:
        depth = look_ahead(self._dataset, self._batch)
        batches = _Announcing(self._batches, self._workers, depth, self.progress)
        return _map_loader(self._dataset, batches, _collate(collate, single), workers)

    def _batches(self) -> Iterable[Sequence[int]]:
        plan = self._plan
        assert plan is not None
        return (plan.objects(step) for step in range(plan.steps))


class _PlannedSampler(torch.utils.data.DistributedSampler[int]):
    """The loader's own order as `loader.sampler`, for libraries that divide what is not divided (Lightning, Fabric,
    Ray), or make another loader with it (Lightning, to predict)."""

    def __init__(self, source: _Mapped) -> None:
        self._source = source
        self.dataset = cast(Any, source._dataset)
        self.epoch = 0  # nobody's: the loader counts them itself
        self.rank, self.num_replicas = source.rank()
        self.shuffle, self.seed, self.drop_last = source._shuffle.on, source.progress.seed, source._tail == "drop"

    def __iter__(self) -> Iterator[int]:
        plan = self._source._new_plan()
        for step in range(plan.steps):
            yield from plan.objects(step)

    def __len__(self) -> int:
        plan = self._source._new_plan()
        return (plan.steps - 1) * plan.share(0)[1] + plan.share(plan.steps - 1)[1] if plan.steps > 0 else 0

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the loader's does."""


class _UserSampled(_BatchSource):
    """A MapDataset in the order of a user's sampler: a resume skips the batches that were given."""

    _dataset: MapDataset

    def __init__(self, dataset: MapDataset, sampler: Any, single: bool, workers: int) -> None:
        self._dataset, self._sampler, self._single, self._workers = dataset, sampler, single, workers
        self.progress = Progress(0)  # its cursor counts batches
        self._draws = Draws(sampler)
        self._skip = 0

    def loader(self, collate: Collate | None, workers: dict[str, Any], single: bool) -> Any:
        depth = look_ahead(self._dataset, self._batch() or 1)
        batches = _Announcing(self._batches, self._workers, depth, self.progress)
        return _map_loader(self._dataset, batches, _collate(collate, single), workers)

    def _batch(self) -> int | None:
        """The samples of a batch, if the sampler says how many."""
        size = 1 if self._single else getattr(self._sampler, "batch_size", None)
        return size if isinstance(size, int) and size > 0 else None

    def _batches(self) -> Iterable[Sequence[int]]:
        self._draws.begin()  # when torch would draw: after the seed of the workers
        for batch in islice(iter(self._sampler), self._skip, None):
            yield [batch] if self._single else batch

    def begin(self) -> int | None:
        self._skip = self.progress.cursor
        if self._skip > 0:
            self._draws.repeat()
        self._dataset._source.agree(_arguments.resolve_rank(None, None)[1], by_number=True)
        try:
            return self.steps()
        except TypeError:  # a sampler without a length, such as an endless one
            return None

    def steps(self) -> int:
        _, cursor = self.progress.next()
        return max(0, len(self._sampler) - cursor)

    def left(self) -> int:
        return max(0, len(self._sampler) - self.progress.cursor)

    def cursor_after(self, step: int) -> int:
        return self._skip + step + 1

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.progress.epoch and self.progress.cursor > 0:
            self._draws.leave()
        super().set_epoch(epoch)
        self._set_sampler_s(epoch)

    def _set_sampler_s(self, epoch: int) -> None:
        for sampler in self._with_epochs():
            sampler.set_epoch(epoch)

    def _follows_the_listing(self) -> bool:
        """Whether the sampler asks the data set itself how many objects there are, each time that it begins."""
        inner = getattr(self._sampler, "sampler", self._sampler)
        return type(inner) in (RandomSampler, SequentialSampler) and inner.data_source is self._dataset

    def _with_epochs(self) -> list[Any]:
        both = (self._sampler, getattr(self._sampler, "sampler", None))
        return [sampler for sampler in both if hasattr(sampler, "set_epoch")]

    def state(self) -> dict[str, Any]:
        """With the sampler's own epoch, as torch's DistributedSampler has it: a program that never calls set_epoch
        stays in its first one."""
        state = {**self.progress.state(self._dataset.digest), "world": _arguments.resolve_rank(None, None)[1]}
        epochs = [getattr(sampler, "epoch", None) for sampler in self._with_epochs()]
        known = [epoch for epoch in epochs if isinstance(epoch, int)]
        state |= self._draws.state(self.progress.cursor > 0)
        batch = self._batch()
        state |= {} if batch is None else {"batch_size": batch}
        return {**state, "sampler_epoch": known[0]} if known else state

    def load(self, state: dict[str, Any]) -> None:
        epoch, cursor, world = (number(state, key) for key in ("epoch", "cursor", "world"))
        now = _arguments.resolve_rank(None, None)[1]
        if world != now:
            raise ValueError(
                f"the state is of a sampler in a world of {world} ranks, this one has {now}: only the loader's own "
                "order (no sampler) continues with another number"
            )
        batch = self._batch()
        if cursor > 0 and batch is not None and number({"batch_size": batch, **state}, "batch_size") != batch:
            raise ValueError(
                f"the state counts batches of {state['batch_size']} samples, and these are of {batch}: the rest of an "
                "epoch needs the batch size that it was begun with"
            )
        sampler_epoch = number(state, "sampler_epoch") if "sampler_epoch" in state else epoch
        draws = self._draws.check(state, cursor > 0)
        saved = digest_of(state)
        if not self._follows_the_listing() and saved != self._dataset.digest:
            raise ValueError(
                "the state is of another listing than the one that the sampler was made for, and a "
                f"{type(self._sampler).__name__} may count or name its objects: call "
                'dataset.use_listing(state["digest"]) before the sampler is made'
            )
        listing_of(state, self._dataset._source)
        self.progress.set_epoch(epoch)
        self._set_sampler_s(sampler_epoch)
        self._draws.load(draws)
        self.progress.cursor = cursor


def look_ahead(dataset: MapDataset, batch: int) -> int:
    """Batches of a worker that fit its window beside the one it works on; more would wait in the worker's queue. With a
    window of one sample none is looked at ahead."""
    return 0 if dataset._window == 1 else max(1, (dataset._window or WINDOW) // batch - 1)


def _map_loader(dataset: MapDataset, batches: _Announcing, collate: Collate, workers: dict[str, Any]) -> Any:
    return _Inner(dataset._source, cast(Any, dataset), batch_sampler=batches, collate_fn=collate, **workers)


class _Announcing:
    """A batch sampler whose batches carry the following ones of the same worker."""

    def __init__(self, batches: Callable[[], Any], workers: int, depth: int, progress: Progress) -> None:
        self._batches, self._workers, self._depth, self._progress = batches, max(workers, 1), depth, progress

    def __iter__(self) -> Iterator[Announced]:
        return announce(self._batches(), self._workers, self._depth, self._progress.serial)


class _SingleSample:
    """collate_fn for batch_size=None: the one sample of the step, not a batch of it."""

    def __init__(self, convert: Collate) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])


def _collate(collate: Collate | None, single: bool) -> Collate:
    return _SingleSample(collate or default_convert) if single else collate or default_collate
