"""The names of the Amazon S3 plug-in for PyTorch, and torchdata's S3 pipes that came after it, over millrace:
`sed s/awsio.python/millrace.awsio.python/` is the migration.

Keys, region and endpoint are found as everywhere (docs/credentials.md).
"""

from __future__ import annotations

from ._datapipes import S3FileLister, S3FileLoader
from .python.lib.io.s3.s3dataset import (
    S3BaseClass,
    S3Dataset,
    S3IterableDataset,
    ShuffleDataset,
    file_exists,
    get_file_size,
    list_files,
)

__all__ = [
    "S3BaseClass",
    "S3Dataset",
    "S3FileLister",
    "S3FileLoader",
    "S3IterableDataset",
    "ShuffleDataset",
    "file_exists",
    "get_file_size",
    "list_files",
]
