"""`Config` and `DataFluxMapStyleDataset`, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

import os
from typing import Any, Callable

from .._map import MapDataset
from ._config import DEFAULT_COMPOSITE_BYTES, BaseConfig
from ._dataset import Names, data_format_default
from ._retry import DEFAULT

__all__ = ["Config", "DataFluxMapStyleDataset", "data_format_default"]


class Config(BaseConfig):
    """The reference's fields. docs/migrating.md says what each does here."""

    def __init__(
        self,
        sort_listing_results: bool = False,
        max_composite_object_size: int = DEFAULT_COMPOSITE_BYTES,
        num_processes: int | None = os.cpu_count(),
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


class DataFluxMapStyleDataset(Names, MapDataset):
    """The objects of a bucket by number: `dataset[i]` is data_format_fn of the object's bytes.

    Returns at once; the first use waits for the listing. The keyword-only arguments are those of millrace.MapDataset.
    """

    def __init__(
        self,
        project_name: Any,
        bucket_name: str,
        config: BaseConfig | None = None,
        data_format_fn: Callable[[bytes], Any] = data_format_default,
        storage_client: Any = None,
        **more: Any,
    ) -> None:
        chosen = Config() if config is None else config
        uri, transform = self._adopt(project_name, bucket_name, chosen, data_format_fn, storage_client)
        MapDataset.__init__(self, uri, transform=transform, **more)
