"""torch.distributed.checkpoint over millrace: save, async_save and load to and from object stores and folders.

    dcp.save(state, checkpoint_id="gs://bucket/run/step-100", storage_writer=millrace.dcp.StorageWriter())

The format is torch's own: its FileSystemReader reads a checkpoint that StorageWriter wrote under file://, and
StorageReader reads what its FileSystemWriter wrote.
"""

from __future__ import annotations

from ._load import StorageReader
from ._save import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]

for _public in (StorageReader, StorageWriter):
    _public.__module__ = "millrace.dcp"
