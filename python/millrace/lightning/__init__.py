"""millrace in PyTorch Lightning: checkpoints in a bucket, and a DataLoader that a Trainer resumes in mid-epoch.

For `lightning` and for `pytorch_lightning`, 2.0 and later: for the one that was imported before this. Importing it lets
fsspec, and so ModelCheckpoint, find gs:// paths where gcsfs is not installed, and s3:// paths without s3fs.
docs/checkpoints.md has the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._checkpoint_io import CheckpointIO
from ._filesystem import FileSystem, S3FileSystem
from ._filesystem import register as register_filesystem
from ._loader import DataLoader

if TYPE_CHECKING:
    from ._fsdp import FSDPStrategy

__all__ = ["CheckpointIO", "DataLoader", "FSDPStrategy", "FileSystem", "S3FileSystem", "register_filesystem"]

register_filesystem()
register_filesystem("s3")


def __getattr__(name: str) -> Any:
    if name == "FSDPStrategy":
        from ._fsdp import FSDPStrategy

        return FSDPStrategy
    raise AttributeError(f"module 'millrace.lightning' has no attribute {name!r}")
