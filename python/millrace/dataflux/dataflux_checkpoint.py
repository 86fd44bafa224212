"""`DatafluxCheckpoint`, as the module of this name in gcs-torch-dataflux has it."""

from __future__ import annotations

from typing import Any

from .. import checkpoint
from .._supervisor import prefer
from . import _config

__all__ = ["DatafluxCheckpoint"]


class DatafluxCheckpoint:
    """Files in a bucket for torch.save and torch.load.

    A `with` block that ends by an exception leaves no object; the reference uploads what was written until then.
    """

    def __init__(self, project_name: Any, bucket_name: str, storage_client: Any = None) -> None:
        self.project_name = project_name
        self.bucket_name = _config.bucket(bucket_name)
        self._settings = _config.client_settings(storage_client)

    def reader(self, object_name: str) -> checkpoint.Reader:
        """The object as a seekable file. FileNotFoundError if it is not there."""
        prefer(self._settings)
        return checkpoint.reader(self._uri(object_name))

    def writer(self, object_name: str) -> checkpoint.Writer:
        """A file that becomes the object by its close, which returns when the store has confirmed it."""
        prefer(self._settings)
        return checkpoint.writer(self._uri(object_name))

    def _uri(self, object_name: str) -> str:
        return f"gs://{self.bucket_name}/{object_name}"
