"""What both kinds of data sets have in common."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable

from .._connection import Source
from .._ring import Failure, Lease
from ._config import S3ClientConfig
from ._exceptions import of_failure
from ._listed import Delivery, GetObjects, Listed, S3BucketKeyData
from ._s3client import S3Client
from .s3reader import S3Reader, S3ReaderConstructor, S3ReaderConstructorProtocol

KEPT_BYTES = 64 << 20  # of readers that a loop was given, and may read later


def identity(obj: S3Reader) -> S3Reader:
    return obj


class S3Dataset:
    """The objects are listed once, when the data set is made; data sets that are equal share a supervisor."""

    def __init__(
        self,
        region: str,
        get_dataset_objects: GetObjects,
        endpoint: str | None,
        transform: Callable[[S3Reader], Any],
        s3client_config: S3ClientConfig | None,
        reader_constructor: S3ReaderConstructorProtocol | None,
    ) -> None:
        if not callable(transform):
            raise TypeError(f"transform is a function, not {type(transform).__name__}")
        self._region, self._endpoint = region, endpoint
        self._transform = transform
        self._reader_constructor = reader_constructor or S3ReaderConstructor.default()
        self._is_fetched = S3ReaderConstructor.get_reader_type_string(self._reader_constructor) == "sequential"
        self._client = S3Client(region, endpoint=endpoint, s3client_config=s3client_config)
        self._listed = Listed(self._client, get_dataset_objects)

    @property
    def region(self) -> str:
        return self._region

    @property
    def endpoint(self) -> str | None:
        return self._endpoint

    # ---- inside ----

    def _source(self) -> Source:
        """The listing, for millrace's own data sets."""
        source = self._listed.source()
        if source is None:
            raise ValueError(
                "millrace.DataLoader reads data sets from_prefix, in the order of the listing: give this one to "
                "torch.utils.data.DataLoader, or make it by millrace.MapDataset.from_objects"
            )
        return source

    def _of_lease(self, lease: Lease) -> Any:
        return self._delivered(self._listed.place(lease.index), lease)

    def _reader(self, place: S3BucketKeyData) -> S3Reader:
        return self._client.get_object(
            place.bucket, place.key, object_info=place.object_info, reader_constructor=self._reader_constructor
        )

    def _delivered(self, place: S3BucketKeyData, delivery: Delivery) -> Any:
        """The transform of an object that was fetched; of None, of one that is read as a file."""
        reader = self._reader(place)
        if isinstance(delivery, Failure):
            reader.fail(of_failure(delivery))  # type: ignore[attr-defined]
        elif delivery is not None:
            reader.hold(delivery)  # type: ignore[attr-defined]
        try:
            sample = self._transform(reader)
        except BaseException:
            _let_go(reader)
            raise
        if sample is reader and self._is_fetched:
            reader.keep()
        else:
            _let_go(reader)
        return sample


def _let_go(reader: S3Reader) -> None:
    """A transform may have kept it: it can be read on, but no longer from shared memory."""
    let_go = getattr(reader, "let_go", None)
    if let_go is not None:
        let_go()


class Recent:
    """Readers that a loop was given, whose bytes are kept a little longer: it may read them a batch later."""

    def __init__(self) -> None:
        self._kept: deque[tuple[S3Reader, int]] = deque()
        self._bytes = 0

    def add(self, reader: S3Reader, size: int) -> None:
        self._kept.append((reader, size))
        self._bytes += size
        while self._bytes > KEPT_BYTES:
            old, old_size = self._kept.popleft()
            self._bytes -= old_size
            _let_go(old)
