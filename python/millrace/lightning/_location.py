"""The paths that Lightning passes: URIs, local paths, and what pathlib and os.path.normpath leave of a URI."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Union

PathLike = Union[str, "os.PathLike[str]"]
_URI = re.compile(r"(gs|gcs|s3(?:\+[A-Za-z0-9.-]+)?):/+(?=[^/])")


def location(path: PathLike) -> str:
    """The URI, or the local path as it is. Path("gs://b/o") is "gs:/b/o" by now; gcs:// is another name for gs://."""
    text = os.fspath(path)
    found = _URI.match(text)
    if found:
        return f"{'gs' if found[1] == 'gcs' else found[1]}://{text[found.end() :]}"
    if text.startswith("file:/") and not text.startswith("file://"):
        return f"file:///{text[len('file:') :].lstrip('/')}"
    return text


def local(place: str) -> Path | None:
    """The file of this machine that a location names, or None."""
    if place.startswith("file://"):
        return Path(place[len("file://") :])
    return None if "://" in place else Path(place)


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"
