"""URLs of the S3 plug-in: each is a file, or else the prefix of some."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .._connection import Source
from ..s3torchconnector._exceptions import errors
from ..s3torchconnector._listed import Known, S3BucketKeyData, explicit
from ..s3torchconnector._s3client import S3Client
from ..s3torchconnector._uri import parse_s3_uri

LISTED_AT_ONCE = 16  # a supervisor has room for 64 listings


def client(region: str = "") -> S3Client:
    return S3Client(region or os.environ.get("AWS_REGION") or "us-west-2", endpoint=os.environ.get("S3_ENDPOINT_URL"))


def listing(of: S3Client, url: str) -> Source:
    """Of what begins with the URL; under way."""
    parse_s3_uri(url)
    return Source(of.connection(), None, (url,), format="objects", anew=True)


def below(source: Source, bucket: str) -> list[str]:
    """The URLs of a listing, without those that stand for folders."""
    with errors:
        return [f"s3://{bucket}/{name}" for name, _ in source.index() if not name.endswith("/")]


def resolved(of: S3Client, urls: Sequence[str]) -> Known:
    """The files that the URLs name, in their order. AssertionError for one that names none."""
    if len(urls) > LISTED_AT_ONCE:
        found = _files(of, urls)
        if found is not None:
            return found
    names: list[str] = []
    sources: dict[str, list[Source]] = {}
    for at in range(0, len(urls), LISTED_AT_ONCE):
        some = urls[at : at + LISTED_AT_ONCE]
        for url, source in [(url, listing(of, url)) for url in some]:
            bucket, _ = parse_s3_uri(url)
            names += _named(source, bucket, url)
            sources.setdefault(bucket, []).append(source)
        if len(urls) > LISTED_AT_ONCE:
            sources.clear()
    if sources or not urls:
        return Known(_places(names), sources)
    again = _files(of, names)
    return Known(_places(names), {}) if again is None else again


def _files(of: S3Client, urls: Sequence[str]) -> Known | None:
    """The same where all of them are files."""
    places = _places(urls)
    by_bucket: dict[str, dict[str, None]] = {}
    for url, place in zip(urls, places):
        by_bucket.setdefault(place.bucket, {})[url] = None
    try:
        sources = {bucket: [explicit(of, each)] for bucket, each in by_bucket.items()}
        for [source] in sources.values():
            source.index()
    except (FileNotFoundError, ValueError):
        return None
    return Known(places, sources)


def _places(urls: Sequence[str]) -> list[S3BucketKeyData]:
    return [S3BucketKeyData(*parse_s3_uri(url)) for url in urls]


def _named(source: Source, bucket: str, url: str) -> list[str]:
    _, key = parse_s3_uri(url)
    with errors:
        try:
            source.index().find(key)
            return [url]
        except KeyError:
            found = below(source, bucket)
    assert found, f"The directory {url} does not contain any objects."
    return found
