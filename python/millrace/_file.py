"""open(): objects as file objects, read with look-ahead in parallel ranges, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
from types import TracebackType
from typing import IO, Any, Literal, Union, overload

from ._arguments import local_ranks
from ._connection import Connection
from .checkpoint._objects import listed
from .checkpoint._reader import Reader, connection, opened
from .checkpoint._uri import object_uri
from .checkpoint._writer import WAIT_S, Writer, opened_writer

Place = Union[str, "os.PathLike[str]"]

WRITERS_AT_ONCE = 8  # that share the memory of checkpoints: a program may have several files open


class File(Reader):
    """An object that is open for reading: a binary file, seekable, of the version that was there when it was opened.

    Reads return all that was asked for, except at the object's end. Threads take turns. In a forked child it is of no
    use. It pickles as its URI and position: where it is unpickled the object is opened anew.
    """

    _KIND = "file"
    _EXACT = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check()
        return _reopen, (self.uri, self.tell())


def _reopen(uri: str, position: int) -> File:
    file = _open(uri)
    file.seek(position)
    return file


def file_connection() -> Connection:
    """What files are read through: this job's supervisor, or a private one."""
    return connection("a file", in_worker=True)


def _open(uri: Place) -> File:
    return opened(file_connection(), [object_uri(uri)], File)[0]


class WholeOrNothing:
    """Before a class of io's over a Writer: io would close, and so publish, what lacks its end or was never closed."""

    def close(self) -> None:
        if self.closed:  # type: ignore[attr-defined]
            return
        try:
            self._end()
        except BaseException:
            self.abort()
            raise
        self._publish()

    def _end(self) -> None:
        """All bytes go to the object."""
        self.flush()  # type: ignore[attr-defined]

    def _publish(self) -> None:
        super().close()  # type: ignore[misc]

    def abort(self) -> None:
        """Closed, and no object. A file that is read is just closed."""
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Not closed: an object that was never closed is not complete, and its writer says so."""


class TextFile(WholeOrNothing, io.TextIOWrapper):
    """A text file over one of the above. Where it is written, an exception in its `with` block leaves no object."""

    def __init__(self, buffer: Any, mode: str, encoding: str | None, errors: str | None, newline: str | None) -> None:
        super().__init__(buffer, encoding or "utf-8", errors, newline)
        self.mode = mode  # type: ignore[misc]  # as io.open does
        self._newline = newline

    def abort(self) -> None:
        buffer: Any = self.buffer
        (buffer.abort if "r" not in self.mode else buffer.close)()

    def __reduce_ex__(self, protocol: Any) -> Any:
        buffer = self.buffer
        if not isinstance(buffer, File):
            raise TypeError(f"{buffer!r} cannot be pickled or copied: give its URI, and open it where it is used")
        return _reopen_text, (buffer.uri, self.encoding, self.errors, self._newline, self.tell())


def _reopen_text(uri: str, encoding: str, errors: str, newline: str | None, position: int) -> TextFile:
    file = TextFile(_open(uri), "r", encoding, errors, newline)
    file.seek(position)
    return file


@overload
def open(uri: Place, mode: Literal["rb"] = "rb") -> File: ...
@overload
def open(uri: Place, mode: Literal["wb", "xb"]) -> Writer: ...
@overload
def open(
    uri: Place,
    mode: Literal["r", "rt", "w", "wt", "x", "xt"],
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> TextFile: ...
@overload
def open(
    uri: Place,
    mode: str,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> IO[Any]: ...
def open(
    uri: Place,
    mode: str = "rb",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Any:
    """Opens an object, "gs://bucket/name", "s3://bucket/name", or a path of this machine, as a file.

        with millrace.open("s3://bucket/train.csv", "rt") as file:
            header = next(file)

    mode is "rb" (a File), "wb" and "xb" (a checkpoint Writer), or "r", "w" and "x" for text: UTF-8 unless `encoding`
    says otherwise, `errors` and `newline` as the builtin open() has them. Nothing appends: an object is written whole.

    Reading: the object is looked up now (FileNotFoundError, PermissionError), and that version is read: ChangedError
    where it is replaced meanwhile. A read after a seek asks the store for its own bytes and no more; a read that goes
    on where the last one ended also for what comes next, in parallel requests, four times as much as has been read so
    far, up to 96 MiB (less where memory.arena_bytes is small). Where all bytes were read in order, they are compared
    with the store's checksum: millrace.Error where they differ. Reads wait without the GIL.

    Writing: the object is there, verified, when close() returns, and replaces another one (FileExistsError with "x").
    Leaving the `with` block by an exception leaves nothing, nor does a file that is never closed.

    Without `millrace run` (MILLRACE_SOCKET) a private supervisor is started, one for all DataLoader workers of a
    process. In a forked child a file of the parent is of no use: it can be opened or unpickled there.
    """
    kind = mode.replace("b", "", 1).replace("t", "", 1)
    if kind not in ("r", "w", "x") or ("b" in mode and "t" in mode):
        raise ValueError(f"mode {mode!r} is not there for objects: rb, wb, xb and rt, wt, xt are")
    if "b" in mode and not (encoding is None and errors is None and newline is None):
        raise ValueError(f"mode {mode!r} is binary and takes no encoding, errors or newline")
    buffer = _open(uri) if kind == "r" else create(uri, if_absent=kind == "x")
    if "b" in mode:
        return buffer
    try:
        return TextFile(buffer, kind, encoding, errors, newline)
    except BaseException:  # no such encoding, errors or newline
        buffer.abort() if isinstance(buffer, Writer) else buffer.close()
        raise


def create(uri: Place, if_absent: bool, timeout_s: float | None = None) -> Writer:
    """A writer of the object, one of WRITERS_AT_ONCE of this process. With if_absent, FileExistsError now or, where the
    object has come meanwhile, at close()."""
    target = object_uri(uri)
    if if_absent:
        with contextlib.suppress(PermissionError):  # of who may write and not list: the close says it
            if any(item["uri"] == target for item in listed(target, limit=1)):
                raise FileExistsError(f"{target} exists")
    ranks = local_ranks()
    try:
        return opened_writer(target, if_absent, WRITERS_AT_ONCE * ranks, timeout_s or WAIT_S, in_worker=True)
    except TimeoutError as error:
        if timeout_s is None:
            raise
        text = f"{error}. The files of a transaction are open until its end: fewer of them, or more memory"
        raise TimeoutError(text) from None


for _public in (File, TextFile, open):
    _public.__module__ = "millrace"  # what a traceback shows is the name that a user imports
