"""The two CheckpointIO plugins, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

from typing import Any

from ..._supervisor import prefer
from ...lightning import CheckpointIO
from ...lightning._package import module
from .. import _config

__all__ = ["DatafluxLightningAsyncCheckpoint", "DatafluxLightningCheckpoint"]
_AsyncCheckpointIO: Any = module("plugins.io").AsyncCheckpointIO


class DatafluxLightningCheckpoint(CheckpointIO):
    """millrace.lightning.CheckpointIO under the reference's name. disable_multipart changes nothing."""

    def __init__(self, project_name: Any, storage_client: Any = None, disable_multipart: bool = False) -> None:
        super().__init__()
        self.project_name = project_name
        self.disable_multipart = disable_multipart
        self._settings = _config.client_settings(storage_client)
        prefer(self._settings)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        prefer(self._settings)


class DatafluxLightningAsyncCheckpoint(_AsyncCheckpointIO):  # type: ignore[misc]
    """Lightning's AsyncCheckpointIO around it. CheckpointIO(wait=False) of millrace.lightning needs no copy."""

    def __init__(self, project_name: Any, storage_client: Any = None, disable_multipart: bool = False) -> None:
        super().__init__(DatafluxLightningCheckpoint(project_name, storage_client, disable_multipart))

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.checkpoint_io.teardown()
