"""Calls every method of every object of millrace._ring in the middle of every wait of the others; test_reentry_table.py
runs it.

    python -m tests.python.reentry_program SOCKET FOLDER OBJECTS_URI LARGE_FILE

A process of its own for each wait and each way to come in between, so that a crash or a hang is seen and named. Each
line that it prints is a JSON list: the wait, how it was entered, the object's type, the member, whether it was the
object whose method waits, what came of it. Waits are made by stopping the processes that are waited for, and last until
every member has been called.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace._connection import write_names
from millrace._ring import BatchArena, Client, Index, Lane, Lease, Meter, Opened, Plan, RangeReader, Writer
from tests.serve import workers

DEADLINE_S = 60.0  # of one process: what takes longer hangs
BLOCK = 1 << 20
SHARERS = 6  # of the memory for checkpoints: a writer gets two parts
LOOP = (1, 2, 3, 4, 5, 0, 0, 0)
DEALLOC = "(its end)"
BUFFER = "(buffer)"

Call = Callable[[Any, "Scene"], Any]


def _dlpack(lease: Any, scene: Scene) -> None:
    scene.spare["capsule"] = lease.__dlpack__(max_version=(1, 0))


def _take(arena: Any, scene: Scene) -> None:
    batch: Any = scene.other_arena.reserve(1, 100)
    scene.other_arena.take(1, *batch.publish())


def _publish(_: Any, scene: Scene) -> None:
    batch: Any = scene.other_arena.reserve(0, 100)
    batch.publish()


def _close_config(client: Any, _: Scene) -> None:
    os.close(client.config())


def _no_index(index: Any, _: Scene) -> None:
    with contextlib.suppress(OSError):
        type(index)(-1)


def _dealloc(kind: str) -> Call:
    def call(_: Any, scene: Scene) -> None:
        del scene.spare[kind]

    return call


# Every member of every type, by its name; the ones that end their object last.
MEMBERS: dict[str, dict[str, Call]] = {
    "Index": {
        "__new__": _no_index,
        "__len__": lambda o, s: len(o),
        "__getitem__": lambda o, s: (o[0], o[-1], o[0:2]),
        "__repr__": lambda o, s: repr(o),
        "digest": lambda o, s: o.digest,
        "find": lambda o, s: o.find(o[0][0]),
        "max_size": lambda o, s: o.max_size,
        "shards": lambda o, s: o.shards,
        "total_bytes": lambda o, s: o.total_bytes,
        DEALLOC: _dealloc("Index"),
    },
    "Plan": {
        "__new__": lambda o, s: type(o)(len(s.index), s.index.digest),
        "cursor_after": lambda o, s: o.cursor_after(0),
        "left_out": lambda o, s: o.left_out,
        "object": lambda o, s: o.object(0),
        "objects": lambda o, s: o.objects(0),
        "replacement": lambda o, s: o.replacement(0, 0),
        "share": lambda o, s: o.share(0),
        "single_count": lambda o, s: o.single_count(0, 1),
        "steps": lambda o, s: o.steps,
        DEALLOC: _dealloc("Plan"),
    },
    "Lease": {
        "__new__": lambda o, s: type(o)(),
        "__len__": lambda o, s: len(o),
        "__repr__": lambda o, s: repr(o),
        "__reduce__": lambda o, s: o.__reduce__(),
        "_state": lambda o, s: o._state(),
        "__dlpack__": _dlpack,
        "__dlpack_device__": lambda o, s: o.__dlpack_device__(),
        BUFFER: lambda o, s: bytes(memoryview(o)),
        "copy": lambda o, s: o.copy(),
        "crc32c": lambda o, s: o.crc32c,
        "encoding": lambda o, s: o.encoding,
        "generation": lambda o, s: o.generation,
        "index": lambda o, s: o.index,
        "name": lambda o, s: o.name,
        "position": lambda o, s: o.position,
        "_cookie": lambda o, s: o._cookie,
        "size": lambda o, s: o.size,
        "url": lambda o, s: o.url,
        "release": lambda o, s: o.release(),
        DEALLOC: _dealloc("Lease"),
    },
    "capsule": {DEALLOC: _dealloc("capsule")},
    "BatchArena": {
        "__new__": lambda o, s: type(o)(1, 2, 1 << 20),
        "attach": lambda o, s: type(o).attach(os.dup(o.fileno())),
        "beside": lambda o, s: o.beside(0, 1),
        "counts": lambda o, s: o.counts(),
        "extents": lambda o, s: o.extents(),
        "fileno": lambda o, s: o.fileno(),
        "recover": lambda o, s: s.other_arena.recover(),
        "reserve": lambda o, s: o.reserve(0, 100),
        "take": _take,
        "viewed": lambda o, s: o.viewed(0),
        DEALLOC: _dealloc("BatchArena"),
    },
    "Meter": {
        "__new__": lambda o, s: type(o)(1),
        "ask": lambda o, s: o.ask(),
        "begin": lambda o, s: o.begin(0, 1, 1, (0, 0, 0), None),
        "fileno": lambda o, s: o.fileno(),
        "report": lambda o, s: o.report((0, 0, 0), None),
        "rest": lambda o, s: o.rest(),
        "take": lambda o, s: o.take(1, 2, 0, 0, (0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)),
        DEALLOC: _dealloc("Meter"),
    },
    "Batch": {
        "__new__": lambda o, s: type(o)(),
        BUFFER: lambda o, s: bytes(memoryview(o)),
        "alloc": lambda o, s: o.alloc(100),
        "capsule": lambda o, s: o.capsule(0, 0),
        "lease": lambda o, s: o.lease(0, 0, ("name", "url", 1, 2, 3, 4, False, False)),
        "offset_of": lambda o, s: o.offset_of(0, 1),
        "put": lambda o, s: o.put(b"x" * 100),
        "publish": _publish,
        "withdraw": lambda o, s: o.withdraw(),
        DEALLOC: _dealloc("Batch"),
    },
    "RangeReader": {
        "__new__": lambda o, s: type(o)(),
        "size": lambda o, s: o.size,
        "generation": lambda o, s: o.generation,
        "encoding": lambda o, s: o.encoding,
        "read": lambda o, s: o.read(10, 0),
        "read_into": lambda o, s: o.read_into(bytearray(10), 0),
        "close": lambda o, s: o.close(),
        DEALLOC: _dealloc("RangeReader"),
    },
    "Lane": {
        "__new__": lambda o, s: type(o)(),
        "window": lambda o, s: o.window,
        "waited_ns": lambda o, s: o.waited_ns,
        "count": lambda o, s: o.count("skipped"),
        "next_fed": lambda o, s: o.next_fed(),
        "next": lambda o, s: o.next(),
        "feed": lambda o, s: o.feed(0, 0),
        "feed_all": lambda o, s: o.feed_all([0]),
        "start": lambda o, s: o.start(s.plan),
        "close": lambda o, s: o.close(),
        DEALLOC: _dealloc("Lane"),
    },
    "Writer": {
        "__new__": lambda o, s: type(o)(),
        "sealed": lambda o, s: o.sealed,
        "aborted": lambda o, s: o.aborted,
        "bytes": lambda o, s: o.bytes,
        "drain_s": lambda o, s: o.drain_s,
        "memory": lambda o, s: o.memory,
        "stored": lambda o, s: o.stored(),
        "write": lambda o, s: o.write(b"more"),
        "outcome": lambda o, s: o.outcome(),
        "seal": lambda o, s: o.seal(),
        "abort": lambda o, s: o.abort(),
        "close": lambda o, s: o.close(),
        DEALLOC: _dealloc("Writer"),
    },
    "Opened": {
        "__new__": lambda o, s: type(o)(s.client),
        "number": lambda o, s: o.number,
        "close": lambda o, s: o.close(),
        DEALLOC: _dealloc("Opened"),
    },
    "Client": {
        "__new__": lambda o, s: type(o)(s.socket),
        "pid": lambda o, s: o.pid,
        "run_id": lambda o, s: o.run_id,
        "check": lambda o, s: o.check(),
        "batches": lambda o, s: o.batches(),
        "meter": lambda o, s: o.meter(s.idle["Meter"].fileno()),
        "prepare": lambda o, s: o.prepare(),
        "config": _close_config,
        "stat": lambda o, s: o.stat(),
        "ready": lambda o, s: o.ready(),
        "put_loop": lambda o, s: o.put_loop("key", LOOP),
        "open_dataset": lambda o, s: o.open_dataset(uris=(s.uri,)),
        "open_listing": lambda o, s: o.open_listing(s.dataset, s.index.digest),
        "dataset_listed": lambda o, s: o.dataset_listed(s.dataset),
        "index": lambda o, s: o.index(s.dataset),
        "block_bytes": lambda o, s: o.block_bytes(s.ranged),
        "open_ranged": lambda o, s: o.close_dataset(o.open_ranged(s.names_fd, BLOCK)),
        "close_dataset": lambda o, s: o.close_dataset(o.open_ranged(s.names_fd, BLOCK)),
        "close_unused": lambda o, s: (s.Opened(), o.close_unused()),
        "range_reader": lambda o, s: o.range_reader(s.ranged, s.ranged_index, 0, "large"),
        "open_lane": lambda o, s: o.open_lane(s.dataset, s.index, 4, 2),
        "open_writer": lambda o, s: o.open_writer(s.name("opened"), False, SHARERS),
        "close": lambda o, s: o.close(),
        DEALLOC: _dealloc("Client"),
    },
}


class Scene:
    """One process's connection, and of each type: the object whose method waits, one beside it, one to drop."""

    socket: str
    uri: str
    names_fd: int
    dataset: int
    ranged: int
    index: Index
    ranged_index: Index
    plan: Plan
    other_arena: BatchArena
    spare: dict[str, Any]
    client: Client

    def __init__(self, socket: str, folder: Path, uri: str, large: Path, wait: Wait) -> None:
        self.socket, self.folder, self.uri = socket, folder, uri
        self.saved = ""
        client = self.client = Client(socket)
        self.names_fd = write_names([f"file://{large}"])
        opened = client.open_dataset(uris=(uri,))
        ranged = client.open_ranged(self.names_fd, BLOCK)
        assert opened is not None and ranged is not None
        self.dataset, self.ranged = opened[0], ranged
        for number in (self.dataset, self.ranged):
            while not client.dataset_listed(number)[0]:
                time.sleep(0.001)
        while not client.ready():
            time.sleep(0.001)
        self.index = client.index(self.dataset)
        self.ranged_index = client.index(self.ranged)
        self.plan = Plan(len(self.index), self.index.digest)
        self.large = large.read_bytes()
        self.kept = self.Lane()  # so that nobody closes the connection
        self.own: dict[str, Any] = {wait.kind: client if wait.kind == "Client" else getattr(self, wait.kind)()}
        self.saved_by_own = self.saved
        lane = self.Lane()
        lane.feed(0, 0)
        lane.feed(1, 1)
        self.arena, self.other_arena = BatchArena(1, 64, 1 << 20), BatchArena(2, 64, 1 << 20)
        self.idle: dict[str, Any] = {
            "BatchArena": self.arena,
            "Meter": Meter(1),
            "Batch": self.arena.reserve(0, 100),
            "Client": None if wait.kind == "Client" else client,
            "Index": self.index,
            "Plan": self.plan,
            "Lease": lane.next(),
            "capsule": None,
            "RangeReader": self.RangeReader(),
            "Lane": lane,
            "Writer": self.Writer(),
            "Opened": self.Opened(),
        }
        spare = lane.next()
        assert isinstance(spare, Lease)
        self.spare = {
            "BatchArena": BatchArena(1, 2, 1 << 20),
            "Meter": Meter(1),
            "Batch": self.arena.reserve(0, 100),
            "Client": Client(socket),
            "Index": client.index(self.dataset),
            "Plan": Plan(len(self.index), self.index.digest),
            "Lease": spare,
            "capsule": spare.__dlpack__(max_version=(1, 0)),
            "RangeReader": self.RangeReader(),
            "Lane": self.Lane(),
            "Writer": self.Writer(),
            "Opened": self.Opened(),
        }
        while not all(writer["adopted"] for writer in json.loads(client.stat())["checkpoint"]["writers"]):
            time.sleep(0.001)  # a seal would wait for a worker that is stopped later

    def name(self, name: str) -> str:
        return f"file://{self.folder}/{name}-{os.getpid()}"

    def Lane(self) -> Lane:
        return self.client.open_lane(self.dataset, self.index, 4, 2)[0]

    def RangeReader(self) -> RangeReader:
        """It has its lane, and its first block."""
        reader = self.client.range_reader(self.ranged, self.ranged_index, 0, "large")
        assert reader.read(10, 0) == self.large[:10]
        return reader

    def Opened(self) -> Opened:
        opened = Opened(self.client)
        assert self.client.open_ranged(self.names_fd, BLOCK, opened) == opened.number
        return opened

    def Writer(self) -> Writer:
        self.saved = self.name(f"saved-{time.monotonic_ns()}")
        while isinstance(writer := self.client.open_writer(self.saved, False, SHARERS), str):
            time.sleep(0.001)  # the first one of the supervisor's: its memory is being reserved
        return writer


# ---- the waits ----


@dataclass(frozen=True)
class Wait:
    """A method that waits: for whom, how it begins, and whether it ended as if no one had come in between."""

    kind: str
    name: str
    stopped: str  # "fetch", "write": the workers; "serve": the supervisor
    begin: Callable[[Scene, Any], Any]
    is_right: Callable[[Scene, Any, Any], bool]
    handlers: bool = False  # signal handlers run in the middle of it
    prepare: Callable[[Any], None] = lambda target: None  # while nobody is stopped yet


def _serve_a_part(writer: Any) -> None:
    """A write worker has the writer from here on: its seal waits for nobody."""
    writer.write(bytes(writer.memory[1]))
    while not writer.stored():
        time.sleep(0.001)


def _begin_next(scene: Scene, lane: Any) -> Any:
    lane.start(scene.plan)
    return lane.next()


def _begin_next_fed(scene: Scene, lane: Any) -> Any:
    lane.feed(0, 0)
    return lane.next_fed()


def _read_into(scene: Scene, reader: Any) -> Any:
    buffer = bytearray(BLOCK)
    assert reader.read_into(buffer, FAR) == BLOCK
    return buffer


def _are_all(scene: Scene, lane: Any, first: Any) -> bool:
    """The samples that were fed, and no more."""
    leases = [first]
    while (lease := lane.next()) is not None:
        leases.append(lease)
    names = [lease.name for lease in leases]
    wanted = [scene.index[i][0] for i in range(len(leases))]
    return names == wanted and [bytes(lease) for lease in leases] == [Path(name).read_bytes() for name in names]


def _is_saved(scene: Scene, writer: Any, count: Any) -> bool:
    """All that was written, and only that."""
    saved = scene.saved_by_own
    writer.seal()
    while (outcome := writer.outcome(1000)) is None:
        pass
    writer.close()
    return bool(outcome[0]) and Path(saved.removeprefix("file://")).read_bytes() == bytes(count)


FAR = 9 * BLOCK  # no reader has asked for it
BYTES = bytes(12 << 20)  # more than the parts of a writer hold
WAITS = [
    Wait("Lane", "next", "fetch", _begin_next, _are_all, handlers=True),
    Wait("Lane", "next_fed", "fetch", _begin_next_fed, _are_all, handlers=True),
    Wait(
        "RangeReader",
        "read",
        "fetch",
        lambda s, o: o.read(BLOCK, FAR),
        lambda s, o, got: got == s.large[FAR : FAR + BLOCK],
        handlers=True,
    ),
    Wait("RangeReader", "read_into", "fetch", _read_into, lambda s, o, got: got == s.large[FAR : FAR + BLOCK], True),
    Wait("Writer", "write", "write", lambda s, o: o.write(BYTES), _is_saved, handlers=True),
    Wait(
        "Writer",
        "outcome",
        "write",
        lambda s, o: (o.seal(), o.outcome(30_000))[1],
        lambda s, o, got: got[0] is True,
        prepare=_serve_a_part,
    ),
    Wait("Writer", "close", "serve", lambda s, o: o.close(), lambda s, o, got: o.memory == (0, 0)),
    Wait("Lane", "close", "serve", lambda s, o: o.close(), lambda s, o, got: got is None),
    Wait("RangeReader", "close", "serve", lambda s, o: o.close(), lambda s, o, got: got is None),
    Wait("Client", "stat", "serve", lambda s, o: o.stat(), lambda s, o, got: "workers" in json.loads(got)),
    Wait(
        "Client",
        "open_lane",
        "serve",
        lambda s, o: o.open_lane(s.dataset, s.index, 4, 2),
        lambda s, o, got: got[0].window == 4,
    ),
    Wait("Client", "open_writer", "serve", lambda s, o: s.Writer(), lambda s, o, got: got.bytes == 0),
]
HANDLERS = ("handler", "finaliser", "handler's child")
THREADS = ("thread", "thread's child")


def entries(wait: Wait) -> Iterator[str]:
    """The ways to come in between. "thread, close": alone, since what waits for its turn beside it would come after."""
    if wait.handlers:
        yield from HANDLERS
    yield from THREADS
    if wait.kind == "RangeReader":
        yield "thread, close"


# ---- one wait in one process ----

POLL, FUTEX = 7, 202  # system calls of x86-64


def blocked_in(thread: int) -> tuple[int, int] | None:
    """The number of the system call that the thread is in, and its second argument; None while it runs."""
    words = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    return (int(words[0]), int(words[2], 16)) if len(words) > 3 else None


def in_wait(thread: int) -> bool:
    """In the extension: a futex that processes share (the interpreter's locks are private), or poll()."""
    blocked = blocked_in(thread)
    return blocked is not None and (blocked == (FUTEX, 0) or blocked[0] == POLL)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def report(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def outcome_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "works"


class Case:
    def __init__(self, scene: Scene, wait: Wait, entry: str) -> None:
        self.scene, self.wait, self.entry = scene, wait, entry
        self.done = threading.Event()
        self.in_child = False

    def members(self) -> Iterator[tuple[str, str, bool, Callable[[], Any]]]:
        for own, objects in ((True, self.scene.own), (False, self.scene.idle)):
            for kind, members in MEMBERS.items():
                if kind not in objects or (kind == "Client" and objects[kind] is None):
                    continue
                for name, call in members.items():
                    if name == "__new__" and (own or (kind == "Client" and self.wait.stopped == "serve")):
                        continue  # it would wait for the supervisor, on a connection of its own
                    if own and name == DEALLOC:
                        continue
                    alone = own and kind == "RangeReader" and name == "close" and self.entry.startswith("thread")
                    if self.entry != "thread's child" and alone != (self.entry == "thread, close"):
                        continue
                    yield kind, name, own, functools.partial(call, objects[kind], self.scene)

    def tell(self, kind: str, name: str, own: bool, outcome: str) -> None:
        report(self.wait.kind, self.wait.name, self.entry, kind, name, own, outcome)

    def call_all(self, through: Callable[[Callable[[], Any]], str]) -> None:
        for kind, name, own, call in self.members():
            self.tell(kind, name, own, "hangs")  # replaced by the next line, or crashes
            self.tell(kind, name, own, through(call))

    # in the middle of the waiting method, in its own thread

    def handler(self, *_: Any) -> None:
        if self.entry == "finaliser":
            self.call_all(by_finaliser)
        elif self.entry == "handler":
            self.call_all(outcome_of)
        elif os.fork() == 0:
            self.in_child = True
            self.call_all(outcome_of)
            return  # and so back into the method
        else:
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        self.done.set()

    # beside it

    def beside(self, main: int, pids: list[int]) -> None:
        try:
            while not in_wait(main):
                time.sleep(0.001)
            if self.entry in HANDLERS:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                self.done.wait()
                goes_on(pids)
            elif self.entry == "thread's child":
                child = os.fork()
                if child == 0:
                    self.call_all(outcome_of)
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                goes_on(pids)
            else:
                self.in_threads(pids)
        finally:
            goes_on(pids)

    def in_threads(self, pids: list[int]) -> None:
        """Each member in a thread of its own: what has to wait for its turn gets it after the wait."""
        waiting = []
        for kind, name, own, call in self.members():
            self.tell(kind, name, own, "hangs")
            outcomes: list[str] = []
            thread = threading.Thread(target=lambda outcomes=outcomes, call=call: outcomes.append(outcome_of(call)))
            thread.start()
            if is_locked_out(thread):
                waiting.append((kind, name, own, thread, outcomes))
            else:
                self.tell(kind, name, own, outcomes[0])
        goes_on(pids)
        for kind, name, own, thread, outcomes in waiting:
            thread.join()
            self.tell(kind, name, own, "waits its turn" if outcomes[0] == "works" else f"waits, {outcomes[0]}")


def is_locked_out(thread: threading.Thread) -> bool:
    """False: it has ended. True: it waits for a lock, the same whenever one looks."""
    seen = 0
    while seen < 25:
        thread.join(0.001)
        if not thread.is_alive():
            return False
        try:
            blocked = blocked_in(thread.native_id or 0)
        except OSError:
            continue
        seen = seen + 1 if blocked is not None and blocked[0] == FUTEX and blocked[1] != 0 else 0
    return True


def by_finaliser(call: Callable[[], Any]) -> str:
    """In a finaliser that the collector runs."""

    class Cycle:
        pass

    outcomes: list[str] = []
    cycle = Cycle()
    cycle.itself = cycle  # type: ignore[attr-defined]
    weakref.finalize(cycle, lambda: outcomes.append(outcome_of(call)))
    del cycle
    gc.collect(0)
    return outcomes[0]


def goes_on(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def run(wait: Wait, entry: str, arguments: tuple[str, Path, str, Path], supervisor: int) -> None:
    gc.disable()
    scene = Scene(*arguments, wait)
    case = Case(scene, wait, entry)
    target = scene.own[wait.kind]
    signal.signal(signal.SIGUSR1, case.handler)
    wait.prepare(target)
    pids = [supervisor] if wait.stopped == "serve" else workers(supervisor, wait.stopped)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while any(state_of(pid) != "T" for pid in pids):
        time.sleep(0.001)
    beside = threading.Thread(target=case.beside, args=(threading.get_native_id(), pids))
    beside.start()
    try:
        result = wait.begin(scene, target)
    except Exception as error:
        assert case.in_child or entry == "thread, close", repr(error)
        result = error
    if case.in_child:  # the method itself, where it goes on in the child
        outcome = type(result).__name__ if isinstance(result, Exception) else f"returns {result!r:.40}"
        report(wait.kind, wait.name, entry, wait.kind, "(goes on)", True, outcome)
        os._exit(0)
    beside.join()
    assert wait.is_right(scene, target, result), result
    scene.kept.close()
    scene.own.clear()  # and the ends of them all
    scene.idle.clear()
    scene.spare.clear()
    del target, result, scene.client
    gc.collect()


def in_a_process(wait: Wait, entry: str, arguments: tuple[str, Path, str, Path], supervisor: int) -> str:
    """ "" or how it ended."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        status = 1
        try:
            run(wait, entry, arguments, supervisor)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    deadline = time.monotonic() + DEADLINE_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has forked, and what hangs there
    code = os.waitstatus_to_exitcode(ended[1])
    return "" if code == 0 else f"ended with {code}"


def main() -> None:
    socket, folder, uri, large = sys.argv[1:5]
    only = sys.argv[5:]
    arguments = (socket, Path(folder), uri, Path(large))
    client = Client(socket)  # keeps the data set open, and so its listing
    client.open_dataset(uris=(uri,))
    for wait in WAITS:
        for entry in entries(wait):
            if only and f"{wait.kind}.{wait.name}" not in only and entry not in only:
                continue
            report(wait.kind, wait.name, entry, "", "", True, "begins")
            ended = in_a_process(wait, entry, arguments, client.pid)
            goes_on([client.pid, *workers(client.pid, "fetch"), *workers(client.pid, "write")])
            report(wait.kind, wait.name, entry, "", "", True, ended or "ends")


if __name__ == "__main__":
    main()
