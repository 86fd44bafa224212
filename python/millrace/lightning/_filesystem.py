"""fsspec's file systems for what Lightning does past its plugins.

ModelCheckpoint looks for files by fsspec before it saves, and loggers, the CLI and load_from_checkpoint open them. For
gs:// fsspec wants gcsfs and for s3:// s3fs; where that is not installed, `register` gives it one of these.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import fsspec

from .. import fs


class _Made(fs.FileSystem):
    """Lightning makes folders and looks whether they are there: for this process they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: set[str] = set()  # with their slash: there is nothing in the bucket that would be an empty folder

    def _was_made(self, path: str) -> bool:
        name = self._strip_protocol(path)
        return any(made.startswith(f"{name}/") for made in self._made)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().info(path)
        except FileNotFoundError:
            if not self._was_made(path):
                raise
        return {"name": self._strip_protocol(path), "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = False, refresh: bool = False, **kwargs: Any) -> list[Any]:
        found = super().ls(path, detail, refresh)
        name = self._strip_protocol(path)  # an empty folder would be listed as itself
        made = self._was_made(path) and (found[0]["name"] if detail else found[0]) == name if found else False
        return [] if made else found

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """For this process the folder is there; for others once an object is."""
        self._made.add(self._strip_protocol(path) + "/")

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.makedirs(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        below = self._strip_protocol(path) + "/" if isinstance(path, str) else "\n"
        made = {name for name in self._made if recursive and name.startswith(below)}
        self._made -= made
        if not made or self.exists(path):
            super().rm(path, recursive, maxdepth)


class FileSystem(_Made, fs.GSFileSystem):
    """millrace.fs.GSFileSystem whose folders are there once they are made."""


class S3FileSystem(_Made, fs.S3FileSystem):
    """The same of s3://."""


def register(scheme: str = "gs") -> bool:
    """Gives fsspec the file system for gs:// (and gcs://) or s3://, unless it has another one, or gcsfs or s3fs is
    installed.

    True if it has ours now.
    """
    system, protocols, package = {
        "gs": (FileSystem, ("gs", "gcs"), "gcsfs"),
        "s3": (S3FileSystem, ("s3",), "s3fs"),
    }[scheme]
    if importlib.util.find_spec(package) is not None:
        return False
    for protocol in protocols:
        if protocol not in fsspec.registry or fsspec.registry[protocol] in (fs.GSFileSystem, fs.S3FileSystem):
            fsspec.register_implementation(protocol, system, clobber=True)
    return fsspec.registry[scheme] is system
