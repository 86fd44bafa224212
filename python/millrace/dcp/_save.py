"""StorageWriter: what torch.distributed.checkpoint saves, into objects that are confirmed before `.metadata` is."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import heapq
import io
import logging
import pickle
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, cast

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.filesystem import _StorageInfo  # what torch's own reader finds in `.metadata`
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from millrace import _supervisor, checkpoint
from millrace._connection import Connection
from millrace._errors import ChangedError
from millrace.checkpoint._objects import read_object, remove_each
from millrace.checkpoint._uri import Place

from .._arguments import local_ranks
from ._layout import (
    DATA,
    Located,
    base_uri,
    data_name,
    data_pattern,
    is_abandoned,
    metadata_name,
    new_save,
    rank_prefix,
    with_rank,
)
from ._metadata import unpickled
from ._stage import AsyncStager, staged
from ._tensor import element_size, packed

log = logging.getLogger("millrace")

TRIES = 10  # of a save that overlaps with others
METADATA_VERSION = "1.0.0"  # of torch's FileSystemWriter


@dataclasses.dataclass(frozen=True)
class _Rank:
    """What a plan carries to its rank: which one it is, and how the names of its objects begin."""

    number: int
    prefix: str


@dataclasses.dataclass
class _Save:
    """One save, from its reset() to its finish()."""

    uri: str | None
    rank: int | None = None  # with use_collectives=False alone
    number: str = dataclasses.field(default_factory=new_save)
    abandoned: list[str] = dataclasses.field(default_factory=list)  # data objects that an earlier save has left
    pattern: re.Pattern[str] = DATA  # what data objects are called

    def base(self) -> str:
        assert self.uri is not None  # set_up_storage_writer checks it
        return self.uri

    def object(self, name: str) -> str:
        return f"{self.base()}/{name}"

    def owns(self, name: str) -> bool:
        """Whether it is a data object of the checkpoint, and of this rank's where each has its own metadata."""
        match = self.pattern.fullmatch(name)
        return match is not None and (match[1] is None or self.rank in (None, int(match[1])))


class StorageWriter(Located, storage.StorageWriter, AsyncStager):  # type: ignore[misc]
    """Saves to `uri`, or to the checkpoint_id of each save; one instance may be used for any number of saves.

    Each rank writes `files_per_rank` objects at once, and `.metadata` follows when the store has confirmed the crc32c
    of all of them. A checkpoint that is there already is replaced by that: until then it stays as it is, afterwards
    its data objects are removed. overwrite=False refuses instead. timeout_s: how long an object waits for memory that
    others have; None: for ever. extensions: what each item goes through on its way, as torch's FileSystemWriter has it
    since 2.7: torch.distributed.checkpoint._extension.ZStandard() compresses.
    """

    def __init__(
        self,
        uri: Place | None = None,
        *,
        files_per_rank: int = 1,
        overwrite: bool = True,
        timeout_s: float | None = 300.0,
        extensions: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        if files_per_rank < 1:
            raise ValueError(f"files_per_rank is {files_per_rank}: at least 1")
        self._uri = None if uri is None else base_uri(uri)
        self._files_per_rank = files_per_rank
        self._overwrite = overwrite
        self._timeout_s = timeout_s
        self._extensions = tuple(extensions)
        self._saves = threading.local()  # a save is one thread's from its reset to its end: several may overlap
        # One after the other: each removes what the one before has written. A signal handler may save too.
        self._finishing = threading.RLock()
        self._connection: Connection | None = None
        _supervisor.expect_writer()
        # Where it is pickled to (torch's process checkpointer), the same supervisor.
        self._adopted = (self._connect().path, _supervisor.preferred().key)

    # ---- what torch asks for ----

    @property
    def checkpoint_id(self) -> str | None:
        return self._current().uri

    def reset(self, checkpoint_id: Place | None = None) -> None:
        uri = base_uri(checkpoint_id) if checkpoint_id else self._uri
        if checkpoint_id:
            self._uri = uri
        self._saves.current = _Save(uri)  # this thread's, whatever another one has set meanwhile

    def storage_meta(self) -> Any:
        from torch.distributed.checkpoint.metadata import StorageMeta  # not in torch 2.3.1, which does not ask

        save = self._current()
        return StorageMeta(checkpoint_id=save.uri, save_id=save.number)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        uri = self._current().uri
        if uri is None:
            raise ValueError("where to save to? Give dcp.save a checkpoint_id, or StorageWriter a URI")
        self._connect()
        rank = None if kwargs.get("use_collectives", True) else int(kwargs["rank"])
        self._saves.current = _Save(uri, rank)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        rank = self._current().rank
        if rank is None:
            return plan
        return dataclasses.replace(plan, storage_data=_Rank(rank, self._prefix(rank)))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        save = self._current()
        prefixes = [self._prefix(rank) for rank in (range(len(plans)) if save.rank is None else [save.rank])]
        save.pattern = data_pattern(prefixes)
        self._find_earlier(save)
        if save.rank is not None:
            return plans
        ranks = (_Rank(rank, prefix) for rank, prefix in enumerate(prefixes))
        return [dataclasses.replace(plan, storage_data=rank) for plan, rank in zip(plans, ranks)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        save = self._current()
        of_rank = cast(_Rank, plan.storage_data)
        rank, stop = of_rank.number, threading.Event()
        names = (data_name(of_rank.prefix, i, save.number) for i in range(self._files_per_rank))
        work = list(zip(names, _split(plan.items, self._files_per_rank)))
        if len(work) == 1:
            results = self._write_object(save, rank, *work[0], planner, stop)
        else:
            with ThreadPoolExecutor(max(len(work), 1), thread_name_prefix="millrace-dcp") as pool:
                try:
                    jobs = [
                        pool.submit(
                            contextvars.copy_context().run, self._write_object, save, rank, name, items, planner, stop
                        )
                        for name, items in work
                    ]
                    wait(jobs)
                except BaseException:  # Ctrl-C: the objects are not written to their ends
                    stop.set()
                    raise
            results = [result for job in _failed_first(jobs) for result in job.result()]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        save = self._current()
        # A planner that caches its plans gives one object to all saves, also to those that are under way beside this.
        own = copy.copy(metadata)
        stored = {result.index: result.storage_data for of_rank in results for result in of_rank}
        for each in (own, metadata):
            each.storage_data = stored
            if hasattr(each, "version"):  # not in torch 2.3.1
                each.version = METADATA_VERSION
                each.storage_meta = self.storage_meta()
        uri = save.object(metadata_name(save.rank))
        try:
            with self._finishing:
                replaced = self._replace(uri, pickle.dumps(own))
        except Exception as error:
            raise with_rank(error, save.rank or 0, f"saving {uri}") from error
        kept = {info.relative_path for info in stored.values()}
        self._remove(save, sorted(name for name in {*replaced, *save.abandoned} - kept if save.owns(name)))

    # ---- what async_save asks for, before it saves in a thread or a process ----

    _synchronize_after_execute = False  # stage() returns when all is copied

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy on the CPU. Where async_save is given a stager that takes its place: torch's own, as of 2.15, cannot
        copy the ShardedTensors of FSDP."""
        copied: dict[str, Any] = staged(state_dict)
        return copied

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Nothing: a writer may be used on after async_save."""

    # ---- how ----

    def _prefix(self, rank: int) -> str:
        """How the names of that rank's objects begin, below the checkpoint."""
        return rank_prefix(rank)

    def _connect(self) -> Connection:
        """Held from save to save: a private supervisor ends with its last client, and its memory ends with it."""
        self._connection = _supervisor.connection(maker="a checkpoint writer")
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_uri": self._current().uri, "_saves": None, "_finishing": None, "_connection": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._saves = threading.local()
        self._finishing = threading.RLock()
        _supervisor.adopt(*self._adopted)

    def _current(self) -> _Save:
        """This thread's save."""
        if not hasattr(self._saves, "current"):
            self._saves.current = _Save(self._uri)
        return cast(_Save, self._saves.current)

    def _find_earlier(self, save: _Save) -> None:
        """What is there already: refused, or removed once this save is whole."""
        uri = save.object(metadata_name(save.rank))
        try:
            found = checkpoint.list(save.base())
        except Exception as error:  # one may write objects without being allowed to list them
            log.warning("what failed saves have left at %s will not be removed: %s", save.uri, error)
            return
        if not self._overwrite and uri in found:
            refused = FileExistsError(f"Checkpoint already exists, and overwrite is False: {uri}")  # torch's words
            raise with_rank(refused, save.rank or 0, "saving")
        if save.rank is not None and save.object(metadata_name(None)) in found:
            hides = FileExistsError(f"{save.object(metadata_name(None))} would hide a save with use_collectives=False")
            raise with_rank(hides, save.rank, "saving")
        # Those that the `.metadata` names may be among them: they go when it is replaced, as the others do.
        names = (one[len(save.base()) + 1 :] for one in found)
        save.abandoned = [name for name in names if is_abandoned(name)]

    def _replace(self, uri: str, metadata: bytes) -> set[str]:
        """Writes the `.metadata`, and says what the one that it replaces had named. Where a save that overlaps has put
        its own there meanwhile, that one is replaced: the last to end stays."""
        replaced: set[str] = set()
        for left in reversed(range(TRIES)):
            try:
                with checkpoint.writer(uri, if_absent=not self._overwrite, timeout_s=self._timeout_s) as stream:
                    if self._overwrite:
                        replaced |= self._named_by(uri)
                    stream.write(metadata)
                break
            except ChangedError:
                if left == 0 or not self._overwrite:
                    raise
        return replaced

    def _named_by(self, uri: str) -> set[str]:
        """The data objects of the checkpoint that is to be replaced. What is not named here may be of a save that is
        under way."""
        try:
            storage_data = getattr(unpickled(read_object(uri)), "storage_data", None) or {}
            return {info.relative_path for info in storage_data.values()}
        except (FileNotFoundError, ChangedError):  # replaced once more: then the write that this is for fails
            return set()
        except Exception as error:
            log.warning("the objects of the checkpoint that is replaced will not be removed: %s: %s", uri, error)
            return set()

    def _write_object(
        self,
        save: _Save,
        rank: int,
        name: str,
        items: list[WriteItem],
        planner: SavePlanner,
        stop: threading.Event,
    ) -> list[WriteResult]:
        """One object with these items. Returns when the store has confirmed it."""
        uri = save.object(name)
        what = f"saving {uri}"
        results = []
        try:
            with checkpoint.writer(uri, sharers=self._sharers(), timeout_s=self._timeout_s) as stream:
                for item in items:
                    what = f"saving {item.index.fqn} into {uri}"
                    if stop.is_set():
                        raise InterruptedError("another object of this rank failed")
                    results.append(_write_item(stream, name, item, planner, self._extensions))
                what = f"saving {uri}"
        except Exception as error:
            stop.set()
            raise with_rank(error, rank, what) from error
        return results

    def _sharers(self) -> int:
        """How many writers of this node are open at the same time."""
        return local_ranks() * self._files_per_rank

    def _remove(self, save: _Save, names: list[str]) -> None:
        """The new checkpoint is whole: what cannot be removed costs money and does no other harm."""
        if not names:
            return
        try:
            failures: Sequence[Exception] = remove_each(save.object(name) for name in names)
        except Exception as error:
            failures = [error] * len(names)
        if failures:
            log.warning(
                "%s: %d of %d old objects are still there: %s", save.uri, len(failures), len(names), failures[0]
            )


def _failed_first(jobs: list[Any]) -> list[Any]:
    """In order, but the one that failed by itself before those that it stopped."""
    for job in jobs:
        error = job.exception()
        if error is not None and not isinstance(error.__cause__, InterruptedError):
            raise error
    return jobs


def _size(item: WriteItem) -> int:
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return 0  # unknown until it is resolved
    return int(item.tensor_data.size.numel() * element_size(item.tensor_data.properties.dtype))


def _split(items: list[WriteItem], count: int) -> list[list[WriteItem]]:
    """At most count lists of about the same number of bytes, none of them empty."""
    if count == 1:
        return [items] if items else []
    lists: list[list[WriteItem]] = [[] for _ in range(count)]
    sizes = [(0, 0, i) for i in range(count)]  # bytes, items, which
    for item in sorted(items, key=_size, reverse=True):
        size, number, i = heapq.heappop(sizes)
        lists[i].append(item)
        heapq.heappush(sizes, (size + _size(item), number + 1, i))
    return [of_one for of_one in lists if of_one]


def _write_item(
    stream: Any, name: str, item: WriteItem, planner: SavePlanner, extensions: Sequence[Any]
) -> WriteResult:
    """Only now is a tensor of a device copied: one at a time."""
    data: Any = planner.resolve_data(item)
    offset, target = stream.tell(), stream
    more: dict[str, Any] = {}
    if extensions:
        from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms  # not in torch 2.3.1

        target, more["transform_descriptors"] = _StorageWriterTransforms(extensions).transform_save_stream(item, stream)
    if isinstance(data, torch.Tensor):
        torch.save(packed(data.detach()), target)
    else:
        target.write(cast(io.BytesIO, data).getbuffer())
    if extensions:
        target.close()  # which leaves stream open
    length = stream.tell() - offset
    return WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, offset, length, **more))
