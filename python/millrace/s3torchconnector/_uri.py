"""s3:// URIs as s3torchconnector reads them."""

from __future__ import annotations


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """The bucket, and the object's key or the prefix, which may be empty. ValueError for anything but s3://."""
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        raise ValueError(f"Only s3:// URIs are supported, not {uri!r}: write s3://bucket/key")
    bucket, _, key = uri[len("s3://") :].partition("/")
    if not bucket:
        raise ValueError(f"Bucket name must be non-empty in {uri!r}: write s3://bucket/key")
    return bucket, key
