"""`Config` and `DataFluxIterableDataset`, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

from dataclasses import dataclass

from .._iterable import IterableDataset
from ._config import BaseConfig
from ._dataset import Names, data_format_default

__all__ = ["Config", "DataFluxIterableDataset", "data_format_default"]


@dataclass(eq=False)
class Config(BaseConfig):
    """The reference's fields, in its order. docs/migrating.md describes what each does here."""


class DataFluxIterableDataset(Names, IterableDataset):
    """The objects of a bucket, dealt to ranks and DataLoader workers: each sample is data_format_fn of its bytes.

    Returns at once; the first use waits for the listing. The keyword-only arguments are those of
    millrace.IterableDataset: rank=0 and world_size=1 give every rank all objects, as in gcs-torch-dataflux.
    """

    config_class = Config
