"""`s3torchconnector.dcp` over millrace.dcp."""

from __future__ import annotations

from .s3_file_system import S3FileSystem, S3StorageReader, S3StorageWriter
from .s3_prefix_strategy import (
    BinaryPrefixStrategy,
    DefaultPrefixStrategy,
    HexPrefixStrategy,
    NumericPrefixStrategy,
    RoundRobinPrefixStrategy,
    S3PrefixStrategyBase,
)

__all__ = [
    "BinaryPrefixStrategy",
    "DefaultPrefixStrategy",
    "HexPrefixStrategy",
    "NumericPrefixStrategy",
    "RoundRobinPrefixStrategy",
    "S3FileSystem",
    "S3PrefixStrategyBase",
    "S3StorageReader",
    "S3StorageWriter",
]
