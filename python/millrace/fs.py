"""fsspec file systems over millrace: gs:// and s3:// for pandas, pyarrow, Hugging Face datasets and others.

import millrace.fs
fs = millrace.fs.GSFileSystem()
fs.ls("bucket/train")
pandas.read_parquet("millrace+s3://bucket/table.parquet", columns=["label"])

"millrace+gs://" and "millrace+s3://" are known to fsspec once millrace is installed, or this is imported;
register() makes gs:// and s3:// come here too. docs/files.md says what each call asks the store for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timezone
from glob import has_magic
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any

try:
    import fsspec
    from fsspec.callbacks import DEFAULT_CALLBACK
    from fsspec.compression import compr
    from fsspec.core import get_compression
    from fsspec.utils import isfilelike, tokenize
except ImportError as error:
    raise ImportError("millrace.fs needs fsspec: pip install fsspec") from error

from ._errors import BUSY, NETWORK, TIMEOUT, Error, SupervisorGone
from ._file import File, TextFile, create, file_connection
from ._file import open as open_file
from ._fs_options import check_content, check_store, check_version
from ._fs_output import Compressed, FileTransaction, Output
from ._looked_up import LookedUp, Range
from .checkpoint import _changes, _objects

LISTINGS_EXPIRY_S = 10.0
LOOKED_UP_AT_ONCE = 4096  # objects
WRITTEN_AT_ONCE = 8
COPIED_AT_ONCE = 4
TRANSACTION_WAIT_S = 10.0  # for memory, which its own files may hold until its end
COPY_BYTES = 8 << 20


def register(*schemes: str) -> None:
    """From now on fsspec in this process takes these for gs, gcs, s3 and s3a, or those of them that are named."""
    for scheme in schemes or ("gs", "gcs", "s3", "s3a"):
        if scheme not in (*GSFileSystem.protocol, *S3FileSystem.protocol):
            raise ValueError(f"{scheme!r} is not a scheme of millrace.fs: gs, gcs, s3 and s3a are")
        system = GSFileSystem if scheme in GSFileSystem.protocol else S3FileSystem
        fsspec.register_implementation(scheme, system, clobber=True)


_Slice = tuple[int, str, slice]  # its number, the object's URI, which bytes


class _Batch(threading.local):
    """What a call of get, put or copy in this thread will do, rather than doing one after the other."""

    pairs: list[tuple[str, str]] | None = None
    folders: set[str]  # what find has met
    files: set[str]


class FileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects of buckets as files; paths are "bucket/name".

    Folders are where objects are: makedirs() does nothing. Files are written whole, or not at all, and verified.
    Listings are kept for `listings_expiry_time` seconds (10; None: until this process changes something);
    `use_listings_cache=False` keeps none. info() and exists() always ask. Usable from threads and after a fork.
    """

    scheme: str
    protocol: tuple[str, ...]
    root_marker = ""
    transaction_type = FileTransaction

    def __init__(
        self, *args: Any, listings_expiry_time: float | None = LISTINGS_EXPIRY_S, **storage_options: Any
    ) -> None:
        check_store(storage_options)
        super().__init__(*args, listings_expiry_time=listings_expiry_time, **storage_options)
        self._batch = _Batch()
        self._changes = _changes.count

    # ---- names ----

    def _uri(self, path: str) -> str:
        stripped = self._strip_protocol(path)
        if not stripped:
            raise ValueError(f"{path!r} names no bucket: write {self.scheme}://bucket/name")
        if stripped.partition("/")[0].endswith(":"):
            raise ValueError(
                f"{path!r} is not of {self.scheme}://: from one store to another, get() to this machine and put() there"
            )
        return f"{self.scheme}://{stripped}" + ("" if "/" in stripped else "/")

    def _folder_uri(self, path: str) -> str:
        return self._uri(path).rstrip("/") + "/"

    def _entry(self, item: dict[str, Any]) -> dict[str, Any]:
        """As fsspec has it: of an object, or of a folder."""
        name = item["uri"][len(self.scheme) + 3 :]
        if name.endswith("/"):
            return {"name": name.rstrip("/"), "size": 0, "type": "directory"}
        entry = {"name": name, "size": item["size"], "type": "file", "generation": item["generation"]}
        if "created" in item:
            entry["created"] = entry["mtime"] = datetime.fromtimestamp(item["created"], timezone.utc)
            entry["LastModified" if self.scheme == "s3" else "ctime"] = entry["created"]  # of s3fs, of gcsfs
        for key, known in (("crc32c", "crc32c"), ("etag", "ETag")):
            if key in item:
                entry[known] = item[key]
        return entry

    # ---- looking ----

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """name, size, type; of an object also generation, created, mtime (of s3:// LastModified, else ctime), and where
        the store says them crc32c and ETag. One look-up, and where there is no such object a listing of one name."""
        name = self._strip_protocol(path)
        uri = self._uri(path)
        check_version(uri, kwargs)
        for item in _objects.listed(uri, limit=1):
            if item["uri"] == uri and not uri.endswith("/"):
                return self._entry(item)
            return {"name": name, "size": 0, "type": "directory"}
        if uri.endswith("/"):
            return {"name": name, "size": 0, "type": "directory"}  # an empty bucket: one that is missing has raised
        raise FileNotFoundError(f"{uri}: no object and no folder has this name")

    def exists(self, path: str, **kwargs: Any) -> bool:
        """PermissionError and millrace.Error are raised: no answer is not False."""
        check_version(path, kwargs)
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        if self._batch.pairs is not None and self._strip_protocol(path) in self._batch.files:
            return False
        try:
            return self._type(path) == "directory"
        except PermissionError:
            if self._batch.pairs is None:
                raise
            return False  # the name that an object is to have: who writes it need not be allowed to list

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def ls(self, path: str, detail: bool = False, refresh: bool = False, **kwargs: Any) -> list[Any]:
        """One level: names, as of s3fs and gcsfs, or with detail=True what info() gives of each. refresh=True lists
        again, also if a listing is kept."""
        name = self._strip_protocol(path)
        changes = _changes.count
        if self._changes != changes:
            self.dircache.clear()
            self._changes = changes
        entries = None if refresh else self.dircache.get(name)
        if entries is None:
            folder = self._folder_uri(path)
            items = _objects.listed(folder)
            if not items and "/" in name:
                entry = self.info(path)
                return [entry] if detail else [entry["name"]]
            entries = [self._entry(item) for item in items if item["uri"] != folder and item["uri"] != folder + "/"]
            if changes == _changes.count:  # another thread has written nothing meanwhile
                self.dircache[name] = entries
        return list(entries) if detail else [entry["name"] for entry in entries]

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        """A listing of each folder, as fsspec has it. But what cannot be listed is an error, and no empty folder,
        unless on_error is "omit" or a function."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")

        def judge(error: OSError) -> None:
            if on_error == "raise" or (on_error is None and not isinstance(error, FileNotFoundError)):
                raise error
            if callable(on_error):
                on_error(error)

        detail = kwargs.pop("detail", False)
        for root, folders, files in super().walk(path, maxdepth=1, on_error=judge, detail=True, **kwargs):
            places = {name: info["name"].rstrip("/") for name, info in folders.items()}
            level = (root, folders, files) if detail else (root, list(folders), list(files))
            if topdown:
                yield level
            if maxdepth is None or maxdepth > 1:
                deeper = None if maxdepth is None else maxdepth - 1
                for name in level[1]:
                    yield from self.walk(places[name], deeper, topdown, on_error, detail=detail, **kwargs)
            if not topdown:
                yield level

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        prefix: str = "",
        **kwargs: Any,
    ) -> Any:
        """All files below a path: one listing, however deep (with maxdepth one for each folder). prefix: those whose
        names go on with it after the path and a slash."""
        if prefix:
            begins = f"{self._strip_protocol(path)}/{prefix}".lstrip("/")
            below = self.find(path, maxdepth, withdirs, True, **kwargs)
            below = {name: entry for name, entry in below.items() if name.startswith(begins)}
            return below if detail else list(below)
        if maxdepth is not None:
            below = super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
            if self._batch.pairs is not None and detail:
                self._batch.folders.update(each for each, entry in below.items() if entry["type"] == "directory")
                self._batch.files.update(each for each, entry in below.items() if entry["type"] == "file")
            return below
        name = self._strip_protocol(path)
        found: dict[str, dict[str, Any]] = {}
        folders: dict[str, dict[str, Any]] = {}
        for item in _objects.listed(self._uri(path), recursive=True):
            entry = self._entry(item)
            (found if entry["type"] == "file" else folders)[entry["name"]] = entry
            for folder in self._parents(item["uri"][len(self.scheme) + 3 :], name):
                folders.setdefault(folder, {"name": folder, "size": 0, "type": "directory"})
        if len(found) > 1:
            found.pop(name, None)  # there is a folder of that name, and what is below it was asked for
        if self._batch.pairs is not None:
            self._batch.folders.update(folders.keys() - found.keys())
            self._batch.files.update(found)
        if withdirs:
            found = {**folders, **found}
        return {each: found[each] for each in sorted(found)} if detail else sorted(found)

    def du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        """The bytes of all files below a path, or with total=False of each by its name. As many listings as find."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        sizes = {name: entry["size"] for name, entry in found.items()}
        return sum(sizes.values()) if total else sizes

    @staticmethod
    def _parents(name: str, top: str) -> Iterator[str]:
        """The folders that an object is in, up to `top`."""
        folder = name.rpartition("/")[0]
        while len(folder) >= len(top) and folder:
            yield folder.rstrip("/")
            folder = folder.rpartition("/")[0]

    def invalidate_cache(self, path: str | None = None) -> None:
        """What is listed next is asked for anew: below a path only that is forgotten, and the folders above it."""
        if path is None:
            self.dircache.clear()
        else:
            name = self._strip_protocol(path)
            for kept in list(self.dircache):
                if f"{kept}/".startswith(f"{name}/") or f"{name}/".startswith(f"{kept}/"):
                    self.dircache.pop(kept, None)
        super().invalidate_cache(path)

    def created(self, path: str) -> datetime:
        """When this version was made, by the store's clock, in UTC."""
        made = self.info(path).get("created")
        if made is None:
            raise Error(f"{self._uri(path)}: the store does not say when it was made")
        return made  # type: ignore[no-any-return]

    modified = created  # an object is never changed, only replaced

    def checksum(self, path: str) -> int:
        """Another one for every version of an object."""
        entry = self.info(path)
        return int(tokenize(entry["name"], entry.get("generation"), entry["size"]), 16)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing: a folder is there once an object is."""

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Nothing, as makedirs()."""

    # ---- reading ----

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
            check_version(uri, kwargs)
            return open_file(uri)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"{uri}: mode {mode!r} is not there for objects; rb, wb, xb and ab are")
        check_content(uri, kwargs)
        before = b""
        if mode == "ab" and self.isfile(path):  # small files, such as a CSV log: they are written anew
            before = self.cat_file(path)
        out = Output(create(uri, mode == "xb", None if autocommit else TRANSACTION_WAIT_S), autocommit)
        out.write(before)
        return out

    def open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        """As millrace.open(); also "ab", which writes the object anew, and `compression` as fsspec has it. block_size
        has no effect."""
        if "b" not in mode:
            options = [kwargs.pop(key, None) for key in ("encoding", "errors", "newline")]
            kind = mode.replace("t", "")
            return TextFile(self.open(path, kind + "b", **kwargs), kind, *options)
        if mode == "rb":
            return super().open(path, mode, **kwargs)
        compression = get_compression(path, kwargs.pop("compression", None))
        out = super().open(path, mode, **kwargs)
        return out if compression is None else Compressed(compr[compression](out, mode="w"), out)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of an object, or of a slice of it."""
        uri = self._uri(path)
        check_version(uri, kwargs)
        with open_file(uri) as file:
            start, stop, _ = slice(start, end).indices(file.size)
            file.seek(start)
            return file.read(max(stop - start, 0))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The bytes of an object; or of many, by name, all in flight together."""
        check_version(path, kwargs)
        with self._collect():
            paths = self.expand_path(path, recursive=recursive)
            folders = self._batch.folders
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], **kwargs)
        paths = [each for each in paths if each not in folders]
        ranges = kwargs.get("start"), kwargs.get("end")
        data = self.cat_ranges(paths, *ranges, on_error="raise" if on_error == "raise" else "return")
        found = dict(zip(paths, data))
        return {name: got for name, got in found.items() if on_error == "return" or not isinstance(got, BaseException)}

    def cat_ranges(
        self, paths: list[str], starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """The bytes of slices of objects, all in flight together; an exception in place of one that failed, unless
        on_error="raise". Each object is looked up once."""
        if not isinstance(paths, list):
            raise TypeError(f"paths is a list, not {type(paths).__name__}")
        check_version(paths, kwargs)
        count = len(paths)
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * count
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * count
        if len(starts) != count or len(ends) != count:
            raise ValueError(f"{count} paths, {len(starts)} starts and {len(ends)} ends: there must be as many of each")
        slices = [(i, self._uri(path), slice(*bounds)) for i, (path, *bounds) in enumerate(zip(paths, starts, ends))]
        out: list[Any] = [b""] * count
        for group in _groups(slices):
            for i, data in self._slices(group):
                if isinstance(data, Exception) and on_error == "raise":
                    raise data
                out[i] = data
        return out

    def _slices(self, group: list[_Slice]) -> Iterator[tuple[int, Any]]:
        """The numbers of slices of objects of one bucket, each with its bytes, or with why there are none."""
        for found, some in _looked_up(group):
            left = {i for i, _, _ in some}
            if isinstance(found, Exception):
                yield from ((i, found) for i in left)
                continue
            with found:
                try:
                    for i, data in _read(found, some):
                        left.discard(i)
                        yield i, data
                except OSError as error:
                    yield from ((i, error) for i in left)

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        """One object to a local file, which is there whole or not at all; or into an open one."""
        check_version(rpath, kwargs)
        outfile = lpath if outfile is None and isfilelike(lpath) else outfile
        if outfile is not None:
            with open_file(self._uri(rpath)) as file:
                callback.set_size(file.size)
                shutil.copyfileobj(file, outfile, COPY_BYTES)
        elif self._batch.pairs is not None:
            self._batch.pairs.append((rpath, os.fspath(lpath)))
        else:
            self._get([(rpath, os.fspath(lpath))], set(), callback)

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Objects, patterns or folders to local files, all in flight together."""
        check_version(rpath, kwargs)
        with self._collect() as pairs:
            super().get(rpath, lpath, recursive=recursive, maxdepth=maxdepth, **kwargs)
            folders = self._batch.folders
        callback.set_size(len(pairs))
        self._get(pairs, folders, callback)

    def _get(self, pairs: list[tuple[str, str]], folders: set[str], callback: Any) -> None:
        wanted = []
        for i, (name, local) in enumerate(pairs):
            if self._strip_protocol(name) in folders:
                Path(local).mkdir(parents=True, exist_ok=True)
                callback.relative_update(1)
            else:
                Path(local).parent.mkdir(parents=True, exist_ok=True)
                wanted.append((i, self._uri(name), slice(None)))
        for group in _groups(wanted):
            self._get_group(group, pairs, callback)

    def _get_group(self, group: list[_Slice], pairs: list[tuple[str, str]], callback: Any) -> None:
        for found, some in _looked_up(group):
            if isinstance(found, Exception):
                name, local = pairs[some[0][0]]
                if not isinstance(found, FileNotFoundError) or not self.isdir(name):
                    raise found
                Path(local).mkdir(parents=True, exist_ok=True)
                continue
            with found:
                block = found.block_bytes
                large = [each for each in some if found.find(each[1])[1] > block]
                for i, data in _read(found, [each for each in some if each not in large]):
                    if isinstance(data, Exception):
                        raise data
                    with _local_file(pairs[i][1]) as out:
                        out.write(data)
                    callback.relative_update(1)
                for i, uri, _ in large:
                    with File(uri, found, found.range_reader(uri, False)) as file, _local_file(pairs[i][1]) as out:
                        shutil.copyfileobj(file, out, COPY_BYTES)
                    callback.relative_update(1)

    # ---- writing ----

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """One object of these bytes; mode="create": FileExistsError where there is one."""
        uri = self._uri(path)
        check_content(uri, kwargs)
        with create(uri, if_absent=mode == "create") as file:
            file.write(value)
        self.invalidate_cache(path)

    def pipe(self, path: Any, value: bytes | None = None, **kwargs: Any) -> None:
        """One object, or those of a dict, several at a time."""
        if isinstance(path, str):
            self.pipe_file(path, value or b"", **kwargs)
        elif isinstance(path, dict):
            _together(WRITTEN_AT_ONCE, lambda item: self.pipe_file(*item, **kwargs), path.items())
        else:
            raise ValueError("path is a str, or a dict of names and bytes")

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """One local file to an object."""
        check_content(self._uri(rpath), kwargs)
        if self._batch.pairs is not None:
            self._batch.pairs.append((lpath, rpath))
            return
        source = Path(lpath)
        if source.is_dir():
            return
        with source.open("rb") as file, create(self._uri(rpath), if_absent=mode == "create") as out:
            callback.set_size(source.stat().st_size)
            shutil.copyfileobj(file, out, COPY_BYTES)
        callback.absolute_update(source.stat().st_size)

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Local files or folders to objects, several at a time."""
        mode = kwargs.pop("mode", "overwrite")
        with self._collect() as pairs:
            super().put(lpath, rpath, recursive=recursive, maxdepth=maxdepth, **kwargs)
        self._run(WRITTEN_AT_ONCE, lambda pair: self.put_file(*pair, mode=mode), pairs, callback)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """One object, through this machine (`millrace cp`); of a folder nothing."""
        check_content(path2, kwargs)
        if self._batch.pairs is not None:
            self._batch.pairs.append((path1, path2))
            return
        try:
            self._copy(self._uri(path1), self._uri(path2))
        except FileNotFoundError:
            if not self.isdir(path1):
                raise

    def _copy(self, source: str, target: str) -> None:
        _objects.copy(source, target)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """copy(), and once all of it is there, rm() of what was copied; what has the new name already stays."""
        check_content(path2, kwargs)
        pairs = self._copies(path1, path2, recursive=recursive, maxdepth=maxdepth)
        self._run(COPIED_AT_ONCE, self._copy_or_look, pairs, DEFAULT_CALLBACK)
        given = [path1] if isinstance(path1, (str, os.PathLike)) else list(path1)
        roots = [self._strip_protocol(os.fspath(each)) for each in given]
        targets = {self._strip_protocol(target) for _, target in pairs}
        sources = [self._strip_protocol(source) for source, _ in pairs]
        left = [each for each in sources if each not in targets and not self._is_behind_link(each, roots)]
        if left:
            _objects.remove_all([self._uri(each) for each in left])  # not rm(): none of them is a pattern
            self.invalidate_cache()
        elif not pairs and not recursive:
            self.rm(path1)  # a folder: it says that there is no such object
        for root in roots if recursive else ():
            _objects.remove_folders(self._uri(root))

    def _is_behind_link(self, path: str, roots: list[str]) -> bool:
        """Whether a link to a folder lies between a root and it: then the link is what is removed."""
        return False

    def _copy_or_look(self, pair: tuple[str, str]) -> None:
        """FileNotFoundError for an object that is not there, also where it would be copied onto itself."""
        if self._strip_protocol(pair[0]) == self._strip_protocol(pair[1]):
            self.info(pair[0])
        else:
            self.cp_file(*pair)

    def _copies(self, path1: Any, path2: Any, **kwargs: Any) -> list[tuple[str, str]]:
        """What copy() copies, without the folders."""
        with self._collect() as pairs:
            super().copy(path1, path2, on_error="raise", **kwargs)
            return [pair for pair in pairs if pair[0] not in self._batch.folders]

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Objects or folders to other names, several at a time."""
        on_error = kwargs.pop("onerror", on_error)  # as it was spelt
        pairs = self._copies(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        ignored = (FileNotFoundError,) if on_error == "ignore" or (on_error is None and recursive) else ()

        def copy_one(pair: tuple[str, str]) -> None:
            with contextlib.suppress(*ignored):
                self.cp_file(*pair)

        self._run(COPIED_AT_ONCE, copy_one, pairs, DEFAULT_CALLBACK)

    def rm_file(self, path: str) -> None:
        """One object; its name may contain any characters."""
        _objects.remove_all([self._uri(path)])
        self.invalidate_cache(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Objects; recursive=True: all below a path too. FileNotFoundError where there is nothing."""
        paths = [os.fspath(path)] if isinstance(path, (str, os.PathLike)) else list(path)
        if maxdepth is not None or any(map(has_magic, paths)):
            with self._collect():
                found = self.expand_path(paths, recursive, maxdepth)
                folders = self._batch.folders
            paths = [each for each in found if each not in folders and (maxdepth is None or self.isfile(each))]
            recursive = False
        if recursive:
            for each in paths:
                _objects.remove(self._uri(each), recursive=True)
        else:
            _objects.remove_all([self._uri(each) for each in paths])
        self.invalidate_cache()

    # ---- inside ----

    @contextlib.contextmanager
    def _collect(self) -> Iterator[list[tuple[str, str]]]:
        """In here get_file, put_file and cp_file only say what is to be done, and find notes what is a folder."""
        pairs: list[tuple[str, str]] = []
        self._batch.pairs, self._batch.folders, self._batch.files = pairs, set(), set()
        try:
            yield pairs
        finally:
            self._batch.pairs = None

    def _run(self, at_once: int, do: Callable[[tuple[str, str]], None], pairs: list[Any], callback: Any) -> None:
        callback.set_size(len(pairs))

        def one(pair: tuple[str, str]) -> None:
            do(pair)
            callback.relative_update(1)

        _together(at_once, one, pairs)
        self.invalidate_cache()


class GSFileSystem(FileSystem):
    """gs://"""

    scheme = "gs"
    protocol = ("millrace+gs", "gs", "gcs")


class S3FileSystem(FileSystem):
    """s3://"""

    scheme = "s3"
    protocol = ("millrace+s3", "s3", "s3a")


class LocalFileSystem(FileSystem):
    """file://, for programs that take one file system for all."""

    scheme = "file"
    protocol = ("millrace+file", "file")

    def _copy(self, source: str, target: str) -> None:
        if Path(source[len("file://") :]).is_file():
            Path(target[len("file://") :]).parent.mkdir(parents=True, exist_ok=True)
        super()._copy(source, target)

    def _is_behind_link(self, path: str, roots: list[str]) -> bool:
        root = next((each for each in roots if path.startswith(f"{each}/")), path)
        folders = accumulate(path[len(root) + 1 :].split("/")[:-1], "{}/{}".format, initial=root)
        return any(Path(folder).is_symlink() for folder in islice(folders, 1, None))


def _groups(slices: list[_Slice]) -> Iterator[list[_Slice]]:
    """Those of one bucket that are looked up together."""
    by_bucket = sorted(slices, key=lambda each: each[1].split("/", 3)[2])
    for _, group in groupby(by_bucket, key=lambda each: each[1].split("/", 3)[2]):
        together = list(group)
        for at in range(0, len(together), LOOKED_UP_AT_ONCE):
            yield together[at : at + LOOKED_UP_AT_ONCE]


def _looked_up(group: list[_Slice]) -> Iterator[tuple[LookedUp | Exception, list[_Slice]]]:
    """All of a group, which the caller closes; where one is not to be had, by halves, down to that one's error.

    A store that gives no answer is not asked for each: every time takes it retry.deadline_ms."""
    try:
        found = LookedUp(file_connection(), [uri for _, uri, _ in group])
    except (OSError, ValueError) as error:
        if len({uri for _, uri, _ in group}) == 1 or _is_of_all(error, group):
            yield error, group
        else:
            yield from _looked_up(group[: len(group) // 2])
            yield from _looked_up(group[len(group) // 2 :])
        return
    yield found, group


def _is_of_all(error: Exception, group: list[_Slice]) -> bool:
    """Whether the others would fail alike: the store cannot be reached, or another object has no better answer."""
    if isinstance(error, SupervisorGone) or not isinstance(error, Error):
        return isinstance(error, SupervisorGone)
    if error._code not in (TIMEOUT, BUSY):
        return error._code == NETWORK
    other = next((uri for _, uri, _ in group if uri not in str(error)), group[-1][1])
    try:
        LookedUp(file_connection(), [other]).close()
    except (OSError, ValueError) as again:
        return isinstance(again, Error) and again._code in (NETWORK, TIMEOUT, BUSY, error._code)
    return False


def _read(found: LookedUp, group: list[_Slice]) -> Iterator[tuple[int, bytes | Exception]]:
    """The number and the bytes of each slice. Whole objects are verified: those of more than a block by a reader."""
    block = found.block_bytes
    rest: list[int] = []
    ranges: list[Range] = []
    for i, uri, which in group:
        number, size = found.find(uri)
        start, stop, _ = which.indices(size)
        if stop - start == size > block:
            try:
                with File(uri, found, found.range_reader(uri, False)) as file:
                    data: bytes | Exception = file.read()
            except SupervisorGone:
                raise
            except OSError as error:
                data = error
            yield i, data
        else:
            rest.append(i)
            ranges.append(Range(number, start, stop))
    yield from ((rest[at], data) for at, data in found.whole(ranges))


@contextlib.contextmanager
def _local_file(path: str) -> Iterator[Any]:
    """A file that gets its name once it is whole. What is no file, such as a pipe or a device, is written into."""
    if Path(path).exists() and not Path(path).is_file():  # before its links are followed: /dev/stdout's has no name
        with Path(path).open("wb") as out:
            yield out
        return
    target = Path(os.path.realpath(path))  # a link stays one
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("wb") as out:
            yield out
        part.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def _together(at_once: int, do: Callable[[Any], None], items: Iterable[Any]) -> None:
    """All of them, though one fails; then the first failure."""
    with ThreadPoolExecutor(at_once) as pool:
        try:
            results = [pool.submit(do, item) for item in items]
            wait(results)
        except BaseException:  # Ctrl-C: those that have not begun never do
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for result in results:
        result.result()


for _system in (GSFileSystem, S3FileSystem, LocalFileSystem):
    fsspec.register_implementation(_system.protocol[0], _system, clobber=True)
