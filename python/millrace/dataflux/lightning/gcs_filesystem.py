"""What torch.distributed.checkpoint writes and reads by, as the module of this name in gcs-torch-dataflux has it."""

from __future__ import annotations

from typing import Any

from ..._supervisor import prefer
from ...dcp import StorageReader, StorageWriter
from ...lightning._location import PathLike, location
from .. import _config

__all__ = ["GCSDistributedReader", "GCSDistributedWriter"]


class _Adapter:
    """The reference's arguments in front of a millrace.dcp storage; mixed into it."""

    def __init__(
        self, path: PathLike, project_name: Any, storage_client: Any = None, debug: bool = False, **kwargs: Any
    ) -> None:
        prefer(_config.client_settings(storage_client))
        super().__init__(location(path))  # type: ignore[call-arg]
        self.project_name, self.debug = project_name, debug

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return bool(super().validate_checkpoint_id(location(checkpoint_id)))  # type: ignore[misc]

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        super().reset(location(checkpoint_id) if checkpoint_id else None)  # type: ignore[misc]


class GCSDistributedWriter(_Adapter, StorageWriter):
    """millrace.dcp.StorageWriter under the reference's name. Arguments of torch's FileSystemWriter change nothing."""


class GCSDistributedReader(_Adapter, StorageReader):
    """millrace.dcp.StorageReader under the reference's name."""
