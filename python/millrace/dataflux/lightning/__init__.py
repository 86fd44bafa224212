"""`dataflux_pytorch.lightning` of gcs-torch-dataflux over millrace.lightning."""

from .dataflux_lightning_checkpoint import DatafluxLightningAsyncCheckpoint, DatafluxLightningCheckpoint

__all__ = ["DatafluxLightningAsyncCheckpoint", "DatafluxLightningCheckpoint"]
