"""Where a DataLoader's batches come from: a plan over a data set of either kind, or a user's sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Callable, NamedTuple, cast

import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler, default_collate
from torch.utils.data._utils.collate import default_convert

from . import _agree, _arguments, _mesh, _shuffle, _timing, _torch
from ._batches import Arenas, TimedSender, Transported
from ._connection import Loop
from ._draws import Draws
from ._handed import HandedKey
from ._iterable import Failed, IterableDataset, log_left_out
from ._map import Announced, MapDataset, announce
from ._progress import Progress, check_shuffle, digest_of, listing_of, number
from ._ring import Client, Plan
from ._shuffle import Shuffle

Collate = Callable[[Any], Any]
WINDOW = 256  # what to announce ahead for; the configuration's default of lanes.window


class Order(NamedTuple):
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


def shuffle_of(order: Order) -> Shuffle:
    """Like torch, it accepts any true or false value as shuffle."""
    shuffle = order.shuffle if isinstance(order.shuffle, str) else bool(order.shuffle)
    return _shuffle.of_arguments(shuffle, order.block_bytes, order.mix_blocks)


def refuse(condition: bool, text: str) -> None:
    if condition:
        raise ValueError(text)


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


class BatchSource:
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

    def end(self) -> None:
        """The loop has had all batches of an iteration."""

    def samples_since(self, cursor: int) -> int:
        """How many different ones all ranks together were given since; -1: not known."""
        return -1

    def set_epoch(self, epoch: int) -> None:
        self.progress.set_epoch(epoch)

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Planned(BatchSource):
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
        self._begun: str | None = None  # of the present iteration, among the ranks

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
        source, loop = self._dataset._source, self._loop()
        source.agree_on_order(loop, self._shuffle, self._tail, self.progress)
        self._begun = source.begin(loop, self._shuffle, self._tail)
        self._plan = self._new_plan()
        log_left_out(self._plan)
        return self._plan.steps

    def steps(self) -> int:
        return self._new_plan().steps

    def left(self) -> int:
        return self._new_plan(self.progress.cursor).steps

    def end(self) -> None:
        _agree.warn_if_alone(str(self._dataset._source), self._begun, self.progress.epoch)

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


class Iterated(Planned):
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
        return _Inner(self._dataset._source, steps, batch_size=None, collate_fn=collate_of(collate, single), **workers)

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


class Mapped(Planned):
    """A MapDataset in the loader's own order: the workers are told the numbers of the objects."""

    _dataset: MapDataset

    def __init__(self, dataset: MapDataset, order: Order, workers: int) -> None:
        seed = _arguments.integer("seed", 0 if order.seed is None else order.seed, 0, _arguments.MAX_SEED)
        self._ranks = _arguments.rank_pair(order.rank, order.world_size)
        super().__init__(dataset, order.batch, order.tail or dataset._source.tail, shuffle_of(order), seed)
        self._workers = workers

    def rank(self) -> tuple[int, int]:
        return _arguments.resolve_rank(*self._ranks)

    def given_rank(self) -> tuple[int | None, int | None]:
        return self._ranks

    def loader(self, collate: Collate | None, workers: dict[str, Any], single: bool) -> Any:
        depth = look_ahead(self._dataset, self._batch)
        batches = _Announcing(self._batches, self._workers, depth, self.progress)
        return _map_loader(self._dataset, batches, collate_of(collate, single), workers)

    def _batches(self) -> Iterable[Sequence[int]]:
        plan = self._plan
        assert plan is not None
        return (plan.objects(step) for step in range(plan.steps))


class PlannedSampler(torch.utils.data.DistributedSampler[int]):
    """The loader's own order as `loader.sampler`, for libraries that divide what is not divided (Lightning, Fabric,
    Ray), or make another loader with it (Lightning, to predict)."""

    def __init__(self, source: Mapped) -> None:
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


class PlannedSequence(PlannedSampler, SequentialSampler):
    """The same where nothing is shuffled, for who asks."""


class UserSampled(BatchSource):
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
        return _map_loader(self._dataset, batches, collate_of(collate, single), workers)

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


def collate_of(collate: Collate | None, single: bool) -> Collate:
    return _SingleSample(collate or default_convert) if single else collate or default_collate
