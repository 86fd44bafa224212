"""For the tests after the sed: what they import of the connector's inside, and readers over their streams.

Its unit tests give a reader functions of the connector's own client in place of an S3Client: that is bridged here, so
that how a reader reads and seeks is compared. What replaces the client within a data set stays as it is, and fails.
"""

import sys
from types import ModuleType
from typing import Any

import s3torchconnectorclient._mountpoint_s3_client as native
from s3torchconnector.s3reader import dcp_optimized

import millrace.s3torchconnector as package
import millrace.s3torchconnectorclient as client_package
from millrace.s3torchconnector import _listed, _s3client, _uri, s3reader


class Streamed:
    """The Content of a reader whose get_stream is a test's."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def open(self, exact: bool) -> Any:
        reader = self._reader
        return Ranges(reader) if exact else Whole(reader)


class Whole:
    """A test's stream, which is begun by the first read."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._data: Any = None

    def _all(self) -> bytes:
        if self._data is None:
            self._data = b"".join(self._reader.given())
        return bytes(self._data)

    @property
    def size(self) -> int:
        info = self._reader._get_object_info
        known = getattr(info() if self._data is None and callable(info) else None, "size", None)
        return known if isinstance(known, int) else len(self._all())

    def read(self, size: int, at: int) -> bytes:
        return self._all()[at : at + size]

    def read_into(self, buffer: Any, at: int) -> int:
        data = self.read(len(buffer), at)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


class Ranges:
    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.size = reader._get_object_info().size

    def read(self, size: int, at: int) -> bytes:
        return b"".join(self._reader.given(at, min(at + size, self.size)))

    def read_into(self, buffer: Any, at: int) -> int:
        data = self.read(len(buffer), at)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


_begin = s3reader._Reader.__init__


def _init(self: Any, bucket: str, key: str, get_object_info: Any, get_stream: Any) -> None:
    _begin(self, bucket, key, get_object_info, get_stream)
    if not hasattr(get_stream, "open"):
        self.given = get_stream
        self.take_from(Streamed(self))


def module(name: str, **names: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, made)


class Missing:
    """A class of the connector's inside that is not here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the connector's inside")

    @staticmethod
    def get_default_prefix() -> str:
        return ""


s3reader._Reader.__init__ = _init  # type: ignore[method-assign]
s3reader.ItemRange = dcp_optimized.ItemRange  # type: ignore[attr-defined]
P, C = package.__name__, client_package.__name__
sys.modules[f"{C}._mountpoint_s3_client"] = native
_s3client.MockS3Client = Missing  # type: ignore[attr-defined]
module(f"{P}._user_agent", UserAgent=Missing)
module(f"{P}._version", __version__=package.__version__)
module(f"{P}._s3bucket_key_data", S3BucketKeyData=_listed.S3BucketKeyData)
objects = {"get_objects_from_uris": Missing, "get_objects_from_prefix": Missing}
module(f"{P}._s3dataset_common", parse_s3_uri=_uri.parse_s3_uri, **objects)
for each in ("sequential", "ranged", "constructor", "protocol"):
    module(f"{s3reader.__name__}.{each}", **vars(s3reader))
module(f"{s3reader.__name__}.dcp_optimized", **{**vars(dcp_optimized), **vars(s3reader)})
