"""Checkpoints as files that are really there: written through shared memory, verified by the store's checksum.

with millrace.checkpoint.writer("gs://bucket/step1.pt") as file:
    torch.save(model.state_dict(), file)

Neither torch nor numpy is needed here.
"""

from __future__ import annotations

from ._save import Save, Saved
from ._writer import Writer, writer

for _public in (Save, Saved, Writer, writer):
    _public.__module__ = __name__  # what a traceback shows is the name that a user imports

__all__ = ["Save", "Saved", "Writer", "writer"]
