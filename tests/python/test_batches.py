"""How batches come from DataLoader workers: packing by itself, transport() over torch's loader, millrace.DataLoader."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import millrace
from millrace import _batches, _packing, _ring, _torch
from millrace._item import Item
from millrace._ring import Client
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, nested, pair
from tests.serve import DEADLINE_S, alive, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
BATCH, BATCHES = 4, 10
Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    image: Any
    label: Any


class Numbers(Dataset[Any]):
    """Sample i: an image of i's, a vector, a number, a name, bytes."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, i: int) -> Any:
        vector = numpy.arange(10, dtype=numpy.float32) + i
        return {
            "image": torch.full((3, 32, 32), i, dtype=torch.uint8),
            "rest": (vector, i, f"n{i}", b"%03d" % i * 2000),
        }


def check(batches: list[Any]) -> None:
    assert len(batches) == BATCHES
    for number, batch in enumerate(batches):
        ids = torch.arange(number * BATCH, (number + 1) * BATCH)
        vector, label, names, data = batch["rest"]
        assert torch.equal(batch["image"], ids.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32))
        assert torch.equal(vector, ids.float().view(-1, 1) + torch.arange(10)) and torch.equal(label, ids)
        assert list(names) == [f"n{i}" for i in ids] and list(data) == [b"%03d" % i * 2000 for i in ids]


def loader(**more: Any) -> Any:
    return millrace.transport(DataLoader(Numbers(), **{"batch_size": BATCH, "num_workers": 2, **more}))


def counts(made: Any) -> dict[str, Any]:
    found = made._millrace_arenas.counts()
    assert found is not None
    return dict(found)


# ---- packing, in one process that plays both ends ----


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> _batches.Arena:
    """Of two workers with four slots; this process is worker 1, and the trainer."""
    monkeypatch.setattr(_torch, "worker", lambda: (1, 2))
    return _batches.Arena(2, 1, 64 << 20)


def sender(arena: _batches.Arena, collate: Callable[[Any], Any] = keep) -> _batches.Sender:
    made = _batches.Sender(collate)
    made.arena = arena
    return made


def sent(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))


def through(arena: _batches.Arena, batch: Any) -> Any:
    shipped = sender(arena)(batch)
    assert isinstance(shipped, _batches.Shipped)
    return sent(shipped)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_each_type(arena: _batches.Arena, dtype: torch.dtype) -> None:
    for shape in ((), (1,), (7,), (3, 5, 2), (0,), (2, 0, 3)):
        one = torch.randint(0, 200, (*shape, dtype.itemsize), dtype=torch.uint8)
        one = (one % 2 if dtype is torch.bool else one).view(dtype).squeeze(-1)
        got = through(arena, [one])[0]
        assert got.dtype is dtype and got.shape == one.shape and got.stride() == one.stride()
        if got.numel():
            assert torch.equal(got.reshape(-1).view(torch.uint8), one.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", ["?", "u1", "<i8", ">i4", "f2", "c16", "M8[s]", "S7", "U3", "i4,f8"])
def test_an_array_of_each_type(arena: _batches.Arena, dtype: str) -> None:
    for shape in ((), (5,), (3, 4), (0, 2)):
        one = numpy.zeros(shape, dtype)
        if one.size and dtype != "i4,f8":
            one[...] = numpy.ones(shape).astype(dtype)
        got = through(arena, [one, torch.zeros(1)])[0]
        assert got.dtype == one.dtype and got.shape == one.shape and numpy.array_equal(got, one)
        got[...] = numpy.zeros(1, dtype)  # writable


def test_each_nesting(arena: _batches.Arena) -> None:
    one, array, item = torch.arange(6.0).view(2, 3), numpy.arange(4), Item(b"i" * 5000, "name", "gzip")
    batch = {
        "list": [one, (array, item)],
        "named": Point(one + 1, array + 1),
        "record": Record(one + 2, {"deep": [array + 2]}),
        "ordered": OrderedDict(a=one + 3),
        "bytes": [b"b" * 9000, b"short", "text", 7, None],
        "again": one,
    }
    got = through(arena, batch)
    assert torch.equal(got["list"][0], one) and numpy.array_equal(got["list"][1][0], array)
    assert got["list"][1][1] == item and (got["list"][1][1].name, got["list"][1][1].encoding) == ("name", "gzip")
    assert type(got["named"]) is Point and torch.equal(got["named"].x, one + 1) and list(got["named"].y) == [1, 2, 3, 4]
    assert type(got["record"]) is Record and torch.equal(got["record"].image, one + 2)
    assert list(got["record"].label["deep"][0]) == [2, 3, 4, 5]
    assert type(got["ordered"]) is OrderedDict and torch.equal(got["ordered"]["a"], one + 3)
    assert got["bytes"] == batch["bytes"] and got["again"] is got["list"][0]


def test_strides(arena: _batches.Arena) -> None:
    image = torch.arange(120.0).view(2, 3, 4, 5)
    for one in (image.to(memory_format=torch.channels_last), image.transpose(1, 2), image[:, ::2]):
        got = through(arena, [one])[0]
        assert torch.equal(got, one)
    last = through(arena, [image.to(memory_format=torch.channels_last)])[0]
    assert last.is_contiguous(memory_format=torch.channels_last)
    fortran = through(arena, [numpy.asfortranarray(numpy.ones((3, 4)))])[0]
    assert fortran.flags.f_contiguous
    # Expanded from one number: it stays small, and goes torch's way.
    expanded = sent(sender(arena)([torch.zeros(1).expand(10_000_000), torch.ones(2000)]))
    assert expanded[0].shape == (10_000_000,) and expanded[0].untyped_storage().nbytes() == 4
    broadcast = sent(sender(arena)([numpy.broadcast_to(numpy.ones(1), (1000, 1000)), torch.ones(2000)]))
    assert broadcast[0].shape == (1000, 1000)


def test_what_is_not_plain_goes_as_torch_sends_it(arena: _batches.Arena) -> None:
    leaf = torch.nn.Parameter(torch.ones(3))
    sparse, conjugate = torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.complex64).conj()
    objects = numpy.array([None, "x"], dtype=object)
    got = through(arena, [leaf, sparse, conjugate, objects, torch.ones(2)])
    assert type(got[0]) is torch.nn.Parameter and got[0].requires_grad and got[1].is_sparse
    assert torch.equal(got[2], conjugate) and list(got[3]) == [None, "x"]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    got = through(arena, [nested, torch.ones(2)])
    assert got[0].is_nested and torch.equal(got[0].unbind()[1], torch.ones(3))
    shipped = sender(arena)([leaf, torch.ones(2)])
    assert shipped._arrives is _batches.open_shipped  # torch's descriptors are the worker's: opened as it arrives
    nothing = sender(arena)(["text", 7, b"short"])
    assert isinstance(nothing, _batches.Pickled) and sent(nothing) == ["text", 7, b"short"]


def test_memory_is_used_again_only_when_the_last_view_is_gone(arena: _batches.Arena) -> None:
    for number in range(20):
        got = through(arena, [torch.full((1000,), number), numpy.full(10, number)])
        kept = got[0].view(10, 100)[3] if number % 2 else got[1][2:]
        del got
        other = [through(arena, [torch.full((1000,), -1)]) for _ in range(2)]
        assert all(int(one) == number for one in kept)
        del kept, other
    assert counts_of(arena)["copies"] == 0
    cycle: list[Any] = through(arena, [torch.ones(1000)])
    cycle.append(cycle)
    before = counts_of(arena)
    del cycle
    gc.collect()
    for _ in range(4):  # the slot is back: nothing waits
        through(arena, [torch.ones(1000)])
    assert counts_of(arena)["waited_s"] == before["waited_s"]


def counts_of(arena: _batches.Arena) -> dict[str, Any]:
    return arena.ring.counts()


def test_who_keeps_every_batch_gets_copies(arena: _batches.Arena) -> None:
    kept = [through(arena, [torch.full((1000,), number)])[0] for number in range(30)]
    assert [int(one[0]) for one in kept] == list(range(30))
    assert counts_of(arena)["copies"] == 27


def test_a_worker_keeps_what_it_made(arena: _batches.Arena) -> None:
    """A collate function that caches its tensor: the slot is not reserved again under it."""
    cache: list[torch.Tensor] = []

    def collate(samples: list[int]) -> torch.Tensor:
        out = millrace.batch_empty(1000, dtype=torch.int64)
        out.fill_(samples[0])
        if samples[0] < 2:
            cache.append(out)
        return out

    send = sender(arena, collate)
    for number in range(12):
        assert int(sent(send([number]))[5]) == number
    assert [int(one[7]) for one in cache] == [0, 1]
    assert torch.equal(sent(sender(arena)([cache[1]]))[0], cache[1])  # as any other memory


def test_batch_empty_is_the_only_copy(arena: _batches.Arena) -> None:
    seen = []

    def collate(samples: list[Any]) -> Any:
        made = millrace.batch_empty((2, 500)), default_collate(samples)
        seen.append([one.data_ptr() for one in made])
        return made

    shipped = sender(arena, collate)([torch.ones(300)] * 3)
    first, second = sent(shipped)
    assert [first.data_ptr(), second.data_ptr()] == seen[0] and second.shape == (3, 300) and first.shape == (2, 500)
    outside = millrace.batch_empty([3], torch.int16)
    assert outside.shape == (3,) and outside.dtype is torch.int16
    with pytest.raises(RuntimeError, match="negative"):
        millrace.batch_empty((-1,))


def test_what_finds_no_room_goes_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "worker", lambda: (0, 1))
    small = _batches.Arena(1, 1, 1 << 20)
    got = sent(sender(small)([torch.ones(100), torch.full((1 << 20,), 3.0), b"x" * (2 << 20)]))
    assert torch.equal(got[0], torch.ones(100)) and float(got[1][-1]) == 3.0 and got[2] == b"x" * (2 << 20)
    found = counts_of(small)
    assert found["beside"] == 2 and found["memory_bytes"] <= 1 << 20


def test_an_exception_or_a_lost_message_frees_the_slot(arena: _batches.Arena) -> None:
    def fail(samples: Any) -> Any:
        millrace.batch_empty(1000)
        raise RuntimeError("no")

    for _ in range(6):
        with pytest.raises(RuntimeError, match="no"):
            sender(arena, fail)([1])
        with pytest.raises((AttributeError, pickle.PicklingError)):
            sender(arena)([torch.ones(5), lambda: None])
        sender(arena)([torch.ones(1000)])  # made, and never sent
    assert counts_of(arena)["waited_s"] == 0


def test_a_message_of_a_worker_that_has_ended_is_refused(arena: _batches.Arena) -> None:
    message = pickle.dumps(sender(arena)([torch.ones(1000)]))
    arena.ring.recover()
    through(arena, [torch.zeros(1000)])
    with pytest.raises(ValueError, match="a worker that has ended"):
        pickle.loads(message)


def test_a_worker_that_waits_for_memory(arena: _batches.Arena) -> None:
    """It goes on when the loop gives a slot back, hears signals meanwhile, and ends with its parent."""
    held = [arena.ring.reserve(1, 60_000) for _ in range(4)]

    def handler(*_: Any) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # it comes while it waits, sooner or later
        with pytest.raises(InterruptedError):
            arena.ring.reserve(1, 60_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert arena.ring.reserve(1, 1) is None and arena.ring.viewed(1) == 4
    thread = threading.Thread(target=held.pop)
    thread.start()
    assert arena.ring.reserve(1, 60_000) is not None
    thread.join()


def test_views_end_in_any_thread_and_not_in_a_child(arena: _batches.Arena) -> None:
    batch = through(arena, [torch.ones(1000)])
    child = os.fork()
    if child == 0:
        del batch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    others = [through(arena, [torch.zeros(1000)]) for _ in range(3)]
    assert torch.equal(batch[0], torch.ones(1000))
    thread = threading.Thread(target=others.clear)
    thread.start()
    thread.join()
    assert through(arena, [torch.full((5,), 2.0)])[0][0] == 2


def lease_of(data: bytes, name: str = "a/b") -> millrace.Lease:
    return _ring.lease_of(data, (name, f"gs://bucket/{name}", 5, 6, 7, 8, False, False))


def test_a_lease_is_over_the_memory_of_its_batch(arena: _batches.Arena) -> None:
    lease, empty = through(arena, [lease_of(b"x" * 9000), lease_of(b"")])
    assert (lease.name, lease.url, lease.generation, lease.crc32c) == ("a/b", "gs://bucket/a/b", 5, 6)
    assert (lease.index, lease.position, lease.size) == (7, 8, 9000) and bytes(empty) == b""
    view, again = numpy.frombuffer(lease, numpy.uint8), through(arena, [lease])[0]
    del empty
    child = os.fork()
    if child == 0:
        try:
            bytes(lease)
        except ValueError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    others = [through(arena, [torch.zeros(9000)]) for _ in range(6)]  # of four slots
    lease.release()
    del lease
    assert bytes(view) == bytes(again) == b"x" * 9000
    del others, view, again
    gc.collect()
    others = [through(arena, [torch.zeros(9000)]) for _ in range(2)]
    assert len(others) == 2 and counts_of(arena)["copies"] == 5


@pytest.mark.parametrize("room", (True, False))
def test_a_lease_stays_one_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, room: bool) -> None:
    monkeypatch.setattr(_torch, "worker", lambda: (0, 1))
    made = _batches.Arena(1, 1, (64 << 20) if room else (1 << 20))
    data = os.urandom(2 << 20)
    lease = sent(sender(made)([lease_of(data)]))[0]
    assert type(lease) is millrace.Lease and bytes(lease) == data and lease.url == "gs://bucket/a/b"
    assert (made.ring.counts()["beside"] > 0) is not room


@pytest.mark.parametrize(("ranks", "share"), [("", 1), ("1", 1), ("4", 4), ("0", 1), ("many", 1)])
def test_the_share_of_a_rank(monkeypatch: pytest.MonkeyPatch, ranks: str, share: int) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    seen = []

    class Seen(_batches.Arena):
        def __init__(self, workers: int, ahead: int, limit_bytes: int) -> None:
            seen.append(limit_bytes)
            super().__init__(workers, ahead, limit_bytes)

    monkeypatch.setattr(_batches, "Arena", Seen)
    torchs: Any = DataLoader(Numbers(), 4, num_workers=1)
    _batches.Arenas(None, lambda descriptor: 1 << 30).next(torchs)
    _batches.Arenas(1 << 20).next(torchs)  # a number of the user's is for this loader
    assert seen == [(1 << 30) // share, 1 << 20]


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="takes a torch DataLoader, not list"):
        millrace.transport([1])
    with pytest.raises(ValueError, match="batch_bytes"):
        millrace.transport(DataLoader(Numbers()), batch_bytes=-1)


# ---- transport(): torch's loader ----


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly), "forkserver"])
def test_a_torch_loader(method: str) -> None:
    made = loader(multiprocessing_context=method)
    for _ in range(2):
        check(list(made))
    found = counts(made)
    assert found["batches"] == 2 * BATCHES and found["beside"] == 0


def test_a_torch_loader_is_still_one() -> None:
    made = loader()
    assert isinstance(made, DataLoader) and millrace.transport(made) is made and made.collate_fn is default_collate
    again = pickle.loads(pickle.dumps(made))
    check(list(again))
    assert counts(again)["batches"] == BATCHES
    check(list(loader(num_workers=0)))
    off = millrace.transport(DataLoader(Numbers(), batch_size=BATCH, num_workers=1), batch_bytes=0)
    check(list(off))
    assert off._millrace_arenas.counts() is None


def test_pinned() -> None:
    """Without a GPU torch's thread pins nothing, but takes the batches and hands them on."""
    with pytest.warns() if not torch.cuda.is_available() else _nothing():
        check(list(loader(pin_memory=True)))


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


def test_workers_that_live_on_and_iterations_that_end_early() -> None:
    for persistent in (True, False):
        made = loader(persistent_workers=persistent)
        for _ in range(3):
            for number, _batch in enumerate(made):
                if number == 2:
                    break
        check(list(made))


def test_two_iterations_at_once() -> None:
    made = loader()
    first, second = iter(made), iter(made)
    got: tuple[list[Any], list[Any]] = ([], [])
    for one, other in zip(first, second):
        got[0].append(one)
        got[1].append(other)
    check(got[0])
    check(got[1])


def arenas_here() -> set[str]:
    """Descriptors and mappings of batch memory that this process has; torch's own come and go."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:millrace" in str(entry.readlink()):
                found.add(entry.name)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return found | {line.split()[0] for line in maps if "memfd:millrace" in line}


def test_an_epoch_after_another_takes_no_more_memory_or_descriptors() -> None:
    gc.collect()
    without = arenas_here()
    made = loader(num_workers=1)
    check(list(made))
    gc.collect()
    before = counts(made)["memory_bytes"], arenas_here()
    assert len(before[1] - without) == 2
    for _ in range(100):
        for _batch in made:
            pass
    del _batch
    gc.collect()
    assert (counts(made)["memory_bytes"], arenas_here()) == before
    del made
    gc.collect()
    assert arenas_here() <= without


class Keeps:
    """A collate function that keeps the batch that it made last."""

    def __call__(self, samples: Any) -> Any:
        self.last = default_collate(samples)
        return self.last


class Cycle:
    """One that makes a batch which holds itself: its views end when it is collected."""

    def __call__(self, samples: Any) -> Any:
        made: dict[str, Any] = default_collate(samples)
        made["me"] = made
        return made


@pytest.mark.parametrize("collate", [Keeps(), Cycle()])
def test_a_worker_whose_own_views_hold_its_memory_is_not_stuck(collate: Any) -> None:
    check(list(loader(num_workers=1, collate_fn=collate)))
    check(list(loader(collate_fn=collate)))


def test_another_number_of_workers_and_another_loader_of_the_class() -> None:
    made = loader(num_workers=1)
    check(list(made))
    made.num_workers = 2
    check(list(made))
    check(list(type(made)(Numbers(), batch_size=BATCH, num_workers=1)))  # as Lightning does with another sampler


def test_a_forked_child_has_memory_of_its_own() -> None:
    made = loader()
    kept = list(made)
    child = os.fork()
    if child == 0:
        try:
            check(list(made))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check(kept)


class Dying(Numbers):
    """after: a file, without which the worker does not die: torch raises at once, whatever the loop is at."""

    def __init__(self, after: Path | None = None) -> None:
        self.after = after

    def __getitem__(self, i: int) -> Any:
        if i == 13:
            if self.after:
                wait_for(self.after.exists, "the loop has taken nothing")
            self.end()
        return super().__getitem__(i)

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Failing(Dying):
    def end(self) -> None:
        raise LookupError("thirteen")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_dies_or_fails(persistent: bool, tmp_path: Path) -> None:
    for data, error in ((Dying(tmp_path / "dies"), RuntimeError), (Failing(tmp_path / "fails"), LookupError)):
        made = loader(persistent_workers=persistent)
        check(list(made))
        batches: Iterator[Any] = iter(
            millrace.transport(DataLoader(data, batch_size=BATCH, num_workers=2, persistent_workers=persistent))
        )
        kept = [next(batches)]
        assert data.after
        data.after.touch()
        with pytest.raises(error):
            kept.extend(batches)
        assert torch.equal(kept[0]["rest"][1], torch.arange(4))
        check(list(made))


def test_the_memory_of_a_worker_that_died_is_used_again() -> None:
    made = millrace.transport(DataLoader(Dying(), batch_size=BATCH, num_workers=1))
    for _ in range(6):
        with pytest.raises(RuntimeError):
            list(made)
    assert counts(made)["waited_s"] == 0 and counts(made)["copies"] == 0


def all_gone(processes: list[Path]) -> bool:
    return not any(alive(int(process.name)) for process in processes)  # where nobody reaps them they are zombies


def program(seed: int, ready: Any, stacks: Path) -> None:
    """A training that goes on for ever: batches of changing sizes, of which the loop keeps the last few."""
    faulthandler.register(signal.SIGUSR1, file=stacks.open("w"))

    class Endless(Numbers):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, i: int) -> Any:
            return torch.full((1 << (i * 7 + seed) % 17,), i % 100, dtype=torch.uint8)

    made = millrace.transport(DataLoader(Endless(), batch_size=1, num_workers=3, persistent_workers=True))
    kept: list[Any] = []
    for number, batch in enumerate(made):
        assert int(batch[0, -1]) == number % 100
        kept = [*kept[-3:], batch]
        if number == 50:
            ready.send([worker.pid for worker in made._iterator._workers])


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.nightly),
    ],  # docs/testing.md says why
)
def test_the_trainer_is_killed(number: signal.Signals, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its workers end, those that wait for memory too."""
    for seed in range(2):
        ours, theirs = multiprocessing.Pipe(False)
        stacks = tmp_path / f"stacks-{seed}"
        trainer = multiprocessing.get_context("fork").Process(target=program, args=(seed, theirs, stacks))
        trainer.start()
        assert ours.poll(DEADLINE_S)
        workers = [Path(f"/proc/{pid}") for pid in ours.recv()]
        assert trainer.pid is not None
        os.kill(trainer.pid, number)
        trainer.join(DEADLINE_S)
        if trainer.exitcode is None:
            os.kill(trainer.pid, signal.SIGUSR1)
            wait_for(lambda: stacks.stat().st_size > 0, "it shows no stack")  # noqa: B023
            status = Path(f"/proc/{trainer.pid}/status").read_text()  # of it the masks of signals
            trainer.kill()
            trainer.join()
            raise AssertionError(f"it goes on: {stacks.read_text()}\n{status}\n{capfd.readouterr().err}")
        assert trainer.exitcode != 0
        wait_for(functools.partial(all_gone, workers), "a worker lives on")
    capfd.readouterr()


@pytest.mark.random
def test_workers_are_killed_at_any_time() -> None:
    """The loop hears of it, what it has stays as it is, and the next iteration has all of the memory."""
    made = loader(num_workers=2)
    check(list(made))
    for _ in range(8):
        kept: list[Any] = []
        batches = iter(made)
        with contextlib.suppress(RuntimeError):
            kept.append(next(batches))
            os.kill(random.choice(batches._workers).pid, signal.SIGKILL)
            kept.extend(batches)
        for number, batch in enumerate(kept):
            assert int(batch["image"][0, 0, 0, 0]) == number * BATCH
        del kept, batches, batch
        gc.collect()
    check(list(made))
    assert counts(made)["waited_s"] < 60 and counts(made)["memory_bytes"] < 64 << 20


# ---- millrace.DataLoader ----


@pytest.mark.parametrize(("style", "method"), [("iterable", "fork"), ("map", "fork"), ("iterable", "spawn")])
def test_through_a_loader(socket: str, folder: MakeFolder, style: str, method: str) -> None:
    objects = folder(40, 5000)
    kind: Any = millrace.IterableDataset if style == "iterable" else millrace.MapDataset
    made = millrace.DataLoader(
        kind(objects.uri), batch_size=4, num_workers=2, collate_fn=keep, multiprocessing_context=method
    )
    items = [item for batch in made for item in batch]
    assert [(item.name, bytes(item)) for item in items] == list(objects.contents.items())
    found = made.stats()["transport"]
    assert (found["batches"], found["beside"]) == (10, 0) and found["bytes"] >= 200_000
    assert millrace.transport(made) is made


def test_nested_batches_of_a_transform(socket: str, folder: MakeFolder) -> None:
    objects = folder(12, 5000)
    ds = millrace.IterableDataset(objects.uri, transform=pair)
    made = millrace.DataLoader(ds, batch_size=4, num_workers=1, collate_fn=nested)
    got: dict[str, bytes] = {}
    for names, data in made:
        got.update(zip(names, data["data"]))
    assert got == objects.contents and made.stats()["transport"]["batches"] == 3


def test_workers_that_live_on_keep_their_memory_after_a_break(socket: str, folder: MakeFolder) -> None:
    objects = folder(60, 5000)
    ds = millrace.IterableDataset(objects.uri)
    made = millrace.DataLoader(ds, batch_size=4, num_workers=2, collate_fn=keep, persistent_workers=True)
    for _ in range(4):
        for number, _batch in enumerate(made):
            if number == 2:
                break
    before = made.stats()["transport"]["batches"]
    items = [item for batch in made for item in batch]
    assert [(item.name, bytes(item)) for item in items] == list(objects.contents.items())
    assert made.stats()["transport"]["batches"] >= before + 15


def test_a_loader_without_workers_uses_no_memory(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri)
    made = millrace.DataLoader(ds, batch_size=4, collate_fn=keep)
    assert isinstance(next(iter(made))[0], millrace.Lease)
    assert made.stats()["transport"] is None


def test_the_supervisor_counts_them(socket: str, folder: MakeFolder) -> None:
    objects = folder(40, 5000)
    with contextlib.closing(Client(socket, "tool")) as client:

        def seen() -> dict[str, Any]:
            return dict(json.loads(client.stat())["batches"])

        wait_for(lambda: seen()["arenas"] == 0, "the arena of an earlier test's loader is counted")
        made = millrace.DataLoader(millrace.MapDataset(objects.uri), batch_size=4, num_workers=2, collate_fn=keep)
        kept = list(made)
        found = seen()
        assert found["arenas"] == 1 and found["batches"] == 10 and found["bytes"] >= 200_000
        assert found["memory_bytes"] == made.stats()["transport"]["memory_bytes"] > 0
        assert found["limit_bytes"] > found["memory_bytes"] and len(kept) == 10
        del made
        gc.collect()
        wait_for(lambda: seen()["arenas"] == 0, "the arena of a loader that is gone is counted")


def test_least_bytes_is_what_is_placed(arena: _batches.Arena) -> None:
    exactly = b"x" * _packing.MIN_SLOT_BYTES
    assert isinstance(sender(arena)([exactly]), _batches.Shipped)
    assert isinstance(sender(arena)([exactly[1:]]), _batches.Pickled)
