"""gs:// and gcs:// paths, as the module of this name in gcs-torch-dataflux reads them: anything else is refused."""

from __future__ import annotations

import os
from typing import Any

from ...lightning._location import PathLike


def process_input_path(path: PathLike) -> str:
    """The text of a path; a Path, which has made one slash of "://", gets the other again."""
    if isinstance(path, str):
        return path
    if not isinstance(path, os.PathLike):
        raise TypeError(f"a checkpoint's path is a str or a Path, not {type(path).__name__}")
    scheme, colon, rest = os.fspath(path).partition(":/")
    if not colon:
        raise ValueError(_refusal(path))
    return f"{scheme}://{rest}"


def parse_gcs_path(path: PathLike) -> tuple[str, str]:
    """The bucket and the object's name. ValueError for what does not begin with gs:// or gcs://."""
    if not path:
        raise ValueError("a checkpoint's path is empty: write gs://bucket/name")
    text = process_input_path(path)
    if not text.startswith(("gs://", "gcs://")):
        raise ValueError(_refusal(path))
    bucket, _, name = text.partition("//")[2].partition("/")
    if not bucket:
        raise ValueError(f"{str(path)!r} names no bucket: write gs://bucket/name")
    return bucket, name


def uri(path: PathLike) -> str:
    """The gs:// URI of what parse_gcs_path reads."""
    bucket, name = parse_gcs_path(path)
    return f"gs://{bucket}/{name}"


def _refusal(path: Any) -> str:
    return (
        f"{str(path)!r} is not a path of a bucket, which begins with gs:// or gcs://; files of this machine are for "
        "millrace.checkpoint, millrace.dcp and millrace.lightning"
    )
