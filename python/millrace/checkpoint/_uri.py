"""What a caller may write as the place of a checkpoint, and the URI that it stands for."""

from __future__ import annotations

import logging
import os
import re
from typing import Union

from .. import _arguments

log = logging.getLogger("millrace")
Place = Union[str, "os.PathLike[str]"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_said = False  # that a path without a scheme is a local file: once a process


def to_uri(place: Place) -> str:
    """The URI of an object, or of a prefix: "gs://bucket/name", "s3://bucket/name", "s3+ENDPOINT://bucket/name" or
    "file:///absolute/path".

    Takes a URI, a path of this machine, or a Path of either. ValueError names what is wrong with it.
    """
    text = os.fspath(place)
    if not isinstance(text, str):
        raise TypeError(f"an object is named by a str or a path of str, not {type(text).__name__}")
    text = _arguments.uncollapsed(text.removeprefix("millrace+"))  # as fsspec has it
    if "\0" in text or "\n" in text:
        raise ValueError(f"{text!r}: an object's name cannot hold a newline or a NUL")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _local(text)
    rest = text[scheme.end() :]
    if scheme[1] == "file":
        if not rest.startswith("/"):
            raise ValueError(f"{text!r}: write an absolute path after file://, as in file:///checkpoints/step1.pt")
        return text
    if scheme[1] not in ("gs", "s3") and not scheme[1].startswith("s3+"):  # [endpoint.NAME] of the configuration
        raise ValueError(f"{text!r}: {scheme[1]}:// is not known here; use gs://, s3://, file:// or a path")
    if not rest.partition("/")[0]:
        raise ValueError(f"{text!r} names no bucket: write {scheme[1]}://bucket/name")
    return text


def object_uri(place: Place) -> str:
    """The same for one object: it must have a name that does not end like a folder's."""
    uri = to_uri(place)
    if uri.endswith("/") or (not uri.startswith("file://") and not uri.partition("://")[2].partition("/")[2]):
        raise ValueError(f"{uri!r} names no object: write the whole name, as in {uri.rstrip('/')}/step1.pt")
    return uri


def _local(text: str) -> str:
    if not text:
        raise ValueError("the place of a checkpoint is empty")
    global _said
    path = os.path.abspath(text)  # noqa: PTH100 - Path.resolve() would follow links
    if not _said:
        _said = True
        # "bucket/name" may well have been meant for a bucket; what begins with a slash was not.
        level = logging.INFO if os.path.isabs(text) else logging.WARNING  # noqa: PTH117
        log.log(level, "%r is a file of this machine, %s: an object of a bucket is gs://bucket/name", text, path)
    slash = "/" if text.endswith("/") and text.strip("/") else ""  # abspath cuts it off
    return f"file://{path}{slash}"
