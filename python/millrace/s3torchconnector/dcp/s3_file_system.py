"""What torch.distributed.checkpoint writes and reads by, as the module of this name in s3torchconnector has it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ..._connection import Connection
from ...checkpoint import _objects
from ...dcp import StorageReader, StorageWriter
from ...dcp._torch_arguments import storage_options, writer_options
from .._config import S3ClientConfig
from .._exceptions import S3Exception, errors
from .._s3client import S3Client
from .._uri import parse_s3_uri
from ..s3reader import S3ReaderConstructor, S3ReaderConstructorProtocol
from .s3_prefix_strategy import DefaultPrefixStrategy, S3PrefixStrategyBase

log = logging.getLogger("millrace")
PathLike = Union[str, "os.PathLike[str]"]


class S3FileSystem:
    """Objects of S3, under the names that torch's file systems of checkpoints have."""

    def __init__(
        self,
        region: str,
        s3_client: S3Client | None = None,
        s3client_config: S3ClientConfig | None = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> None:
        self._path: PathLike = ""
        self._reader_constructor = reader_constructor or S3ReaderConstructor.default()
        self._client = s3_client or S3Client(region, s3client_config=s3client_config)

    @contextlib.contextmanager
    def create_stream(self, path: PathLike, mode: str) -> Iterator[Any]:
        """An S3Writer ("wb") or S3Reader ("rb") for a `with` block; one that fails writes nothing."""
        bucket, key = parse_s3_uri(_text(path))
        if mode not in ("wb", "rb"):
            raise ValueError(
                f"Invalid mode={mode!r} mode argument: create_stream only supports rb (read mode) & wb (write mode)"
            )
        stream: Any
        if mode == "wb":
            stream = self._client.put_object(bucket, key)
        else:
            stream = self._client.get_object(bucket, key, reader_constructor=self._reader_constructor)
        with stream:
            yield stream

    def concat_path(self, path: PathLike, suffix: str) -> str:
        return os.path.join(os.fspath(path), suffix)  # noqa: PTH118 (of a URI)

    def init_path(self, path: PathLike) -> PathLike:
        self._path = path
        return path

    def rename(self, old_path: PathLike, new_path: PathLike) -> None:
        """Copies the object and removes the old one: there is no other way for an object."""
        (bucket, key), (new_bucket, new_key) = parse_s3_uri(_text(old_path)), parse_s3_uri(_text(new_path))
        if bucket != new_bucket:
            raise ValueError(
                f"Source and destination buckets cannot be different: {_text(old_path)} cannot be renamed to "
                f"{_text(new_path)}"
            )
        if key == new_key:  # to copy it and remove the old one would remove it
            return
        self._client.copy_object(bucket, key, new_bucket, new_key)
        self._client.delete_object(bucket, key)

    def mkdir(self, path: PathLike) -> None:
        """Nothing: a bucket has no folders."""

    def exists(self, path: PathLike) -> bool:
        """Whether there is an object of exactly this name."""
        try:
            self._client.head_object(*parse_s3_uri(_text(path)))
        except FileNotFoundError:
            return False
        return True

    def rm_file(self, path: PathLike) -> None:
        """What cannot be removed is logged."""
        try:
            self._client.delete_object(*parse_s3_uri(_text(path)))
        except S3Exception as error:
            log.warning("%s could not be removed: %s", _text(path), error)

    def ls(self, path: str) -> list[str]:
        """The URIs of what is there, one level."""
        with self._client.used(), errors:
            return [line["uri"] for line in _objects.listed(path)]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        if isinstance(checkpoint_id, Path):
            return True
        try:
            parse_s3_uri(_text(checkpoint_id))
        except ValueError:
            return False
        return True


class _Named:
    """Before a storage of millrace.dcp: the way of an S3Client, and torch's attributes of a path."""

    fs: S3FileSystem
    path: PathLike
    _uri: Any

    def _set_up(self, path: PathLike, fs: S3FileSystem) -> None:
        self.fs = fs
        self.path = self._uri = fs.init_path(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return S3FileSystem.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        self.path = self.fs.init_path(checkpoint_id) if checkpoint_id else self.path
        parse_s3_uri(_text(self.path))
        super().reset(_text(self.path))  # type: ignore[misc]


class S3StorageWriter(_Named, StorageWriter):
    """millrace.dcp.StorageWriter under the reference's name. thread_count: objects of a rank.

    Of the other arguments of torch's FileSystemWriter `overwrite`, `single_file_per_rank` and `_extensions` count.
    """

    def __init__(
        self,
        region: str,
        path: PathLike,
        s3client_config: S3ClientConfig | None = None,
        prefix_strategy: S3PrefixStrategyBase | None = None,
        thread_count: int = 1,
        **kwargs: Any,
    ) -> None:
        options = writer_options(self, path, {"sync_files": False, "thread_count": thread_count, **kwargs})
        self._set_up(path, S3FileSystem(region, s3client_config=s3client_config))
        self.prefix_strategy = prefix_strategy or DefaultPrefixStrategy()
        with self.fs._client.used():
            super().__init__(**storage_options(options))
        self.__dict__.update(options, _uri=_text(path).rstrip("/"))

    def _prefix(self, rank: int) -> str:
        return self.prefix_strategy(rank)

    def _connect(self) -> Connection:
        _check_streams(self.fs)
        with self.fs._client.used():
            return super()._connect()

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        with self.fs._client.used(), errors:
            return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with self.fs._client.used(), errors:
            return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with self.fs._client.used(), errors:
            super().finish(metadata, results)


class S3StorageReader(_Named, StorageReader):
    """millrace.dcp.StorageReader under the reference's name: it reads the rows that are wanted, whatever
    reader_constructor is."""

    def __init__(
        self,
        region: str,
        path: PathLike,
        s3client_config: S3ClientConfig | None = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> None:
        super().__init__()
        self._reader_constructor = reader_constructor or S3ReaderConstructor.dcp_optimized()
        client = S3Client(region, s3client_config=s3client_config)
        self._set_up(path, S3FileSystem(region, client, reader_constructor=self._reader_constructor))
        self.sync_files = False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._uri = _text(self.path).rstrip("/")
        _check_streams(self.fs)
        with self.fs._client.used(), errors:
            return super().read_metadata(*args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """In the order of the offsets, as the reference has it."""
        plan.items.sort(key=lambda item: self._infos[item.storage_index].offset)
        return super().prepare_local_plan(plan)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with self.fs._client.used(), errors:
            return super().read_data(plan, planner)


def _check_streams(files: Any) -> None:
    """TypeError for what the bytes would go through in the reference, such as a subclass that encrypts them."""
    if getattr(type(files), "create_stream", None) is not S3FileSystem.create_stream:
        raise TypeError(
            f"fs is a {type(files).__name__} with a create_stream of its own, which millrace's checkpoints do not go "
            "through: write the object by it, or by S3Checkpoint.writer"
        )


def _text(path: PathLike) -> str:
    """The URI; a Path has made one slash of "s3://"."""
    text = os.fspath(path)
    return f"s3://{text[len('s3:/') :]}" if text.startswith("s3:/") and not text.startswith("s3://") else text
