"""StorageWriter: what torch.distributed.checkpoint saves, into objects that are confirmed before `.metadata` is."""

from __future__ import annotations

import dataclasses
import heapq
import io
import logging
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
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
from millrace.checkpoint._objects import remove_each
from millrace.checkpoint._uri import Place

from ._layout import (
    Located,
    base_uri,
    data_name,
    data_rank,
    metadata_name,
    new_save,
    with_rank,
)
from ._tensor import element_size, packed

log = logging.getLogger("millrace")

METADATA_VERSION = "1.0.0"  # of torch's FileSystemWriter


@dataclasses.dataclass(frozen=True)
class _Rank:
    """What a plan carries to its rank: which one it is."""

    number: int


class StorageWriter(Located, storage.StorageWriter):
    """Saves to `uri`, or to the checkpoint_id of each save; one instance may be used for any number of saves.

    Each rank writes `files_per_rank` objects at once, and `.metadata` follows when the store has confirmed the crc32c
    of all of them. A checkpoint that is there already is replaced by that: until then it stays as it is, afterwards
    its data objects are removed. overwrite=False refuses instead. timeout_s: how long an object waits for memory that
    others have; None: for ever.
    """

    def __init__(
        self,
        uri: Place | None = None,
        *,
        files_per_rank: int = 1,
        overwrite: bool = True,
        timeout_s: float | None = 300.0,
    ) -> None:
        super().__init__()
        if files_per_rank < 1:
            raise ValueError(f"files_per_rank is {files_per_rank}: at least 1")
        self._uri = None if uri is None else base_uri(uri)
        self._files_per_rank = files_per_rank
        self._overwrite = overwrite
        self._timeout_s = timeout_s
        self._save = new_save()
        self._rank: int | None = None  # with use_collectives=False alone
        self._old: list[str] = []  # data objects that were there before this save
        self._connection: Connection | None = None
        self._socket = (
            self._connect().path
        )  # where it is pickled to (torch's process checkpointer), the same supervisor

    # ---- what torch asks for ----

    def reset(self, checkpoint_id: Place | None = None) -> None:
        if checkpoint_id:
            self._uri = base_uri(checkpoint_id)

    def storage_meta(self) -> Any:
        from torch.distributed.checkpoint.metadata import StorageMeta  # not in torch 2.3.1, which does not ask

        return StorageMeta(checkpoint_id=self._uri, save_id=self._save)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._uri is None:
            raise ValueError("where to save to? Give dcp.save a checkpoint_id, or StorageWriter a URI")
        self._connect()
        self._save = new_save()
        self._old = []
        self._rank = None if kwargs.get("use_collectives", True) else int(kwargs["rank"])

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._rank is None:
            return plan
        return dataclasses.replace(plan, storage_data=_Rank(self._rank))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if self._rank is not None:
            self._find_earlier(self._rank)
            return plans
        self._find_earlier(0)
        return [dataclasses.replace(plan, storage_data=_Rank(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rank = cast(_Rank, plan.storage_data).number
        stop = threading.Event()
        names = (data_name(rank, i, self._save) for i in range(self._files_per_rank))
        work = list(zip(names, _split(plan.items, self._files_per_rank)))
        if len(work) == 1:
            results = self._write_object(rank, *work[0], planner, stop)
        else:
            with ThreadPoolExecutor(max(len(work), 1), thread_name_prefix="millrace-dcp") as pool:
                jobs = [pool.submit(self._write_object, rank, name, items, planner, stop) for name, items in work]
            results = [result for job in _failed_first(jobs) for result in job.result()]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        rank = self._rank or 0
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        if hasattr(metadata, "version"):  # not in torch 2.3.1
            metadata.version = METADATA_VERSION
            metadata.storage_meta = self.storage_meta()
        uri = self._object(metadata_name(self._rank))
        try:
            with checkpoint.writer(uri, if_absent=not self._overwrite, timeout_s=self._timeout_s) as stream:
                pickle.dump(metadata, stream)
        except Exception as error:
            raise with_rank(error, rank, f"saving {uri}") from error
        kept = {info.relative_path for info in metadata.storage_data.values()}
        self._remove([name for name in self._old if name not in kept])

    # ---- how ----

    def _connect(self) -> Connection:
        """Held from save to save: a private supervisor ends with its last client, and its memory ends with it."""
        self._connection = _supervisor.connection(maker="a checkpoint writer")
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _supervisor.adopt(self._socket)

    def _base(self) -> str:
        assert self._uri is not None  # set_up_storage_writer checks it
        return self._uri

    def _object(self, name: str) -> str:
        return f"{self._base()}/{name}"

    def _find_earlier(self, rank: int) -> None:
        """What is there already: refused, or removed once this save has replaced it."""
        uri = self._object(metadata_name(self._rank))
        try:
            found = checkpoint.list(self._base())
        except Exception as error:  # one may write objects without being allowed to list them
            log.warning("an earlier checkpoint at %s will not be removed: %s", self._uri, error)
            return
        if not self._overwrite and uri in found:
            refused = FileExistsError(f"there is a checkpoint already, and overwrite is False: {uri}")
            raise with_rank(refused, rank, "saving")
        if self._rank is not None and self._object(metadata_name(None)) in found:
            hides = FileExistsError(f"{self._object(metadata_name(None))} would hide a save with use_collectives=False")
            raise with_rank(hides, rank, "saving")
        names = [one[len(self._base()) + 1 :] for one in found]
        self._old = [name for name in names if data_rank(name) is not None and self._rank in (None, data_rank(name))]

    def _write_object(
        self, rank: int, name: str, items: list[WriteItem], planner: SavePlanner, stop: threading.Event
    ) -> list[WriteResult]:
        """One object with these items. Returns when the store has confirmed it."""
        uri = self._object(name)
        what = f"saving {uri}"
        results = []
        try:
            with checkpoint.writer(uri, sharers=self._sharers(), timeout_s=self._timeout_s) as stream:
                for item in items:
                    what = f"saving {item.index.fqn} into {uri}"
                    if stop.is_set():
                        raise InterruptedError("another object of this rank failed")
                    results.append(_write_item(stream, name, item, planner))
                what = f"saving {uri}"
        except Exception as error:
            stop.set()
            raise with_rank(error, rank, what) from error
        return results

    def _sharers(self) -> int:
        """How many writers of this node are open at once."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or 1) * self._files_per_rank

    def _remove(self, names: list[str]) -> None:
        """The new checkpoint is whole: what cannot be removed costs money and harms nobody."""
        if not names:
            return
        failures = remove_each(self._object(name) for name in names)
        if failures:
            log.warning(
                "%s: %d of %d old objects are still there: %s", self._uri, len(failures), len(names), failures[0]
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
        return 0  # nobody knows before it is resolved
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


def _write_item(stream: Any, name: str, item: WriteItem, planner: SavePlanner) -> WriteResult:
    """Only now is a tensor of a device copied: one at a time."""
    data: Any = planner.resolve_data(item)
    offset = stream.tell()
    if isinstance(data, torch.Tensor):
        torch.save(packed(data.detach()), stream)
    else:
        stream.write(cast(io.BytesIO, data).getbuffer())
    length = stream.tell() - offset
    return WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, offset, length))
