"""`DatafluxFSDPStrategy`, as the multi-node demo of gcs-torch-dataflux has it."""

from __future__ import annotations

from typing import Any

from ..._supervisor import prefer
from ...lightning import FSDPStrategy
from .. import _config

__all__ = ["DatafluxFSDPStrategy"]


class DatafluxFSDPStrategy(FSDPStrategy):
    """millrace.lightning.FSDPStrategy under the reference's name."""

    def __init__(self, project_name: Any, storage_client: Any, use_async: bool = False, **kwargs: Any) -> None:
        prefer(_config.client_settings(storage_client))
        super().__init__(use_async=use_async, **kwargs)
        self.project_name = project_name
