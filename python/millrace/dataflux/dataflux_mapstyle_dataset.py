"""`Config` and `DataFluxMapStyleDataset`, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from .._map import MapDataset
from . import _retry, dataflux_core
from ._config import CPUS, DEFAULT_COMPOSITE_BYTES, BaseConfig
from ._dataset import DropIn, data_format_default
from ._google import GoogleMap
from ._retry import DEFAULT

__all__ = ["Config", "DataFluxMapStyleDataset", "data_format_default", "dataflux_core"]


class Config(BaseConfig):
    """The reference's fields, in its order. docs/migrating.md describes what each does here."""

    def __init__(
        self,
        sort_listing_results: bool = False,
        max_composite_object_size: int = DEFAULT_COMPOSITE_BYTES,
        num_processes: int | None = CPUS,
        prefix: str | None = None,
        max_listing_retries: int = 3,
        threads_per_process: int = 1,
        disable_compose: bool = False,
        list_retry_config: Any = DEFAULT,
        download_retry_config: Any = DEFAULT,
    ) -> None:
        super().__init__(
            sort_listing_results,
            max_composite_object_size,
            num_processes,
            prefix,
            max_listing_retries,
            disable_compose,
            list_retry_config,
            download_retry_config,
        )
        self.threads_per_process = threads_per_process


class _Client:
    """`.storage_client` after unpickling: a new one, as in the reference, but where it is asked for."""

    def __get__(self, dataset: Any, owner: Any = None) -> Any:
        if dataset is None:
            return self
        from google.cloud import storage

        client = storage.Client(project=dataset.project_name)
        dataset.__dict__["storage_client"] = client
        return client


class DataFluxMapStyleDataset(DropIn):
    """The objects of a bucket by number: `dataset[i]` is data_format_fn of the bytes of `.objects[i]`.

    The keyword-only arguments are those of millrace.MapDataset.
    """

    _torch_base = "Dataset"
    config_class = Config
    storage_client: Any = _Client()

    def __init__(
        self,
        project_name: Any,
        bucket_name: str,
        config: BaseConfig | None = None,
        data_format_fn: Callable[[bytes], Any] = data_format_default,
        storage_client: Any = None,
        *,
        on_error: str | None = None,
        window: int | None = None,
        writable: bool = False,
    ) -> None:
        super().__init__(project_name, bucket_name, config, data_format_fn, storage_client)
        self._millrace, self._together = (
            GoogleMap(self._listed, on_error=on_error, window=window, writable=writable) for _ in range(2)
        )

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, idx: int) -> Any:
        numbers = self._numbers([idx])
        return next(self._read([idx])) if numbers is None else self._formatted()[numbers[0]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        numbers = self._numbers(indices)
        if numbers is None:
            return list(self._read(indices))
        with self._together._lock():  # what is stored as gzip depends on what it is read with
            self._together._transform = self._format(indices)
            return self._together.__getitems__(numbers)

    @property
    def millrace(self) -> MapDataset:
        """The millrace.MapDataset over the same listing: what millrace.DataLoader reads."""
        self._check_own(DataFluxMapStyleDataset, "__getitem__", "__getitems__", "__len__")
        found: MapDataset = self._formatted()
        return found


def __getattr__(name: str) -> Any:
    if name == "MODIFIED_RETRY":  # it needs Google's library, and nothing else here does
        return _retry.of_data_sets()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
