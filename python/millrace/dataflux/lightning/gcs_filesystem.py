"""What torch.distributed.checkpoint writes and reads by, as the module of this name in gcs-torch-dataflux has it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from ... import checkpoint
from ...dcp import StorageReader, StorageWriter
from ...dcp._layout import base_uri
from ...dcp._torch_arguments import check_reader, storage_options, writer_options
from ...lightning._location import PathLike
from .. import _google, _storage
from .path_utils import parse_gcs_path, uri

__all__ = ["GCSDistributedReader", "GCSDistributedWriter", "GCSFileSystem"]

COPY_BYTES = 8 << 20


class GCSFileSystem(_storage.ClientHolder):
    """Objects of buckets, under the names that torch's file systems of checkpoints have; over millrace.checkpoint."""

    def __init__(self, project_name: Any, debug: bool, storage_client: Any = None) -> None:
        self.debug = debug
        self._take_client(project_name, storage_client)
        self._prefer()

    @contextlib.contextmanager
    def create_stream(self, path: PathLike, mode: str) -> Iterator[Any]:
        """A millrace.checkpoint.Writer ("wb") or Reader ("rb") for a `with` block; one that fails writes nothing."""
        place = uri(path)
        if mode not in ("wb", "rb"):
            raise ValueError(f"{place}: mode is {mode!r}; a stream is opened by 'rb' or 'wb'")
        self._prefer()
        with _google.errors():
            stream: Any = _storage.writer(place) if mode == "wb" else checkpoint.reader(place)
        with stream:
            yield stream

    def concat_path(self, path: PathLike, suffix: str) -> Path:
        return Path(path) / suffix

    def init_path(self, path: PathLike) -> Path:
        return path if isinstance(path, Path) else Path(path)

    def rename(self, path: PathLike, new_path: PathLike) -> None:
        """Copies the object and removes the old one: there is no other way for an object."""
        (bucket, key), (new_bucket, new_key) = parse_gcs_path(path), parse_gcs_path(new_path)
        if bucket != new_bucket:
            raise ValueError(f"{path} cannot be renamed to {new_path}: an object is renamed within its bucket")
        if key == new_key:  # to copy it and remove the old one would remove it
            return
        with self.create_stream(path, "rb") as old, self.create_stream(new_path, "wb") as new:
            shutil.copyfileobj(old, new, COPY_BYTES)
        self.rm_file(path)

    def mkdir(self, path: PathLike) -> None:
        """Nothing: a bucket has no folders."""

    def exists(self, path: PathLike) -> bool:
        """Whether there is an object of exactly this name."""
        try:
            with self.create_stream(path, "rb"):
                return True
        except FileNotFoundError:
            return False

    def rm_file(self, path: PathLike) -> None:
        place = uri(path)
        self._prefer()
        with _google.errors():
            checkpoint.remove(place)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        """ValueError for a text that names no bucket."""
        if not isinstance(checkpoint_id, Path):
            parse_gcs_path(checkpoint_id)
        return True


class _Adapter:
    """The reference's arguments in front of a millrace.dcp storage; mixed into it.

    As there, a path that names no bucket is refused where it is first used, at all ranks.
    """

    _uri: Any

    def _set_up(self, path: PathLike, project_name: Any, storage_client: Any, debug: bool | None) -> None:
        self.fs = GCSFileSystem(project_name, bool(debug), storage_client)
        self.project_name, self.debug = project_name, bool(debug)
        self.path = self._uri = self.fs.init_path(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return GCSFileSystem.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        self.path = self._uri = self.fs.init_path(checkpoint_id) if checkpoint_id else self.path
        super().reset(None)  # type: ignore[misc]


class GCSDistributedWriter(_Adapter, StorageWriter):
    """millrace.dcp.StorageWriter under the reference's name.

    Of the arguments of torch's FileSystemWriter `overwrite` and `thread_count` (files per rank) count.
    """

    def __init__(
        self, path: PathLike, project_name: Any, storage_client: Any = None, debug: bool | None = False, **kwargs: Any
    ) -> None:
        options = writer_options(self, path, kwargs)
        self._set_up(path, project_name, storage_client, debug)
        super().__init__(**storage_options(options))
        self.__dict__.update(options, sync_files=False, _uri=self.path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._current().uri = base_uri(uri(self._current().uri))  # type: ignore[arg-type]  # still a Path
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)


class GCSDistributedReader(_Adapter, StorageReader):
    """millrace.dcp.StorageReader under the reference's name."""

    def __init__(
        self, path: PathLike, project_name: Any, storage_client: Any = None, debug: bool | None = False, **kwargs: Any
    ) -> None:
        check_reader(self, path, kwargs)
        super().__init__()
        self._set_up(path, project_name, storage_client, debug)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._uri = base_uri(uri(self.path))
        return super().read_metadata(*args, **kwargs)
