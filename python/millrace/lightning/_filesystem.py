"""fsspec file systems over millrace.checkpoint, for what Lightning does past its plugins.

ModelCheckpoint looks for files by fsspec before it saves, and loggers, the CLI and load_from_checkpoint open them. For
gs:// fsspec wants gcsfs and for s3:// s3fs; where that is not installed, `register` gives it one of these.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
from typing import Any

import fsspec

from .. import checkpoint as store


def register(scheme: str = "gs") -> bool:
    """Gives fsspec the file system for gs:// (and gcs://) or s3://, unless it has one, or gcsfs or s3fs is installed.

    True if it has ours now.
    """
    system, package = (S3FileSystem, "s3fs") if scheme == "s3" else (FileSystem, "gcsfs")
    if importlib.util.find_spec(package) is not None:
        return False
    for protocol in system.protocol:
        if protocol not in fsspec.registry:
            fsspec.register_implementation(protocol, system)
    return fsspec.registry[scheme] is system


class FileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects of a bucket as files, which are written whole. Folders are where objects are, or were made here."""

    protocol: tuple[str, ...] = ("gs", "gcs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: set[str] = set()  # there is nothing in the bucket that would be an empty folder

    def _uri(self, path: str) -> str:
        stripped = self._strip_protocol(path)
        return f"{self.protocol[0]}://{stripped}" + ("" if "/" in stripped else "/")

    def _under(self, path: str) -> list[str]:
        """Names of all objects in a folder, behind its own name."""
        folder = self._uri(path).rstrip("/") + "/"
        return [uri[len(folder) :] for uri in store.list(folder) if uri != folder]

    def isfile(self, path: str) -> bool:
        uri = self._uri(path)
        return not uri.endswith("/") and uri in store.list(uri)

    def isdir(self, path: str) -> bool:
        return self._was_made(path) or bool(self._under(path))

    def _was_made(self, path: str) -> bool:
        folder = self._strip_protocol(path) + "/"
        return any(made.startswith(folder) for made in self._made)

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._was_made(path) or bool(store.exists(self._uri(path)))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if self.isfile(path):
            with store.reader(self._uri(path)) as file:
                return {"name": name, "size": file.size, "type": "file"}
        if self.isdir(path):
            return {"name": name, "size": 0, "type": "directory"}
        raise FileNotFoundError(f"{self._uri(path)}: no object and no folder has this name")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        under = self._under(path)
        folder = self._strip_protocol(path)
        if not under:
            if self._was_made(path):
                return []
            entry = self.info(path)
            return [entry] if detail else [entry["name"]]
        names = [f"{folder}/{first}" for first in dict.fromkeys(name.partition("/")[0] for name in under)]
        if not detail:
            return names
        files = {f"{folder}/{name}" for name in under}
        return [self.info(name) if name in files else {"name": name, "size": 0, "type": "directory"} for name in names]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """For this process the folder is there; for others once an object is."""
        self._made.add(self._strip_protocol(path) + "/")

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.makedirs(path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        for each in [path] if isinstance(path, str) else path:
            folder = self._strip_protocol(each) + "/"
            made = {name for name in self._made if recursive and name.startswith(folder)}
            self._made -= made
            store.remove(self._uri(each), recursive=recursive, missing_ok=bool(made))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        with store.reader(self._uri(path1)) as source, store.writer(self._uri(path2)) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        uri = self._uri(path)
        if mode == "rb":
            return io.BufferedReader(store.reader(uri))
        if mode not in ("wb", "ab"):
            raise ValueError(f"{uri}: mode {mode!r} is not there for objects; rb, wb and ab are")
        before = b""
        if mode == "ab" and self.isfile(path):  # small files, such as a CSV log: they are written anew
            with store.reader(uri) as file:
                before = file.read()
        out = _Output(store.writer(uri), autocommit)
        out.write(before)
        return out


class S3FileSystem(FileSystem):
    """The same of s3://."""

    protocol = ("s3",)


class _Output(io.BufferedWriter):
    """A file that becomes an object by its close, or by the commit of fsspec's transaction."""

    def __init__(self, raw: Any, autocommit: bool) -> None:
        super().__init__(raw)
        self._autocommit = autocommit

    def close(self) -> None:
        if self._autocommit:
            super().close()
        elif not self.closed:
            self.flush()

    def commit(self) -> None:
        super().close()

    def discard(self) -> None:
        raw: Any = self.detach()
        raw.abort()
