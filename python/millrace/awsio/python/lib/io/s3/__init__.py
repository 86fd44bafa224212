"""The names of the S3 plug-in, where it had them."""

from .s3dataset import (
    S3Dataset,
    S3IterableDataset,
    ShuffleDataset,
    file_exists,
    get_file_size,
    list_files,
)

__all__ = ["S3Dataset", "S3IterableDataset", "ShuffleDataset", "file_exists", "get_file_size", "list_files"]
