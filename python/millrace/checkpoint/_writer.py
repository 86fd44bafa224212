"""writer(): a file object whose bytes become one object of the store, whole and verified, or nothing."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from .. import _supervisor, _timing, _trace
from .._arguments import local_ranks
from ._save import Save, Saved, raise_unreported, watch, without_frames
from ._uri import Place, object_uri

if TYPE_CHECKING:
    from typing import BinaryIO

    from .. import _ring
    from .._connection import Connection

    class _File(io.RawIOBase, BinaryIO):  # as typeshed has files: torch.save takes an IO[bytes]
        pass
else:
    _File = io.RawIOBase

log = logging.getLogger("millrace")

SHARERS_MAX = 4096
PAUSE_S = (0.01, 0.1)  # between two questions for memory
WARN_AFTER_S = 10.0
SLICE_MS = 100
WAIT_S = 300.0  # for memory


class Writer(_File):
    """A writable binary file that is an object of a store once it is closed; writer() makes it.

    For one thread at a time. Leaving its `with` block by an exception aborts: no object appears. A writer that is
    neither closed nor aborted saves nothing. In a forked child it is of no use.
    """

    def __init__(self, uri: str, ring: _ring.Writer, connection: Connection) -> None:
        self.uri = uri
        self._pid = os.getpid()  # before the ring, by which __del__ goes
        self._ring: _ring.Writer | None = ring
        self._connection: Connection | None = connection
        self._size = 0  # once it is closed
        self._began = _trace.now()
        self._save: Save | None = None
        self._failed: Exception | None = None  # the first failure: what later calls raise again

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<millrace.checkpoint.Writer {self.uri} {state}, {self._tell()} bytes>"

    # ---- a file ----

    @property
    def name(self) -> str:
        return self.uri

    @property
    def mode(self) -> str:
        return "wb"

    @property
    def closed(self) -> bool:
        """Closed or aborted: nothing more can be written. A save may still be on its way."""
        return self._ring is None

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        raise io.UnsupportedOperation("a checkpoint writer cannot be read")

    def write(self, data: Any, /) -> int:
        """Copies the bytes of any contiguous buffer into shared memory and returns how many those are: always all.

        Waits, without the GIL, while no part of the memory is free. A failure to upload earlier bytes is
        raised here: FileExistsError (if_absent), FileNotFoundError (no such bucket), PermissionError, ChangedError,
        millrace.SupervisorGone, millrace.Error (with errno ENOSPC where a disk is full). After a failure the writer can
        only be aborted, and further calls raise that failure again: torch.save writes once more on its way out.

        A signal handler that uses this writer in the middle of a call gets RuntimeError. Where that leaves the handler,
        the call fails with it, and no object appears.
        """
        ring = self._open()
        if self._failed is not None:
            raise without_frames(self._failed)
        try:
            with _timing.saving():
                return ring.write(data)
        except BaseException as error:
            if ring.aborted:  # not where the argument is to blame, or another call is under way
                self._failed = self._cause(error)
            raise

    def tell(self) -> int:
        """Bytes that were written so far."""
        self._open()
        return self._tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """io.UnsupportedOperation, even to where the writer is: zipfile and others take that for a seekable file."""
        self._refuse("seek")

    def getvalue(self) -> bytes:
        """io.UnsupportedOperation: io.BytesIO has it, and this keeps no bytes."""
        self._refuse("getvalue")

    def getbuffer(self) -> memoryview:
        """io.UnsupportedOperation, as getvalue()."""
        self._refuse("getbuffer")

    def flush(self) -> None:
        """Does nothing: full parts are on their way already, and close() sends the last one."""
        self._open()

    @overload  # type: ignore[override]
    def close(self, wait: Literal[True] = True) -> Saved: ...
    @overload
    def close(self, wait: Literal[False]) -> Save: ...
    @overload
    def close(self, wait: bool) -> Saved | Save: ...
    def close(self, wait: bool = True) -> Saved | Save:
        """Ends the object. With wait=True, returns once the store has confirmed the checksum of the whole, or raises.

        With wait=False it returns as soon as all bytes are in shared memory and a write worker knows of them, with a
        Save: a future whose upload is finished even if this process dies. Its failure is raised by the future, or else
        by the next writer(). May be called again: close(wait=False) and later close() waits. KeyboardInterrupt in the
        wait leaves the save promised.
        """
        if self._failed is not None:
            raise without_frames(self._failed)
        save = self._save
        if save is None:
            with _timing.saving():
                save = self._seal(wait)
        return save.result() if wait else save

    def abort(self) -> None:
        """Ends the writer without an object. Does nothing once it is closed."""
        ring = self._ring
        if ring is None:
            return
        if self._pid == os.getpid():
            ring.abort()  # RuntimeError in the middle of another call: this writer stays as it is
        self._ring = self._connection = None
        if self._failed is None:
            self._failed = ValueError(f"the writer of {self.uri} was aborted: nothing has been saved")
        self._size = ring.bytes
        ring.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            if error is not None and self._hides_the_failure(error):
                assert self._failed is not None
                raise without_frames(self._failed) from error
        elif not self.closed:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_ring", None) is None:  # also where __init__ has not run
            return
        if self._pid == os.getpid():
            text = f"the checkpoint writer of {self.uri} was never closed: nothing has been saved"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            log.warning("%s", text)
        with contextlib.suppress(Exception):
            self.abort()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a checkpoint writer cannot be pickled or copied: give its URI, and open it where it is used")

    # ---- inside ----

    def _hides_the_failure(self, error: BaseException) -> bool:
        """It came up while our failure was on its way out: torch.save cannot end its archive, and raises that."""
        while error.__cause__ is None and error.__context__ is not None:
            error = error.__context__
            if type(error) is type(self._failed) and error.args == self._failed.args:
                return True
        return False

    def _cause(self, error: BaseException) -> Exception:
        """What later calls raise: the failure again, but no second KeyboardInterrupt or SystemExit."""
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # a signal handler may raise what cannot be copied
                return without_frames(error)
        name = type(error).__name__
        return ValueError(f"the writer of {self.uri} was aborted by {name}: nothing has been saved")

    def _open(self) -> _ring.Writer:
        if self._ring is None:
            raise ValueError(f"I/O operation on the closed checkpoint writer of {self.uri}")
        return self._ring

    def _refuse(self, what: str) -> NoReturn:
        self._open()
        raise io.UnsupportedOperation(
            f"{what}: {self.uri} is sent as it is written; for that write an io.BytesIO, and then its bytes here"
        )

    def _tell(self) -> int:
        return self._size if self._ring is None else self._ring.bytes

    def _seal(self, wait: bool) -> Save:
        ring, connection = self._open(), self._connection
        assert connection is not None
        try:
            ring.seal()
        except BaseException as error:
            if ring.sealed and self._ring is ring:  # a signal handler's came as the call returned
                watch(self._promised(ring, connection))
            elif ring.aborted:  # not where another call is under way
                self._failed = self._failed or self._cause(error)
                self.abort()
            raise
        if self._save is not None:  # by a signal handler, or another thread, since: it is watched
            return self._save
        save = self._promised(ring, connection)
        try:
            _trace.trace("save", self._began, bytes=self._size, text=self.uri)
            while wait and not save._poll(SLICE_MS):
                pass
        except BaseException:
            watch(save)
            raise
        if not wait:
            watch(save)
        return save

    def _promised(self, ring: _ring.Writer, connection: Connection) -> Save:
        self._save = save = Save(self.uri, ring, connection)  # first: a signal's exception shall not lose the promise
        self._ring, self._connection, self._size = None, None, ring.bytes
        return save


def prepare() -> None:
    """Makes ready for checkpoints in the background, so that the first save does not wait for it.

    The write workers start, the memory that checkpoints pass through (checkpoint.arena_bytes) is taken and entered into
    this process's page tables, all at low priority; this does not wait for it. Call it once, when the job has begun, in
    a process that will save. A Lightning CheckpointIO or strategy, a dcp.StorageWriter and a DatafluxCheckpoint do that
    when they are made. Without `millrace run` a private supervisor is started, as by writer(). Does nothing where the
    configuration has checkpoint.prepare = "never".
    """
    _supervisor.expect_writer()
    _supervisor.connection(maker="a checkpoint writer")


def writer(
    uri: Place, *, if_absent: bool = False, sharers: int | None = None, timeout_s: float | None = WAIT_S
) -> Writer:
    """Opens an object for writing: "gs://bucket/name", "s3://bucket/name", or a path of this machine.

        with millrace.checkpoint.writer("gs://bucket/step1.pt") as file:
            torch.save(model.state_dict(), file)

    An object of that name is replaced only by the whole new one, once that is verified; with if_absent=True there must
    be none (FileExistsError, at a write or at close). Nothing of the object can be seen before close() has returned.

    Memory: the writer gets its share of checkpoint.arena_bytes in shared memory, however large the object becomes.
    `sharers`: how many writers this node opens side by side (default: LOCAL_WORLD_SIZE, else 1). While the memory is
    taken by others this waits, holding nothing, up to timeout_s seconds (None: for ever), then raises TimeoutError.

    Without `millrace run` (MILLRACE_SOCKET) a private supervisor is started, never in a DataLoader worker; it stays
    for later checkpoints, until this process has ended. Raises the failure of an earlier save, if no one has asked for
    that (see Save).
    """
    return opened_writer(uri, if_absent, sharers, timeout_s)


_Kind = TypeVar("_Kind", bound=Writer)


def opened_writer(
    uri: Place,
    if_absent: bool,
    sharers: int | None,
    timeout_s: float | None,
    in_worker: bool = False,
    kind: type[_Kind] = Writer,  # type: ignore[assignment]
) -> _Kind:
    """The same; in_worker: also in a DataLoader worker without a supervisor."""
    target = object_uri(uri)
    count = local_ranks() if sharers is None else sharers
    if not 1 <= count <= SHARERS_MAX:
        raise ValueError(f"sharers is {count}: it must be from 1 to {SHARERS_MAX}")
    raise_unreported()
    connection = _supervisor.connection(maker="a checkpoint writer", in_worker=in_worker)
    began = time.monotonic()
    warned = False
    pause = PAUSE_S[0]
    _supervisor.keep(connection)
    while True:
        got = connection.client.open_writer(target, if_absent, count)
        if not isinstance(got, str):
            return kind(target, got, connection)
        waited = time.monotonic() - began
        left = pause if timeout_s is None else timeout_s - waited
        if left <= 0:
            raise TimeoutError(f"no memory for a checkpoint writer of {target} within {timeout_s:g} s: {got}")
        if waited > WARN_AFTER_S and not warned:
            warned = True
            log.warning("a checkpoint writer of %s waits for memory: %s", target, got)
        time.sleep(min(pause, left))
        pause = min(2 * pause, PAUSE_S[1])
