"""`DatafluxFSDPStrategy`, as the multi-node demo of gcs-torch-dataflux has it."""

from __future__ import annotations

import logging
from typing import Any

from ...lightning import FSDPStrategy
from ...lightning._location import PathLike
from .. import _google, _storage
from .dataflux_lightning_checkpoint import DatafluxLightningCheckpoint
from .path_utils import uri

log = logging.getLogger("millrace")
__all__ = ["DatafluxFSDPStrategy"]


class DatafluxFSDPStrategy(_storage.ClientHolder, FSDPStrategy):
    """millrace.lightning.FSDPStrategy under the reference's name: for paths of buckets alone.

    The reference writes a folder by torch.distributed.checkpoint whatever state_dict_type is. For "full" it cannot
    resume its own: the optimizer's state has numbers in place of names. Here shards are saved for that too.
    """

    def __init__(self, project_name: Any, storage_client: Any, use_async: bool = False, **kwargs: Any) -> None:
        self._take_client(project_name, storage_client)
        self._prefer()
        if kwargs.get("state_dict_type") == "full":
            log.info("DatafluxFSDPStrategy: a sharded checkpoint is saved for state_dict_type='full' too")
            kwargs["state_dict_type"] = "sharded"
        super().__init__(use_async=use_async, **kwargs)
        self.use_async = use_async
        self.checkpoint_io = DatafluxLightningCheckpoint(project_name, storage_client)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: PathLike, storage_options: Any = None) -> None:
        with _google.errors():
            super().save_checkpoint(checkpoint, uri(self.broadcast(filepath)), storage_options)

    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> dict[str, Any]:
        with _google.errors():
            return super().load_checkpoint(uri(self.broadcast(checkpoint_path)), weights_only)

    def remove_checkpoint(self, filepath: PathLike) -> None:
        with _google.errors():
            super().remove_checkpoint(uri(filepath))
