"""S3IterableDataset: objects one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import torch.distributed
import torch.utils.data

from .. import _accelerate
from .._dataset import check_own
from .._iterable import IterableDataset
from ._config import S3ClientConfig
from ._dataset import Recent, S3Dataset, identity
from ._exceptions import of_failure
from ._listed import GetObjects, Prefix, objects
from .s3reader import S3Reader, S3ReaderConstructorProtocol

log = logging.getLogger("millrace")


class _Iterable(IterableDataset):
    """Its errors are S3Exceptions."""

    _error_of = staticmethod(of_failure)


class _Samples(Iterator[Any]):
    """What a transform raises, or a read, does not end it, as in s3torchconnector: the next is the next object."""

    def __init__(self, dataset: S3IterableDataset, numbers: Sequence[int]) -> None:
        self._dataset, self._recent = dataset, Recent()
        listed = dataset._listed
        apart = ((listed.place(number), None) for number in numbers)
        self._deliveries = listed.deliveries(numbers) if dataset._is_fetched else apart

    def __next__(self) -> Any:
        place, delivery = next(self._deliveries)
        sample = self._dataset._delivered(place, delivery)
        if self._dataset._is_fetched and isinstance(sample, S3Reader) and place.object_info is not None:
            self._recent.add(sample, place.object_info.size)
        return sample


class S3IterableDataset(S3Dataset, torch.utils.data.IterableDataset[Any]):
    """The objects under a prefix or of a list: each sample is transform of an S3Reader. Objects are fetched ahead.

    Without enable_sharding each rank and each DataLoader worker reads all of them, as in s3torchconnector.
    """

    def __init__(
        self,
        region: str,
        get_dataset_objects: GetObjects,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        enable_sharding: bool = False,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> None:
        super().__init__(region, get_dataset_objects, endpoint, transform, s3client_config, reader_constructor)
        self._enable_sharding = enable_sharding
        self._rank, self._world_size = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._rank, self._world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    @classmethod
    def from_objects(
        cls,
        object_uris: str | Iterable[str],
        *,
        region: str,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        enable_sharding: bool = False,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> S3IterableDataset:
        """These objects, in this order."""
        log.info("Building %s from_objects", cls.__name__)
        chosen = objects(object_uris)
        return cls(region, chosen, endpoint, transform, s3client_config, enable_sharding, reader_constructor)

    @classmethod
    def from_prefix(
        cls,
        s3_uri: str,
        *,
        region: str,
        endpoint: str | None = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: S3ClientConfig | None = None,
        enable_sharding: bool = False,
        reader_constructor: S3ReaderConstructorProtocol | None = None,
    ) -> S3IterableDataset:
        """All objects whose names begin with this, in the order of their names."""
        log.info("Building %s from_prefix s3_uri=%r", cls.__name__, s3_uri)
        chosen = Prefix(s3_uri)
        return cls(region, chosen, endpoint, transform, s3client_config, enable_sharding, reader_constructor)

    def _ranks(self) -> int:
        """Among how many the objects are divided."""
        return self._world_size if self._enable_sharding else 1

    def __getstate__(self) -> dict[str, Any]:
        _accelerate.refuse_to_divide(self._ranks())  # for workers that are not forked
        return self.__dict__.copy()

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info() if self._enable_sharding else None
        ranks = self._ranks()
        _accelerate.refuse_to_divide(ranks)
        of_rank = range(self._rank if ranks > 1 else 0, len(self._listed), ranks)
        return self._samples(of_rank if worker is None else of_rank[worker.id :: worker.num_workers])

    def _samples(self, numbers: Sequence[int]) -> Iterator[Any]:
        return _Samples(self, numbers)

    @property
    def millrace(self) -> IterableDataset:
        """The millrace.IterableDataset over the same listing: what millrace.DataLoader reads. It deals the objects to
        ranks and workers, and without enable_sharding to the workers of each rank."""
        check_own(self, S3IterableDataset, "__iter__")
        ranks: dict[str, Any] = {} if self._enable_sharding else {"rank": 0, "world_size": 1}
        return _Iterable(self._source(), transform=self._of_lease, **ranks)
