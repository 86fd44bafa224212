"""The names of s3torchconnector over millrace: `sed s/s3torchconnector/millrace.s3torchconnector/` is the migration.

docs/s3torchconnector.md says what each does here.
"""

from __future__ import annotations

from ._config import S3ClientConfig
from ._exceptions import S3Exception
from .s3checkpoint import S3Checkpoint
from .s3iterable_dataset import S3IterableDataset
from .s3map_dataset import S3MapDataset
from .s3reader import S3Reader, S3ReaderConstructor
from .s3writer import S3Writer

__version__ = "1.5.0"  # whose names these are

__all__ = [
    "S3Checkpoint",
    "S3ClientConfig",
    "S3Exception",
    "S3IterableDataset",
    "S3MapDataset",
    "S3Reader",
    "S3ReaderConstructor",
    "S3Writer",
    "__version__",
]
