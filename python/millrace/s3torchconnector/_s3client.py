"""S3Client: objects of one region and endpoint, by millrace's supervisor and programs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from .. import _file, _supervisor
from .._connection import Connection, connect
from .._errors import SupervisorGone
from ..checkpoint import _objects
from ..checkpoint._reader import Reader, opened
from ._config import S3ClientConfig, settings
from ._exceptions import NO_OBJECT, NotFound, errors, look_up_errors
from .s3reader import Content, S3Reader, S3ReaderConstructor, S3ReaderConstructorProtocol
from .s3writer import S3Writer

CHUNK_BYTES = 8 << 20  # of what get_stream() gives


@dataclass
class ObjectInfo:
    """What is known of a listed object."""

    key: str
    etag: str = ""
    size: int = 0
    last_modified: int = 0
    storage_class: str | None = None
    restore_status: Any = None


@dataclass
class HeadObjectResult:
    """The same of an object that was looked up."""

    etag: str = ""
    size: int = 0
    last_modified: int = 0
    storage_class: str | None = None
    restore_status: Any = None


_LOOKED_UP = ("etag", "last_modified", "storage_class", "restore_status")


class _Looked:
    """The size is known; what else is asked for is looked up, once, as the object is then."""

    _head: Callable[[], HeadObjectResult] | None = None

    def __getattribute__(self, name: str) -> Any:
        head = self._head if name in _LOOKED_UP else None
        if head is not None:
            found = head()
            for each in _LOOKED_UP:
                setattr(self, each, getattr(found, each))
            self._head = None  # last: other threads look it up too until then
        return super().__getattribute__(name)


class LookedInfo(_Looked, ObjectInfo):
    """Of an object of a data set, whose listing has no more than its size."""


class LookedHead(_Looked, HeadObjectResult):
    """Of an object whose size a reader knows."""


_Kind = TypeVar("_Kind", bound=_Looked)


@dataclass
class ListObjectResult:
    """A page of a listing."""

    object_info: list[ObjectInfo]
    common_prefixes: list[str]


class _Ring:
    """The Content of an object that is read through shared memory."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.size = reader.size
        self.read, self.read_into = reader._ring.read, reader._ring.read_into

    def close(self) -> None:
        self._reader.close()


class ObjectStream:
    """get_stream of a reader: opens an object, or gives the bytes of a range of it. For a constructor of a user it
    looks the object up once, whatever is asked for; that ends with this."""

    def __init__(self, client: S3Client, bucket: str, key: str) -> None:
        self._client, self._bucket, self._key = client, bucket, key
        self._kept: Content | None = None

    def open(self, exact: bool) -> Content:
        kind = _file.File if exact else Reader
        return _Ring(self._client.opened(self._bucket, self._key, kind))

    def head(self) -> HeadObjectResult:
        """get_object_info of an object that is not known."""
        with errors:
            return self.looked_up(LookedHead(size=self._opened().size))

    def looked_up(self, info: _Kind) -> _Kind:
        """The same, which asks for what it does not know."""
        info._head = functools.partial(self._client.head_object, self._bucket, self._key)
        return info

    def __call__(self, start: int | None = None, end: int | None = None) -> Iterator[bytes]:
        with errors:
            content = self._opened()
            at, stop = start or 0, content.size if end is None else min(end, content.size)
            while at < stop:
                data = content.read(min(CHUNK_BYTES, stop - at), at)
                at += len(data)
                yield data

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def _opened(self) -> Content:
        if self._kept is None:
            self._kept = self.open(True)
        return self._kept


class S3Client:
    """Reads, writes, lists and removes objects. Pickles; it has no connection of its own to a store."""

    def __init__(
        self,
        region: str,
        *,
        endpoint: str | None = None,
        user_agent: Any = None,
        s3client_config: S3ClientConfig | None = None,
    ) -> None:
        self._region, self._endpoint = region, endpoint
        self._s3client_config = s3client_config or S3ClientConfig()
        self._settings = settings(region, endpoint, self._s3client_config)
        self._path: str | None = None  # the supervisor's socket, for a process that is given this
        self._connection: Connection | None = None

    @property
    def region(self) -> str:
        return self._region

    @property
    def endpoint(self) -> str | None:
        return self._endpoint

    @property
    def s3client_config(self) -> S3ClientConfig:
        return self._s3client_config

    def get_object(
        self,
        bucket: str,
        key: str,
        *,
        object_info: Any = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> S3Reader:
        """A reader. No request is made before it is read."""
        construct = reader_constructor or S3ReaderConstructor.default()
        stream = ObjectStream(self, bucket, key)
        info = stream.head if object_info is None else Known(object_info, stream)
        return construct(bucket=bucket, key=key, get_object_info=info, get_stream=stream)

    def put_object(self, bucket: str, key: str, storage_class: str | None = None) -> S3Writer:
        """A writer, whose object is there when it is closed."""
        if storage_class not in (None, "STANDARD"):
            raise ValueError(f"storage_class is {storage_class!r}: millrace writes the bucket's default class alone")
        with self.used(), errors:
            return S3Writer(_file.create(_uri(bucket, key), if_absent=False))

    def list_objects(
        self, bucket: str, prefix: str = "", delimiter: str = "", max_keys: int = 1000
    ) -> Iterator[ListObjectResult]:
        """The objects whose keys begin with prefix, in pages; with a delimiter of "/" one level of them."""
        if delimiter not in ("", "/"):
            raise ValueError(f"delimiter is {delimiter!r}: '/' or none")
        folder = prefix[: prefix.rfind("/") + 1]
        with self.used(), errors:
            lines = _objects.listed(_uri(bucket, folder), recursive=not delimiter)
        found = [(line["uri"][len(f"s3://{bucket}/") :], line) for line in lines]
        found = [(key, line) for key, line in found if key.startswith(prefix)]
        for at in range(0, max(len(found), 1), max_keys):
            page = found[at : at + max_keys]
            objects = [ObjectInfo(key, **_info(line)) for key, line in page if "size" in line]
            yield ListObjectResult(objects, [key for key, line in page if "size" not in line])

    def head_object(self, bucket: str, key: str) -> HeadObjectResult:
        """What is there now. S3Exception where nothing is."""
        uri = _uri(bucket, key)
        with self.used(), look_up_errors:
            for line in _objects.listed(uri, limit=1):
                if line["uri"] == uri:
                    return HeadObjectResult(**_info(line))
        raise NotFound(NO_OBJECT + uri)

    def delete_object(self, bucket: str, key: str) -> None:
        """A missing object is not an error, as in S3."""
        with self.used(), errors:
            _objects.remove(_uri(bucket, key), missing_ok=True)

    def copy_object(self, src_bucket: str, src_key: str, dst_bucket: str, dst_key: str) -> None:
        """Through this machine, verified."""
        with self.used(), look_up_errors:
            _objects.copy(_uri(src_bucket, src_key), _uri(dst_bucket, dst_key))

    # ---- for this package ----

    def used(self) -> contextlib.AbstractContextManager[None]:
        """In the block millrace's own functions go this client's way."""
        return _supervisor.using(self._settings)

    def opened(self, bucket: str, key: str, kind: type[Reader]) -> Reader:
        return opened(self.connection(), [_uri(bucket, key)], kind)[0]

    def connection(self) -> Connection:
        """This process's, to the supervisor of the process that it was made in where that runs."""
        found = self._connection
        if found is not None and found.is_ours():
            return found
        if self._path is not None and not os.environ.get("MILLRACE_SOCKET"):
            with contextlib.suppress(SupervisorGone):
                self._connection = connect(self._path, 0)
                return self._connection
        self._connection = _supervisor.connection(self._settings, "an S3 client", in_worker=True)
        self._path = self._connection.path
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}


class Known:
    """get_object_info of an object that was listed. Readers of this package, to which the size is enough, take info."""

    def __init__(self, info: Any, stream: ObjectStream) -> None:
        self.info, self._stream = info, stream

    def __call__(self) -> Any:
        if type(self.info) is ObjectInfo and not self.info.etag:
            self.info = self._stream.looked_up(LookedInfo(**vars(self.info)))
        return self.info


def _uri(bucket: str, key: str) -> str:
    return f"s3://{bucket}/{key}"


def _info(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "etag": line.get("etag", ""),
        "size": int(line["size"]),
        "last_modified": int(line.get("created", 0)),
    }
