"""IterableDataset: the objects of a data set in the order of an epoch, dealt to ranks and DataLoader workers."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

from . import _accelerate, _arguments, _mesh, _shuffle, _torch
from ._connection import Loop
from ._dataset import Dataset
from ._errors import Error
from ._handed import HandedKey
from ._progress import MAX_EPOCH, Progress, check_shuffle, number
from ._ring import Plan
from ._stream import Stream, Transform

AHEAD_MOST = 16384  # samples that a lane asks for where the order needs more than usual

log = logging.getLogger("millrace")
_logged_single = False


LISTING_LEFT = Loop(0, 0, 0, 1, 0, 0)  # instead of where an epoch stands: the data set reads another listing now


class IterableDataset(Dataset):
    """The objects under a URI, in an order that depends on (digest, seed, epoch) alone.

    source: a URI ("gs://bucket/prefix/"), several, a folder, or a name in the TOML. Returns at once; `len`, `.objects`
    and iteration wait for the listing. A URI that ends in ".tar", or format="tar", names shards, whose samples are what
    is read. transform gets a Lease, or a Sample, and runs where the data set is iterated. tail is "short",
    "drop" or "pad", on_error "raise", "skip" or "replace"; without them a name's are those of the TOML, else the first.
    shuffle="block" shuffles runs of about block_bytes of consecutive objects, and then the samples of each mix_blocks
    of them.

    Give it to millrace.DataLoader, use `.batches(n)` without torch, or iterate it: with batch_size it yields the
    planned batches as lists (what a bare torch DataLoader with batch_size=None passes on), without it single samples.
    """

    _torch_base = "IterableDataset"

    def __init__(
        self,
        source: Any,
        *,
        transform: Transform = None,
        shuffle: bool | str = False,
        seed: int = 0,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str | None = None,
        on_error: str | None = None,
        window: int | None = None,
        writable: bool = False,
        decompress: bool | int = False,
        format: str | None = None,
        block_bytes: int | None = None,
        mix_blocks: int | None = None,
    ) -> None:
        self._shuffle = _shuffle.of_arguments(shuffle, block_bytes, mix_blocks)
        seed = _arguments.integer("seed", seed, 0, _arguments.MAX_SEED)
        self.batch_size = _arguments.batch_size(batch_size)
        self._rank_arguments = _arguments.rank_pair(rank, world_size)
        # Where the parent has pickled it: its pid, and the rank and world that it had.
        self._pickled_in: tuple[int, int, int] | None = None
        chosen_tail = _arguments.tail(tail, drop_last)
        self._progress = Progress(seed)
        self._key = HandedKey()
        self._is_own_place = False  # the next iteration is where this copy of a worker's was loaded
        super().__init__(source, transform, on_error, window, writable, decompress, format)
        self._tail = chosen_tail or self._source.tail

    def __len__(self) -> int:
        """Batches of this rank with batch_size, else samples of this rank; of the rest of the epoch.

        A torch DataLoader that asks gets what makes its own length exactly the batches that it gives.
        """
        if type(self).__iter__ is not IterableDataset.__iter__:
            raise TypeError(
                f"{type(self).__name__} has an __iter__ of its own, and millrace cannot count what that gives: it "
                "needs a __len__ of its own too, or none is known"
            )
        loader = _torch.loader_asking(self, sys._getframe(1))
        workers = max(1, loader.num_workers) if loader is not None else 1
        counts = [self._items(worker, workers) for worker in range(workers)]
        size: int | None = None if loader is None else loader.batch_size
        if size is None:
            return sum(counts)
        return size * sum(count // size if loader.drop_last else -(-count // size) for count in counts)

    def _items(self, worker: int, workers: int) -> int:
        """What __iter__ gives in this worker."""
        if self.batch_size is None:
            return self._plan(self._loop(1)).single_count(worker, workers)
        return len(range(worker, self._plan(self._loop(self.batch_size)).steps, workers))

    def __iter__(self) -> Iterator[Any]:
        """The epoch that set_epoch named (0 at first); iterating does not advance it, as `.batches` does. The iterator
        has a state of its own, which torchdata's StatefulDataLoader keeps."""
        worker, workers = _torch.worker() or (0, 1)
        if self.batch_size is None:
            self._log_single(worker)
        try:
            loop = self._loop(self.batch_size or 1)
            _accelerate.refuse_to_divide(loop.world)
            self._agree_on_order(loop)
            key, self._is_own_place = None if self._is_own_place else self._handed_key(), False
            stream = self._stream(key, loop, self._tail)
        except Exception as error:
            if _torch.worker() is None:
                raise
            return Failed(error)
        return Share(stream, worker, workers, self.batch_size is None)

    def batches(self, batch_size: int | None = None) -> Batches:
        """Lists of samples, without torch. Each iteration is the next epoch."""
        chosen = _arguments.batch_size(batch_size) or self.batch_size
        if chosen is None:
            raise ValueError("batches() needs a batch size, here or as batch_size of the data set")
        return Batches(self, chosen)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, also in workers that live on."""
        self._progress.set_epoch(_arguments.integer("epoch", epoch, 0, MAX_EPOCH))
        loop = self._loop(self.batch_size or 1)
        self._agree_on_order(loop)
        self._source.put_loop(self._handed_key(), loop)

    def state_dict(self) -> dict[str, Any]:
        """Where `.batches` stands: {digest, seed, epoch, cursor, shuffle}, with shuffle="block" also {block, mix}."""
        state = self._progress.state(self.digest, self._shuffle.blocks(self._source.index()))
        return {**state, "shuffle": self._shuffle.on}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration continues there, over what is left of the epoch. The state may be of any number of ranks,
        and of millrace.DataLoader."""
        check_shuffle(state, self._shuffle.on)
        before = self._source.number
        self._progress.load(state, self._source, self._shuffle.in_blocks)
        if self._source.number != before and _torch.worker() is not None:
            self._is_own_place = True  # by torchdata's loader, in whose process the data set has another listing
            return
        if self._source.number != before:
            self._listing_changed()
        self._source.put_loop(self._handed_key(), self._loop(self.batch_size or 1))

    def _listing_changed(self) -> None:
        """Workers that live on read the listing before, and are told so; by none of themselves."""
        if _torch.worker() is None:
            self._source.put_loop(self._handed_key(), LISTING_LEFT)
            self._key = HandedKey()

    def _handed_key(self) -> str:
        return self._key.of(in_worker=_torch.worker() is not None)

    def _pickled(self) -> dict[str, Any]:
        rank, world = self._rank()
        _accelerate.refuse_to_divide(world)  # for workers that are not forked
        return {**self.__dict__, "_pickled_in": (os.getpid(), rank, world), "_copied": self._pickled_in}

    def _unpickle(self, state: dict[str, Any]) -> None:
        original = state.pop("_copied")
        super()._unpickle(state)
        pid = state["_pickled_in"][0]
        parent = multiprocessing.parent_process()  # none yet while a process gets its arguments
        is_of_parent = parent.pid == pid if parent else getattr(multiprocessing.current_process(), "_inheriting", False)
        if pid == os.getpid():
            self._pickled_in = original
        elif not is_of_parent:  # another program's: its rank means nothing here
            self._pickled_in = None

    def _rank(self) -> tuple[int, int]:
        """(rank, world). A process that got the data set pickled may be a worker, which has no torch.distributed to
        ask: then they are its parent's. It may as well be a rank, whose parent has none; or neither, with workers."""
        found = _arguments.resolve_rank(*self._rank_arguments)
        if self._pickled_in is None:
            return found
        pid, rank, world = self._pickled_in
        parent = multiprocessing.parent_process()
        is_of_loop = _torch.worker() is not None and parent is not None and parent.pid == pid
        return (rank, world) if is_of_loop or found == (0, 1) else found

    def __deepcopy__(self, memo: dict[int, Any]) -> IterableDataset:
        """A data set of its own: what is set or loaded here does not move it."""
        copied = copy.copy(self)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _loop(self, batch: int) -> Loop:
        rank, world = self._rank()
        at = self._progress
        return Loop(at.epoch, at.cursor, at.seed, batch, world, rank, *(at.blocks or ()))

    def _agree_on_order(self, loop: Loop) -> None:
        _mesh.check((loop.rank, loop.world), self._rank_arguments)
        self._source.agree_on_order(loop, self._shuffle, self._tail, self._progress)

    def _plan(self, loop: Loop, tail: str | None = None) -> Plan:
        return self._source.plan(loop, self._shuffle, tail or self._tail)

    def _stream(self, key: str | None, loop: Loop, tail: str, required: bool = False) -> Stream:
        """A lane for this process. What was put under key counts more than loop: a worker's copy may be old."""
        ahead = self._ahead(loop) if self._window is None else 0
        lane, put = self._source.open_lane(self._window, loop.batch, key, self._writable, self._decompress, ahead)
        if put is None and required:
            raise Error(
                "the supervisor has forgotten where this loader stands, and a copy may be old: were hundreds of "
                "loaders begun at once?"
            )
        if put == LISTING_LEFT:
            raise Error(
                "this worker reads the listing that the data set had when it began, and a state of another one was "
                "loaded since: without persistent_workers, or in a new DataLoader, workers begin anew"
            )
        if put is not None and not required:
            if (put.rank, put.world) == (0, 1):  # set_epoch may have been before the job's process group
                put = put._replace(rank=loop.rank, world=loop.world)
            if _torch.worker() is not None:
                self._progress.follow(put)  # so that the state of a worker that lives on has it too
        transform = self._delivered if self._source.is_samples() or self._transform is not None else None
        loop = put or loop
        return Stream(lane, self._plan(loop, tail), transform, self._on_error, self._error_of, loop)

    def _ahead(self, loop: Loop) -> int:
        """How far this process looks ahead at least: its share of two mixes of blocks. Then each block is whole when it
        is begun, and one request brings all of it."""
        if not self._source.is_samples():
            return 0
        _, workers = _torch.worker() or (0, 1)
        block, mix = self._source.blocks(loop, self._shuffle)
        return min(2 * block * mix // (loop.world * workers) + 2 * loop.batch, AHEAD_MOST)

    def _log_single(self, worker: int) -> None:
        global _logged_single
        if _torch.worker() is not None and worker == 0 and not _logged_single:
            _logged_single = True
            log.info(
                "a data set without batch_size in a DataLoader: the order depends on the number of workers, and no "
                "state counts what the loop is given; millrace.DataLoader has neither limit"
            )


class Share(Iterator[Any]):
    """What this process makes of an epoch. `state_dict()` is how much of it is behind; an iterator of the same part
    that has not begun goes on there."""

    def __init__(self, stream: Stream, worker: int, workers: int, single: bool) -> None:
        self._stream = stream
        loop = stream.loop._asdict()
        del loop["block"], loop["mix"]  # the data set's state has them
        self._part = {**loop, "worker": worker, "workers": workers, "single": single}
        self._items = (stream.singles if single else stream.batches)(worker, workers)
        self._has_begun = False

    def __next__(self) -> Any:
        self._has_begun = True
        return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        return {**self._part, "done": self._stream.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ValueError for a state of another part of an epoch. To be called before anything is taken."""
        if self._has_begun:
            raise RuntimeError("this iteration has begun: a state is loaded into a new one")
        for key, value in self._part.items():
            if state.get(key) != value:
                raise ValueError(
                    f"the state is of another part of an epoch: its {key} is {state.get(key)!r}, and not {value!r}"
                )
        self._stream.done = number(state, "done")


class Failed(Iterator[Any]):
    """Raises it by its next(): torch ends a persistent worker whose data set cannot be iterated."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __next__(self) -> Any:
        raise self._error


class Batches:
    """`for batch in dataset.batches(n)`: the loop's own iterable, which advances the data set's epoch."""

    def __init__(self, dataset: IterableDataset, batch_size: int) -> None:
        self._dataset, self._batch_size = dataset, batch_size

    def __len__(self) -> int:
        dataset = self._dataset
        epoch, cursor = dataset._progress.next()
        return dataset._plan(dataset._loop(self._batch_size)._replace(epoch=epoch, cursor=cursor)).steps

    def __iter__(self) -> Iterator[list[Any]]:
        dataset = self._dataset
        serial = dataset._progress.begin()
        loop = dataset._loop(self._batch_size)
        dataset._agree_on_order(loop)
        plan = dataset._plan(loop)
        log_left_out(plan)
        return self._deliver(serial, plan, dataset._stream(None, loop, dataset._tail).batches(0, 1))

    def _deliver(self, serial: int, plan: Plan, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        progress = self._dataset._progress
        step = -1
        for batch in batches:  # not by enumerate, which would hold it while the next one is fetched
            step += 1
            progress.check(serial)
            place, cursor = progress.place(), plan.cursor_after(step)
            try:
                progress.give(cursor)
            except BaseException:  # of a signal handler, with the batch in hand
                progress.take_back(place)
                raise
            yield batch
            del batch  # the loop's alone from here on: its Leases end when the loop drops them
            progress.check(serial)
        progress.check(serial)
        progress.finish()


def log_left_out(plan: Plan) -> None:
    if plan.left_out:
        log.info("%d objects at the end of the epoch are left out, so that all ranks make equal steps", plan.left_out)
