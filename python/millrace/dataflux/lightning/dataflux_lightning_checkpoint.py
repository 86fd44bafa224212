"""The two CheckpointIO plugins, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

import logging
from typing import Any

from ...lightning import CheckpointIO
from ...lightning._checkpoint_io import remove_only
from ...lightning._location import PathLike
from ...lightning._package import module
from .. import _google, _storage
from . import path_utils

__all__ = ["DatafluxLightningAsyncCheckpoint", "DatafluxLightningCheckpoint"]
log = logging.getLogger("millrace")
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
        self, path: PathLike, map_location: Any = None, weights_only: bool | None = None, *, state: Any = None
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
            remove_only(place, missing_ok=False)


class DatafluxLightningAsyncCheckpoint(_AsyncCheckpointIO):  # type: ignore[misc]
    """Lightning's AsyncCheckpointIO around it. CheckpointIO(wait=False) of millrace.lightning needs no copy.

    A removal, which Lightning's class does at once, comes after the saves before it here: else a checkpoint whose save
    is under way could not be found, and would stay. It stays if one of those saves failed.
    """

    _error: BaseException | None  # Lightning's: the failure that the next save raises

    def __init__(self, project_name: Any, storage_client: Any = None, disable_multipart: bool = False) -> None:
        super().__init__(DatafluxLightningCheckpoint(project_name, storage_client, disable_multipart))
        self._has_saves = False  # since the last teardown: the thread takes more

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._has_saves = True
        super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self._has_saves:
            self._executor.submit(int).result()  # it may be one that is being saved
        loaded: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return loaded

    def remove_checkpoint(self, path: PathLike) -> None:
        """As the other's. After a save, a failure is raised by the next one or at the end of the run."""
        if self._has_saves:
            self._executor.submit(self._remove, path_utils.uri(path))
        else:
            super().remove_checkpoint(path)

    def _remove(self, place: str) -> None:
        if self._error is not None:
            log.warning("%s is kept: a checkpoint that was to follow it could not be saved", place)
            return
        try:
            super().remove_checkpoint(place)
        except BaseException as error:
            self._error = error

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._has_saves = False
            self.checkpoint_io.teardown()
