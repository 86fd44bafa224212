"""The two CheckpointIO plugins, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

from typing import Any

from ...lightning import CheckpointIO
from ...lightning._checkpoint_io import remove, to_cpu
from ...lightning._location import PathLike
from ...lightning._package import module
from .. import _google, _storage
from . import path_utils

__all__ = ["DatafluxLightningAsyncCheckpoint", "DatafluxLightningCheckpoint"]
_AsyncCheckpointIO: Any = module("plugins.io").AsyncCheckpointIO


class DatafluxLightningCheckpoint(_storage.ClientHolder, CheckpointIO):
    """millrace.lightning.CheckpointIO under the reference's name: for paths of buckets alone.

    disable_multipart and storage_options change nothing.
    """

    def __init__(self, project_name: Any, storage_client: Any = None, disable_multipart: bool = False) -> None:
        super().__init__()
        self.disable_multipart = disable_multipart
        self._take_client(project_name, storage_client)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: PathLike, storage_options: Any = None) -> None:
        place = path_utils.uri(path)
        self._prefer()
        with _google.errors():
            super().save_checkpoint(checkpoint, place)

    def load_checkpoint(
        self, path: PathLike, map_location: Any = to_cpu, weights_only: bool | None = None, *, state: Any = None
    ) -> dict[str, Any]:
        place = path_utils.uri(path)
        self._prefer()
        with _google.errors():
            return super().load_checkpoint(place, map_location, weights_only, state=state)

    def remove_checkpoint(self, path: PathLike) -> None:
        """Removes an object, or all objects of a sharded checkpoint. FileNotFoundError where there is neither."""
        place = path_utils.uri(path)
        self._prefer()
        with _google.errors():
            remove(place, missing_ok=False)


class DatafluxLightningAsyncCheckpoint(_AsyncCheckpointIO):  # type: ignore[misc]
    """Lightning's AsyncCheckpointIO around it. CheckpointIO(wait=False) of millrace.lightning needs no copy."""

    def __init__(self, project_name: Any, storage_client: Any = None, disable_multipart: bool = False) -> None:
        super().__init__(DatafluxLightningCheckpoint(project_name, storage_client, disable_multipart))

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.checkpoint_io.teardown()
