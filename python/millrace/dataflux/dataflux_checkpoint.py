"""`DatafluxCheckpoint`, as the module of this name in gcs-torch-dataflux has it."""

from __future__ import annotations

import io
import logging
import warnings
from types import TracebackType
from typing import Any

from .. import checkpoint
from .._supervisor import expect_writer, prefer
from . import _config, _google, _storage

log = logging.getLogger("millrace")

__all__ = ["DatafluxCheckpoint", "DatafluxCheckpointBuffer"]


class DatafluxCheckpoint(_storage.ClientHolder):
    """Files in a bucket for torch.save and torch.load.

    A `with` block that ends by an exception leaves no object; the reference uploads what was written until then.
    """

    def __init__(self, project_name: Any, bucket_name: str, storage_client: Any = None) -> None:
        self.bucket_name = _config.bucket(bucket_name)
        self._take_client(project_name, storage_client)
        if storage_client is None:  # else its settings count once it is used
            expect_writer()

    @property
    def bucket(self) -> Any:
        """storage_client's bucket of that name."""
        return self.storage_client.bucket(self.bucket_name)

    def reader(self, object_name: str) -> checkpoint.Reader:
        """The object as a seekable file. FileNotFoundError if it is not there, which is Google's NotFound too."""
        self._prefer()
        with _google.errors():
            return checkpoint.reader(self._uri(object_name))

    def writer(self, object_name: str) -> checkpoint.Writer:
        """A file that becomes the object by its close, which returns when the store has confirmed it. The
        FileNotFoundError of a missing bucket and the PermissionError are Google's NotFound and Forbidden too.

        Its bytes are on their way to the store as they are written: what needs to seek in them takes a
        DatafluxCheckpointBuffer.
        """
        self._prefer()
        return _storage.writer(self._uri(object_name))

    def _uri(self, object_name: str) -> str:
        return f"gs://{self.bucket_name}/{object_name}"


class DatafluxCheckpointBuffer(io.BytesIO):
    """A BytesIO that becomes the object of a blob by its close: for what must seek in the bytes, or read them again.

    It keeps all of them in memory. DatafluxCheckpoint.writer needs no such memory.
    """

    def __init__(self, blob: Any) -> None:
        super().__init__()
        self.blob = blob

    def close(self) -> None:
        if self.closed:
            return
        try:
            prefer(_config.client_settings(self.blob.client))
            # Not in the traceback of a failure: what has a view cannot be closed.
            with _storage.writer(f"gs://{self.blob.bucket.name}/{self.blob.name}") as file, self.getbuffer() as view:
                file.write(view)
        finally:
            super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            super().close()
        self.close()

    def __del__(self) -> None:
        if not self.closed and self.getbuffer().nbytes:
            text = (
                f"the checkpoint gs://{self.blob.bucket.name}/{self.blob.name} was never closed: nothing has been saved"
            )
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            log.warning("%s", text)
        super().close()
