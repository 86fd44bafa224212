"""Checkpoints as files that are really there: written through shared memory, verified by the store's checksum.

with millrace.checkpoint.writer("gs://bucket/step1.pt") as file:
    torch.save(model.state_dict(), file)
with millrace.checkpoint.reader("gs://bucket/step1.pt") as file:
    state = torch.load(file, weights_only=True)

Neither torch nor numpy is needed here.
"""

from __future__ import annotations

from ._objects import exists, list_objects, remove
from ._reader import Reader, reader, readers
from ._save import Save, Saved
from ._writer import Writer, prepare, writer

list = list_objects  # read as millrace.checkpoint.list

for _public in (Reader, Save, Saved, Writer, exists, list, reader, readers, remove, prepare, writer):
    _public.__module__ = __name__  # what a traceback shows is the name that a user imports

__all__ = ["Reader", "Save", "Saved", "Writer", "exists", "list", "prepare", "reader", "readers", "remove", "writer"]
