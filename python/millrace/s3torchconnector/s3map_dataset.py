"""S3MapDataset: objects by number."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch.utils.data

from .._connection import Source
from .._dataset import check_own
from .._map import MapDataset
from .._ring import Failure
from ._config import S3ClientConfig
from ._dataset import S3Dataset, identity
from ._exceptions import of_failure
from ._listed import Delivery, Fetched, GetObjects, Prefix, S3BucketKeyData, objects
from .s3reader import Content, Held, S3Reader, S3ReaderConstructorProtocol

log = logging.getLogger("millrace")


class _One:
    """get_stream of one object of a data set: fetched by its lane when it is first read, as bytes of the reader's."""

    def __init__(self, dataset: S3MapDataset, number: int, stream: Any) -> None:
        self._dataset, self._number, self._stream = dataset, number, stream

    def open(self, exact: bool) -> Content:
        [(_, delivery)] = self._dataset._listed.fetch([self._number], self._dataset._maps)
        if isinstance(delivery, Failure):
            raise of_failure(delivery)
        if delivery is None:
            opened: Content = self._stream.open(exact)
            return opened
        held = Held(bytes(delivery))
        delivery.release()
        return held

    def __reduce__(self) -> Any:
        return identity, (self._stream,)  # another process has no need of the data set


class _Map(MapDataset):
    """Its errors are S3Exceptions."""

    _error_of = staticmethod(of_failure)


class S3MapDataset(S3Dataset, torch.utils.data.Dataset[Any]):
    """The objects under a prefix or of a list, by number: `dataset[i]` is transform of an S3Reader.

    A DataLoader's batch is fetched all at once. `millrace.DataLoader(dataset)` also fetches the next ones ahead.
    """

    def __init__(
        self,
        region: str,
        get_dataset_objects: GetObjects,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> None:
        super().__init__(region, get_dataset_objects, endpoint, transform, s3client_config, reader_constructor)
        self._maps: dict[Source, Fetched] = {}
        self._ahead: dict[int, tuple[S3BucketKeyData, Delivery]] = {}  # of a batch that is being made

    @classmethod
    def from_objects(
        cls,
        object_uris: str | Iterable[str],
        *,
        region: str,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> S3MapDataset:
        """These objects, in this order."""
        log.info("Building %s from_objects", cls.__name__)
        return cls(region, objects(object_uris), endpoint, transform, s3client_config, reader_constructor)

    @classmethod
    def from_prefix(
        cls,
        s3_uri: str,
        *,
        region: str,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> S3MapDataset:
        """All objects whose names begin with this, in the order of their names."""
        log.info("Building %s from_prefix s3_uri=%r", cls.__name__, s3_uri)
        return cls(region, Prefix(s3_uri), endpoint, transform, s3client_config, reader_constructor)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, i: int) -> Any:
        number = self._number(i)
        ahead = self._ahead.pop(number, None)
        if ahead is not None:
            return self._delivered(*ahead)
        reader = self._reader(self._listed.place(number))
        if self._is_fetched:
            reader.take_from(_One(self, number, reader.stream))  # type: ignore[attr-defined]
        return self._transform(reader)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A batch, all of it fetched at once; also for a subclass whose __getitem__ calls this one's."""
        if self._is_fetched:
            numbers = list(dict.fromkeys(self._number(i) for i in indices))
            self._ahead = dict(zip(numbers, self._listed.fetch(numbers, self._maps)))
        try:
            return [self[i] for i in indices]
        finally:
            self._ahead = {}

    @property
    def millrace(self) -> MapDataset:
        """The millrace.MapDataset over the same listing: what millrace.DataLoader reads."""
        check_own(self, S3MapDataset, "__getitem__", "__getitems__", "__len__")
        return _Map(self._source(), transform=self._of_lease)

    def _number(self, i: int) -> int:
        number, count = operator.index(i), len(self)
        if not -count <= number < count:
            raise IndexError(f"index {number} is out of range for {count} objects")
        return number % count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}, "_ahead": {}}
