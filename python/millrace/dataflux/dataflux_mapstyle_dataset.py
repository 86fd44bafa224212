"""`Config` and `DataFluxMapStyleDataset`, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

from dataclasses import dataclass

from .._map import MapDataset
from ._config import BaseConfig, ThreadFields
from ._dataset import Names, data_format_default

__all__ = ["Config", "DataFluxMapStyleDataset", "data_format_default"]


@dataclass(eq=False)
class Config(BaseConfig, ThreadFields):
    """The reference's fields, in its order. docs/migrating.md describes what each does here."""


class DataFluxMapStyleDataset(Names, MapDataset):
    """The objects of a bucket by number: `dataset[i]` is data_format_fn of the object's bytes.

    Returns at once; the first use waits for the listing. The keyword-only arguments are those of millrace.MapDataset.
    """

    config_class = Config
