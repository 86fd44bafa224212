"""`s3torchconnector.lightning` over millrace.lightning."""

from __future__ import annotations

from typing import Any

from ...lightning import CheckpointIO
from ...lightning._checkpoint_io import remove_only
from .._config import S3ClientConfig
from .._exceptions import errors
from .._s3client import S3Client
from .._uri import parse_s3_uri

__all__ = ["S3LightningCheckpoint"]


class S3LightningCheckpoint(CheckpointIO):
    """millrace.lightning.CheckpointIO under the reference's name: for s3:// URIs alone. storage_options change
    nothing."""

    def __init__(self, region: str, s3client_config: S3ClientConfig | None = None, endpoint: str | None = None) -> None:
        self.region = region
        self._client = S3Client(region, endpoint=endpoint, s3client_config=s3client_config)
        with self._client.used():
            super().__init__()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:  # type: ignore[override]
        _check(path)
        with self._client.used(), errors:
            super().save_checkpoint(checkpoint, path)

    def load_checkpoint(  # type: ignore[override]
        self, path: str, map_location: Any = None, weights_only: bool | None = None, *, state: Any = None
    ) -> dict[str, Any]:
        _check(path)
        with self._client.used(), errors:
            return super().load_checkpoint(path, map_location, weights_only, state=state)

    def remove_checkpoint(self, path: str) -> None:  # type: ignore[override]
        """A missing object is not an error; a sharded checkpoint is removed as a whole."""
        _check(path)
        with self._client.used(), errors:
            super().remove_checkpoint(path)

    def _remove(self, place: str) -> None:
        remove_only(place)


def _check(path: Any) -> None:
    if not isinstance(path, str):
        raise TypeError(
            f"{type(path).__name__!r} is not a supported type for 'path'. Must be a string formatted as an S3 uri."
        )
    parse_s3_uri(path)
