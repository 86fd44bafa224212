"""`dataflux_pytorch.lightning` of gcs-torch-dataflux over millrace.lightning and millrace.dcp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import path_utils
from .dataflux_lightning_checkpoint import DatafluxLightningAsyncCheckpoint, DatafluxLightningCheckpoint
from .gcs_filesystem import GCSDistributedReader, GCSDistributedWriter, GCSFileSystem

if TYPE_CHECKING:
    from .strategies import DatafluxFSDPStrategy

__all__ = [
    "DatafluxFSDPStrategy",
    "DatafluxLightningAsyncCheckpoint",
    "DatafluxLightningCheckpoint",
    "GCSDistributedReader",
    "GCSDistributedWriter",
    "GCSFileSystem",
    "path_utils",
]


def __getattr__(name: str) -> Any:
    if name == "DatafluxFSDPStrategy":  # it needs Lightning 2.1
        from .strategies import DatafluxFSDPStrategy

        return DatafluxFSDPStrategy
    raise AttributeError(f"module 'millrace.dataflux.lightning' has no attribute {name!r}")
