"""S3Checkpoint: files in a bucket for torch.save and torch.load."""

from __future__ import annotations

from ._config import S3ClientConfig
from ._s3client import S3Client
from ._uri import parse_s3_uri
from .s3reader import S3Reader
from .s3writer import S3Writer


class S3Checkpoint:
    """Readers and writers of objects by their URIs."""

    def __init__(self, region: str, endpoint: str | None = None, s3client_config: S3ClientConfig | None = None) -> None:
        self.region = region
        self.endpoint = endpoint
        self._client = S3Client(region, endpoint=endpoint, s3client_config=s3client_config)

    def reader(self, s3_uri: str) -> S3Reader:
        """The object as a seekable file. S3Exception at the first read where it cannot be had."""
        return self._client.get_object(*parse_s3_uri(s3_uri))

    def writer(self, s3_uri: str) -> S3Writer:
        """A file that becomes the object by its close, which returns when the store has confirmed it."""
        return self._client.put_object(*parse_s3_uri(s3_uri))
