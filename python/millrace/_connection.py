"""One connection to a supervisor for each process, and the data sets that use it."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from . import _agree, _torch, _worker
from ._arguments import MAX_WINDOW, POLICIES, TAILS
from ._errors import ChangedError, Error, SupervisorGone
from ._listing import ListingProgress
from ._progress import Progress
from ._ring import Client, Index, Lane, Opened, Plan
from ._shuffle import Shuffle

log = logging.getLogger("millrace")

ROOM_S = 10.0  # within which what is being closed makes room
Answer = TypeVar("Answer")


class Connection:
    """This process's Client of one socket. Data sets keep it alive."""

    def __init__(self, path: str, timeout_ms: int) -> None:
        self.path = path
        self.client = Client(path, "job", timeout_ms)
        self.prepared = False  # it was told that a checkpoint writer will come
        self._pid = os.getpid()

    def is_ours(self) -> bool:
        """False in a child that was forked since: it needs its own."""
        return self._pid == os.getpid()

    def wait_listed(self, number: int, seen: Callable[[int, int], object] | None = None) -> None:
        """Until this data set is listed. Raises what it failed with; `seen` is told objects and requests so far."""
        pause = _Pause()
        while True:
            done, objects, requests = self.client.dataset_listed(number)
            if done:
                return
            self.client.check()
            if seen is not None:
                seen(objects, requests)
            pause.sleep()

    def wait_ready(self) -> None:
        """Until lanes can be opened: the arenas are divided and reserved once the first listing is done."""
        pause = _Pause()
        while not self.client.ready():
            self.client.check()
            pause.sleep()


class _Pause:
    """Between two looks of one who waits for the supervisor: short at first."""

    def __init__(self) -> None:
        self._next_s = 0.0002

    def sleep(self) -> None:
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, 0.05)


def with_room(connection: Connection, ask: Callable[[], Answer | None]) -> Answer:
    """What `ask` answers; None: the supervisor has no room now, but is making some."""
    pause, until, collected = _Pause(), time.monotonic() + ROOM_S, False
    while True:
        connection.client.close_unused()
        try:
            answer = ask()
        except Error as e:
            if e.errno != errno.ENOMEM or collected:
                raise
            gc.collect()  # data sets in reference cycles
            collected = True
            continue
        if answer is not None:
            return answer
        if time.monotonic() > until:
            raise Error("the supervisor has no room for another data set: those that are being closed do not end")
        connection.client.check()
        pause.sleep()


_connections: weakref.WeakValueDictionary[str, Connection] = weakref.WeakValueDictionary()
# A signal handler may come in the middle of both, and open something too.
_lock = threading.RLock()
_opening = threading.RLock()  # a thread opens a data set that came to this process
_listings: dict[tuple[str, tuple[str, ...]], int] = {}  # socket, URIs -> how often this process has listed them anew


def connect(path: str, timeout_ms: int) -> Connection:
    """The process's connection to that socket; a new one if there is none or its supervisor has ended or is silent."""
    with _lock:
        found = _connections.get(path)
        if found is not None and found.is_ours():
            with contextlib.suppress(SupervisorGone):
                found.client.check()
                return found
        found = Connection(path, timeout_ms)
        _connections[path] = found
        return found


def _forget_in_child() -> None:
    global _lock, _opening, _connections
    _lock = threading.RLock()  # another thread may have held it
    _opening = threading.RLock()
    _connections = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_forget_in_child)


def _count_listing(path: str, uris: tuple[str, ...]) -> int:
    with _lock:
        _listings[path, uris] = nth = _listings.get((path, uris), 0) + 1
        return nth


class Loop(NamedTuple):
    """Where an epoch stands, and for whom: what the main process passes to the workers that open lanes."""

    epoch: int
    cursor: int
    seed: int
    batch: int
    world: int
    rank: int
    block: int = 0  # the blocks of a loaded state; 0: the data set's own
    mix: int = 0


class Source:
    """A data set as the supervisor knows it. Pickles without a connection; each process makes its own.

    With `anew` it is listed when it is made. Which listing that is, is counted: what is the nth of these URIs in one
    process is that of all whose nth it is. So the ranks of a job, which do the same one after the other, share each;
    it ends when no process has it any more. Any other one stays for its next user until the supervisor needs the room.

    A process that is given the data set opens the very listing. If it comes too late for that, it lists the objects
    again, and must find the same ones.
    """

    def __init__(
        self,
        connection: Connection,
        name: str | None,
        uris: tuple[str, ...],
        objects: bool = False,
        format: str = "",
        anew: bool = False,
    ) -> None:
        self._connection: Connection | None = None
        self._path = connection.path
        self._run = connection.client.run_id
        self._name, self._uris, self._objects, self._format = name, uris, objects, format
        self._nth = _count_listing(connection.path, uris) if anew else 0
        self._first: str | None = None  # the digest of its listing, once that is known
        self._checked: Connection | None = None  # through which the listing was compared with it
        # The supervisor's ids: of the current listing, and of what is read, which may be an older one.
        self._opened, tail, on_error = self._open(connection, uris)
        self._listed = self._number = self._opened.number
        self._loaded: Opened | None = None  # what is read, where it is another one
        self._indexes: dict[int, Index] = {}  # of what is read, once it is known
        self._samples: bool | None = None
        self._digest: str | None = None  # the loaded listing's
        # The defaults of the TOML for a reader that names none; enums of shm/control/config.h.
        self.tail, self.on_error = TAILS[tail], POLICIES[on_error]
        self._connection = connection
        # One list is not another, in whatever order its names are.
        self._listed_as = f"{len(uris)} {sum(map(zlib.crc32, map(os.fsencode, uris))):x}" if objects else ""
        if objects:
            self._uris = ()  # a long list is not pickled with it: the supervisor has it

    @property
    def is_list(self) -> bool:
        """Of explicit objects."""
        return self._objects

    def __str__(self) -> str:
        return self._name or ("a list of objects" if self._objects else ", ".join(self._uris))

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_connection": None,
            "_checked": None,
            "_opened": None,
            "_loaded": None,
            "_indexes": {},
        }

    def _open(self, connection: Connection, uris: Iterable[str]) -> tuple[Opened, int, int]:
        """With what readers do that are told nothing: enums of the configuration, tail and on_error."""
        client, name, format, nth = connection.client, self._name, self._format, self._nth
        if self._objects:
            return open_objects(connection, uris, format)
        opened = Opened(client)
        if name is not None:
            answer = with_room(connection, lambda: client.open_dataset(name=name, format=format, into=opened))
        else:
            places = tuple(uris)
            answer = with_room(
                connection, lambda: client.open_dataset(uris=places, format=format, nth=nth, into=opened)
            )
        return opened, *answer[1:]

    def connection(self) -> Connection:
        """This process's connection. After a fork or unpickling it is made here."""
        found = self._connection
        if found is not None and found.is_ours():
            return found
        with _opening:
            found = self._connection
            return found if found is not None and found.is_ours() else self._connect()

    def _connect(self) -> Connection:
        found = connect(self._path, 0)
        is_other_run = found.client.run_id != self._run
        if is_other_run and self._objects:
            raise Error("this data set of explicit objects is of another run: make it again")
        opened = self._open_again(found, is_other_run)
        loaded = None if self._digest is None else self._open_listing(found, opened.number, self._digest)
        self._opened, self._loaded = opened, loaded
        self._listed, self._number = opened.number, (loaded or opened).number
        self._indexes = {}
        if is_other_run:
            self._run, self._first = found.client.run_id, None
        self._connection = found
        return found

    def _open_again(self, found: Connection, is_other_run: bool) -> Opened:
        """In this process: the very data set, or where that has gone another listing of the same place."""
        if not is_other_run:
            opened = Opened(found.client)
            try:
                with_room(found, lambda: found.client.open_dataset(dataset=self._listed, into=opened))
                return opened
            except ValueError as e:
                if self._objects:
                    raise Error(
                        "this copy of a data set of explicit objects was opened too late: keep the one that was "
                        "copied, or make it again"
                    ) from e
        return self._open(found, self._uris)[0]

    @staticmethod
    def _open_listing(connection: Connection, listed: int, digest: str) -> Opened:
        opened = Opened(connection.client)
        with_room(connection, lambda: connection.client.open_listing(listed, digest, opened))
        return opened

    def index(self) -> Index:
        """The listing. Waits until it is done, and logs the progress."""
        return self._read()[1]

    def _read(self) -> tuple[int, Index]:
        """The id of what is read, and its listing."""
        connection = self.connection()
        number = self._number
        index = self._indexes.get(number)
        if index is None:
            self._wait(connection, number)
            index = self._indexes.setdefault(number, connection.client.index(number))
        if self._digest is None and self._checked is not connection:
            self._check_first(index.digest)
            self._checked = connection
        return number, index

    def _check_first(self, digest: str) -> None:
        """The process that passed the data set on may have closed it before it was opened here."""
        if self._first not in (None, digest):
            raise ChangedError(
                f"{self}: the listing of this copy has gone, and the objects have changed: keep the data set that was "
                "copied"
            )
        self._first = digest

    def is_samples(self) -> bool:
        """Whether the entries are samples of tar shards. Waits for the listing."""
        if self._samples is None:
            self._samples = self.index().shards > 0
        return self._samples

    def _wait(self, connection: Connection, number: int) -> None:
        progress = ListingProgress(str(self))
        try:
            connection.wait_listed(number, progress.update)
        finally:
            progress.close()

    def use_listing(self, digest: str) -> bool:
        """Reads the listing of this digest from now on, out of the cache or the saved index.

        False when it is the one that is read already. ChangedError, with the differences, when it is gone.
        """
        connection = self.connection()
        known = self._indexes.get(self._number)
        if digest == self._digest or (known is not None and known.digest == digest):
            return False
        loaded = self._open_listing(connection, self._listed, digest)
        number = loaded.number
        self._wait(connection, number)
        changed = number != self._number
        self._loaded, self._number = loaded, number
        self._indexes = {each: index for each, index in self._indexes.items() if each == number}
        self._digest = None if number == self._listed else digest
        return changed

    @property
    def number(self) -> int:
        """The supervisor's id of what is read."""
        return self._number

    def open_lane(
        self, window: int | None, batch: int, key: str | None, writable: bool, alone: bool = False, ahead: int = 0
    ) -> tuple[Lane, Loop | None]:
        """A lane in this process, and the loop that was put under key, if one was. window None: the configuration's.

        Never under two batches (one that the loop holds, one on its way), nor under `ahead`, which the order needs.
        alone: nothing of it is composed.
        """
        number, index = self._read()
        connection = self.connection()
        connection.client.close_unused()
        connection.wait_ready()
        least = min(max(2 * batch, ahead), MAX_WINDOW)
        lane, loop = connection.client.open_lane(
            number, index, window or 0, least, key, writable=writable, alone=alone, parent=_worker.parent()
        )
        return lane, None if loop is None else Loop(*loop)

    def put_loop(self, key: str, loop: Loop) -> None:
        client = self.connection().client
        client.close_unused()
        client.put_loop(key, loop)

    def count_batches(self, descriptor: int) -> int:
        """How much memory the batches of this node's loaders may take. A descriptor of a batch arena (else -1): it is
        counted from now on."""
        return self.connection().client.batches(descriptor)

    def agree(self, world: int, by_number: bool = False) -> None:
        """Stops the job where the ranks list different objects. by_number: what is read of them is each rank's own
        choice, and so is a list of objects: only those who have the same one compare it."""
        index = self.index()
        # A loaded listing is compared in a round of its own: not every rank may have asked for the present one before.
        which = self._listed_as if by_number else ""
        which += "" if self._digest is None else f"@{self._digest}"
        _agree.agree(str(self), world, index.digest, len(index), which)

    def agree_on_order(self, loop: Loop, shuffle: Shuffle, tail: str, progress: Progress) -> None:
        """Stops the job where the ranks read in different orders, or begin at different samples what each begins
        first, or first after a state was loaded. To be called as an iteration begins; in workers it does nothing."""
        if loop.world <= 1 or _torch.worker() is not None:
            return
        order = self._order(loop, shuffle, tail)
        _agree.agree_on_order(str(self), loop.world, order, (loop.epoch, loop.cursor) if progress.is_chosen else None)
        progress.is_chosen = False

    def begin(self, loop: Loop, shuffle: Shuffle, tail: str) -> str | None:
        """See _agree.begin, and the same of _agree.warn_if_alone for what it returns."""
        if loop.world <= 1 or _torch.worker() is not None:
            return None
        return _agree.begin(str(self), loop.world, self._order(loop, shuffle, tail), loop.epoch)

    def _order(self, loop: Loop, shuffle: Shuffle, tail: str) -> str:
        block, mix = self.blocks(loop, shuffle)
        how = f"shuffle='block' ({block:,} objects a block, {mix:,} mixed)" if block else f"shuffle={shuffle.on}"
        return f"{how}, seed={loop.seed}, batch_size={loop.batch}, tail={tail!r}"

    def blocks(self, loop: Loop, shuffle: Shuffle) -> tuple[int, int]:
        """(objects of a block, blocks of a mix), those of a loaded state first; (0, 0), without a look at the listing,
        where it is not shuffled in blocks."""
        if loop.block:
            return loop.block, loop.mix
        return shuffle.blocks(self.index()) if shuffle.in_blocks else (0, 0)

    def plan(self, loop: Loop, shuffle: Shuffle, tail: str) -> Plan:
        self.agree(loop.world)
        index = self.index()
        block, mix = self.blocks(loop, shuffle)
        return Plan(
            len(index),
            index.digest,
            seed=loop.seed,
            epoch=loop.epoch,
            cursor=loop.cursor,
            rank=loop.rank,
            world=loop.world,
            batch=loop.batch,
            shuffle=shuffle.on,
            tail=tail,
            block=block,
            mix=mix,
        )

    def plan_of_numbers(self) -> Plan:
        """One in which a position is the object's number: for objects that are named rather than planned."""
        return self.plan(Loop(0, 0, 0, 1, 1, 0), Shuffle(False), "short")


def open_objects(connection: Connection, uris: Iterable[str], format: str = "") -> tuple[Opened, int, int]:
    """Opens an explicit list, handed over as a file of lines."""
    client, opened = connection.client, Opened(connection.client)
    fd = write_names(uris)
    try:
        answer = with_room(connection, lambda: client.open_dataset(names_fd=fd, format=format, into=opened))
    finally:
        os.close(fd)
    return opened, *answer[1:]


def write_names(uris: Iterable[str]) -> int:
    """The descriptor of a file in memory with these lines."""
    fd = os.memfd_create("millrace-names", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            for uri in uris:
                if "\n" in uri:
                    raise ValueError(f"{uri!r}: a list of objects cannot hold a name with a newline")
                file.write(f"{uri}\n")
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    except BaseException:
        os.close(fd)
        raise
