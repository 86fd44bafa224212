"""StorageReader: reads what StorageWriter, or torch's FileSystemWriter, saved."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
from itertools import groupby
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from millrace import ChangedError, checkpoint
from millrace.checkpoint._uri import Place

from ._layout import (
    Located,
    base_uri,
    metadata_name,
    new_save,
    rank_of_group,
    with_rank,
)
from ._metadata import unpickled
from ._tensor import HEAD_BYTES, Stored, buffer, can_fill, find_storage

AT_ONCE = 32  # objects that are looked up together


class StorageReader(Located, storage.StorageReader):
    """Loads from `uri`, or from the checkpoint_id of each load.

    A rank reads the items that it needs, each object from front to back, and of an item the rows that it needs.
    """

    def __init__(self, uri: Place | None = None) -> None:
        super().__init__()
        self._uri = None if uri is None else base_uri(uri)
        self._infos: dict[Any, _StorageInfo] = {}
        self._rank: int | None = None
        self._digest = ""  # of the `.metadata` of all ranks that was read

    # ---- what torch asks for ----

    def reset(self, checkpoint_id: Place | None = None) -> None:
        self._infos = {}
        if checkpoint_id:
            self._uri = base_uri(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._uri is None:
            raise ValueError("where to load from? Give dcp.load a checkpoint_id, or StorageReader a URI")
        uri = self._object(metadata_name(kwargs.get("rank")))
        try:
            with checkpoint.reader(uri) as stream:
                data = stream.read()
            metadata = unpickled(data)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"there is no whole checkpoint at {self._uri}: {uri} is missing, which a save writes last, when all of "
                "its objects are confirmed"
            ) from error
        except Exception as error:
            raise with_rank(error, rank_of_group(), f"loading {uri}") from error
        if not isinstance(metadata, Metadata):
            raise ValueError(f"{uri} holds no torch.distributed.checkpoint metadata, but a {type(metadata).__name__}")
        own = kwargs.get("rank") is not None  # each rank's is another
        self._digest = "" if own else hashlib.sha256(data).hexdigest()
        if hasattr(metadata, "storage_meta"):  # not in torch 2.3.1
            from torch.distributed.checkpoint.metadata import StorageMeta

            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = new_save()
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if metadata.storage_data is None:
            raise ValueError(f"{self._uri}: its metadata does not name where the data is")
        self._infos = metadata.storage_data
        self._rank = kwargs.get("rank")

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self._digest)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Each rank has read `.metadata` for itself: ChangedError where these are of two saves."""
        read = [(rank, plan.storage_data) for rank, plan in enumerate(plans) if plan.storage_data]
        for rank, digest in read:
            if digest != read[0][1]:
                raise ChangedError(
                    f"loading {self._uri}: rank {rank} read another {metadata_name(None)} than rank {read[0][0]}: the "
                    "checkpoint was saved again meanwhile: load it again"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def place(item: ReadItem) -> tuple[str, int]:
            info = self._infos[item.storage_index]
            return info.relative_path, info.offset

        objects = [
            (name, list(items))
            for name, items in groupby(sorted(plan.items, key=place), key=lambda item: place(item)[0])
        ]
        for i in range(0, len(objects), AT_ONCE):
            self._read_objects(objects[i : i + AT_ONCE], planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    # ---- how ----

    def _object(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def _read_objects(self, objects: list[tuple[str, list[ReadItem]]], planner: LoadPlanner) -> None:
        what = f"loading {self._uri}"
        try:
            with contextlib.ExitStack() as stack:
                streams = checkpoint.readers(self._object(name) for name, _ in objects)
                for stream in streams:
                    stack.callback(stream.close)
                for stream, (_, items) in zip(streams, objects):
                    for offset, group in groupby(items, key=lambda item: self._infos[item.storage_index].offset):
                        wanted = list(group)
                        info = self._infos[wanted[0].storage_index]
                        what = f"loading {wanted[0].storage_index.fqn} from {stream.uri}"
                        _Item(stream, offset, info).load(wanted, planner)
                    stream.close()
        except (FileNotFoundError, ChangedError) as error:
            gone = ChangedError(f"{error}; the checkpoint was saved again, or removed, meanwhile: load it again")
            raise with_rank(gone, rank_of_group(self._rank), what) from error
        except Exception as error:
            raise with_rank(error, rank_of_group(self._rank), what) from error


class _Item:
    """A stored item, in a stream that is read forwards as far as that is possible."""

    def __init__(self, stream: Any, offset: int, info: _StorageInfo) -> None:
        self._stream = stream
        self._offset = offset
        self._length = info.length
        # What torch's FileSystemWriter was given as _extensions (compression, say); not in torch 2.3.1.
        self._transforms = getattr(info, "transform_descriptors", None)

    def load(self, wanted: list[ReadItem], planner: LoadPlanner) -> None:
        if any(item.type == LoadItemType.BYTE_IO for item in wanted):
            data = self._read_all()
            for item in wanted:
                planner.load_bytes(item, io.BytesIO(data))
            return
        head = b"" if self._transforms else self._read(0, min(self._length, HEAD_BYTES))
        stored = find_storage(head)
        if stored is None or stored.end > self._length:
            tensor = torch.load(io.BytesIO(self._read_all()), map_location="cpu", weights_only=True)
            for item in wanted:
                self._copy_into(item, tensor, planner)
        elif len(wanted) == 1:
            self._load_part(wanted[0], head, stored, planner)
        else:
            tensor = self._tensor(stored, head)
            for item in wanted:
                self._copy_into(item, tensor, planner)

    def _load_part(self, item: ReadItem, head: bytes, stored: Stored, planner: LoadPlanner) -> None:
        """The rows that are wanted, straight into the target if they can be."""
        target = planner.resolve_tensor(item).detach()
        _check(item, target, item.lengths)
        _check_region(item, stored.size)
        part, exact = stored.rows(item.storage_offsets, item.lengths)
        if exact and can_fill(target, part):
            self._fill(target.data_ptr(), part, head)
        else:
            # The offsets along what rows() has cut off already are 0 now.
            offsets = [0 if a != b else o for o, a, b in zip(item.storage_offsets, part.size, stored.size)]
            target.copy_(narrow_tensor_by_index(self._tensor(part, head), offsets, item.lengths))
        planner.commit_tensor(item, target)
        if part.nbytes == stored.nbytes:
            self._read(stored.end, self._length - stored.end)  # so that the object's checksum can be compared

    def _copy_into(self, item: ReadItem, tensor: torch.Tensor, planner: LoadPlanner) -> None:
        target = planner.resolve_tensor(item).detach()
        part = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
        _check(item, target, part.size())
        target.copy_(part)
        planner.commit_tensor(item, target)

    def _tensor(self, stored: Stored, head: bytes) -> torch.Tensor:
        data = torch.UntypedStorage(stored.nbytes)  # type: ignore[no-untyped-call]
        self._fill(data.data_ptr(), stored, head)
        stride: list[int] = []
        step = 1
        for length in reversed(stored.size):
            stride.insert(0, step)
            step *= length
        return torch.empty(0, dtype=stored.dtype).set_(data, 0, stored.size, stride)

    def _fill(self, address: int, stored: Stored, head: bytes) -> None:
        if stored.nbytes == 0:
            return
        target = buffer(address, stored.nbytes)
        known = head[stored.begin : stored.begin + stored.nbytes]
        target[: len(known)] = known
        self._readinto(stored.begin + len(known), target[len(known) :])

    def _read_all(self) -> bytes:
        data = self._read(0, self._length)
        if not self._transforms:
            return data
        from torch.distributed.checkpoint._extension import ExtensionRegistry

        stream: Any = io.BytesIO(data)
        extension: Any
        for extension in ExtensionRegistry().from_descriptor_list(self._transforms):
            stream = extension.transform_from(stream)
        return bytes(stream.read())

    def _read(self, at: int, count: int) -> bytes:
        data = bytearray(count)
        self._readinto(at, memoryview(data))
        return bytes(data)

    def _readinto(self, at: int, target: memoryview) -> None:
        if not len(target):
            return
        if self._stream.tell() != self._offset + at:
            self._stream.seek(self._offset + at)
        while len(target):
            count = self._stream.readinto(target)
            if not count:
                raise ValueError("the object is shorter than its checkpoint records")
            target = target[count:]


def _check_region(item: ReadItem, size: torch.Size) -> None:
    """What follows the tensor in the object belongs to another one."""
    region = list(zip(item.storage_offsets, item.lengths))
    if len(region) != len(size) or any(o < 0 or n < 0 or o + n > there for (o, n), there in zip(region, size)):
        raise ValueError(
            f"{item.storage_index.fqn}: .metadata names a chunk of {tuple(item.lengths)} at "
            f"{tuple(item.storage_offsets)} of a tensor that is {tuple(size)} in its object: one of the two is "
            "damaged, or of another save"
        )


def _check(item: ReadItem, target: torch.Tensor, size: torch.Size) -> None:
    if target.size() != size:
        name, there, here = item.storage_index.fqn, tuple(size), tuple(target.size())
        raise ValueError(f"{name} is {there} there, and shall be loaded into a tensor of {here}")
