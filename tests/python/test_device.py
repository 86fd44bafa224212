"""Batches on a device: the order of the few calls of its runtime, by a mock of them; and all of it on the CPU."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from ctypes import c_ubyte
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import millrace
from millrace import _batches, _device, _trace
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
BATCHES = 12
Point = namedtuple("Point", "x y")


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, i: int) -> Any:
        size = 1000 if i < 24 else 300_000  # the slots grow
        return torch.full((size,), i), i


class Mock:
    """A device whose copies are done when the test says so. It keeps what was called, and checks what must never be."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.taken = self.unregistered = 0
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []  # host, device
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.refuse: str | None = None

    def check(self, address: int, size: int) -> None:
        """It is mapped, and no copy reads it."""
        assert size > 0
        bytearray((c_ubyte * 1).from_address(address + size - 1))
        assert not any(address <= host.data_ptr() < address + size for host, _ in self.pending)


class Runtime:
    """Of one iteration."""

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.thread: threading.Thread | None = None
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self) -> None:
        assert self.thread is None, "once a thread, first"
        self.thread = threading.current_thread()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        assert threading.current_thread() is self.thread
        self.pending.append((tensor.detach(), torch.full_like(tensor, -1)))
        self.mock.pending.append(self.pending[-1])
        return self.pending[-1][1]

    def wait(self) -> None:
        """The device reads the host's memory now, at the last moment that it may."""
        self.mock.waiting.set()
        self.mock.gate.wait()
        while self.pending:
            host, made = self.pending[-1]
            made.copy_(host)
            self.mock.pending[:] = [one for one in self.mock.pending if one is not self.pending[-1]]
            self.pending.pop()

    def take(self, tensor: torch.Tensor) -> None:
        assert threading.current_thread() is not self.thread
        self.mock.taken += 1

    def register(self, address: int, size: int) -> str | None:
        self.mock.check(address, size)
        assert address not in self.mock.registered
        if self.mock.refuse is None:
            self.mock.registered[address] = size
        return self.mock.refuse

    def unregister(self, address: int) -> None:
        self.mock.check(address, self.mock.registered.pop(address))  # it still is mapped
        self.mock.unregistered += 1


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    monkeypatch.setattr(_device, "runtime_of", lambda device: Runtime(made))
    return made


def loader(**more: Any) -> Any:
    made = DataLoader(Numbers(), **{"batch_size": 4, "num_workers": 2, **more})
    return millrace.transport(made, device="cuda")


def check(batches: Any) -> int:
    count = 0
    for number, (data, label) in enumerate(batches):
        assert label.tolist() == list(range(4 * number, 4 * number + 4))
        assert torch.equal(data, label.view(4, 1).expand_as(data))
        count += 1
    assert count == BATCHES
    return count


def test_every_batch_is_copied_out_of_pinned_memory(mock: Mock) -> None:
    made = loader()
    check(made)
    assert mock.taken == 2 * BATCHES  # each tensor is the loop's stream's
    assert mock.registered == {address: size for address, size in made._millrace_arenas._arena.ring.extents() if size}
    assert mock.unregistered  # the slots have grown: the old registration ended first
    del made
    gc.collect()
    assert mock.registered == {}  # before the memory was unmapped: see Mock.unregister


def test_a_batch_is_let_go_when_its_copy_is_done(mock: Mock) -> None:
    """While the copy of one batch is under way, none of its bytes change, whatever the workers do."""
    mock.gate.clear()
    batches = iter(loader(num_workers=1))
    assert mock.waiting.wait(60)
    data = mock.pending[0][0]
    before = bytes(data.numpy().data)
    del data
    mock.waiting.clear()
    mock.gate.set()
    first = next(batches)
    assert first[1].tolist() == [0, 1, 2, 3] and first[0][3][5] == 3
    assert bytes(first[0].numpy().data) == before
    rest = sum(1 for _ in batches)
    assert rest == BATCHES - 1


def test_it_copies_ahead_of_the_loop_and_no_further(mock: Mock) -> None:
    batches = iter(loader(num_workers=1))
    copier = batches.copier
    next(batches)
    while not copier._ready.full():
        pass
    assert copier._ready.qsize() == _device.AHEAD - 1
    assert check_rest(batches, 1) == BATCHES - 1


def check_rest(batches: Iterator[Any], number: int) -> int:
    count = 0
    for _, label in batches:
        assert int(label[0]) == 4 * (number + count)
        count += 1
    return count


def test_memory_that_cannot_be_pinned_is_copied_all_the_same(mock: Mock, caplog: pytest.LogCaptureFixture) -> None:
    mock.refuse = "no more locked memory"
    check(loader())
    assert [record.getMessage() for record in caplog.records if "not pinned" in record.getMessage()] == [
        "batches go to the device from memory that is not pinned, which is slower: no more locked memory"
    ]


def test_iterations_that_end_early(mock: Mock) -> None:
    for persistent in (False, True):
        made = loader(persistent_workers=persistent)
        for _ in range(3):
            for number, _batch in enumerate(made):
                if number == 1:
                    break
        check(made)
    gc.collect()


def test_an_early_end_does_not_leave_a_reader_behind(mock: Mock) -> None:
    """Of workers that live on: the thread of the iteration before would take what is meant for the next one."""
    made = loader(persistent_workers=True)
    for _ in range(6):
        for _batch in made:
            break
        before = made._millrace_copier
        check(made)
        assert not before.thread.is_alive()


def test_an_end_while_nothing_comes(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for a batch of workers that are ended: it ends too."""

    class Silent(Numbers):
        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(i) if i < 4 else time.sleep(600)

    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # how long it waits for a worker
    batches = iter(millrace.transport(DataLoader(Silent(), 4, num_workers=1), device="cuda"))
    next(batches)
    batches._shutdown_workers()
    batches.copier.thread.join(60)
    assert not batches.copier.thread.is_alive()


def sparse(layout: torch.layout, **more: Any) -> torch.Tensor:
    return torch.eye(4).to_sparse(layout=layout, **more)


@pytest.mark.filterwarnings("ignore")  # betas and prototypes, of torch
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: torch.zeros(3, 5)[:, 1:], 48),
        (lambda: sparse(torch.sparse_coo), 2 * 4 * 8 + 16),
        (lambda: sparse(torch.sparse_csr), 5 * 8 + 4 * 8 + 16),
        (lambda: sparse(torch.sparse_csc), 5 * 8 + 4 * 8 + 16),
        (lambda: sparse(torch.sparse_bsr, blocksize=(2, 2)), 3 * 8 + 2 * 8 + 32),
        (lambda: sparse(torch.sparse_bsc, blocksize=(2, 2)), 3 * 8 + 2 * 8 + 32),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 20),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), 20 + 3 * 8),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), 4),
    ],
)
def test_the_dense_parts_of_any_tensor(make: Any, size: int) -> None:
    """record_stream has a kernel for dense ones alone."""
    parts = list(_device.plain_parts(make()))
    for part in parts:
        assert type(part) is torch.Tensor and part.layout is torch.strided
        assert not part.is_nested and not part.is_quantized
    assert sum(part.nbytes for part in parts) == size


def test_an_older_iteration_is_over(mock: Mock) -> None:
    made = loader(persistent_workers=True)
    old = iter(made)
    next(old)
    while not old.copier._ready.not_full._waiters:  # it puts one more as the queue is emptied
        pass
    new = iter(made)
    assert old.copier._ready.empty()
    with pytest.raises(RuntimeError, match="this iteration is over"):
        next(old)
    assert len(list(new)) == len(made)


def test_a_failure_in_a_worker_and_on_the_device(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Numbers):
        def __getitem__(self, i: int) -> Any:
            if i == 9:
                raise LookupError("nine")
            return super().__getitem__(i)

    batches = iter(millrace.transport(DataLoader(Failing(), 4, num_workers=1), device="cuda"))
    with pytest.raises(LookupError, match="nine"):
        list(batches)
    assert next(batches, None) is None
    del batches

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("the device is full")

    monkeypatch.setattr(Runtime, "copy", lambda self, tensor: fail(tensor))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        next(iter(loader()))


def test_a_forked_child_unregisters_nothing(mock: Mock) -> None:
    made = loader()
    check(made)
    before = dict(mock.registered)
    child = os.fork()
    if child == 0:
        del made
        gc.collect()
        os._exit(0 if mock.registered == before else 1)
    assert os.waitpid(child, 0)[1] == 0 and mock.registered == before


@dataclasses.dataclass(frozen=True)
class Record:
    image: Any
    name: str


class Own:
    def to(self, device: Any) -> str:
        return f"on {device}"


def test_what_is_moved() -> None:
    one = torch.ones(2)
    batch: dict[str, Any] = {
        "a": [one, (one, "text", 7)],
        "p": Point(one, None),
        "r": Record(one, "n"),
        "o": OrderedDict(x=one),
    }
    got = _device.moved({**batch, "own": Own()}, lambda tensor: tensor + 1, "cuda")
    two = one + 1
    assert torch.equal(got["a"][0], two) and torch.equal(got["a"][1][0], two) and got["a"][1][1:] == ("text", 7)
    assert type(got["p"]) is Point and torch.equal(got["p"].x, two) and got["p"].y is None
    assert type(got["r"]) is Record and torch.equal(got["r"].image, two) and got["r"].name == "n"
    assert type(got["o"]) is OrderedDict and torch.equal(got["o"]["x"], two) and got["own"] == "on cuda"
    assert torch.equal(batch["r"].image, one)
    frozen = MappingProxyType({"text": "t"})  # what holds no tensor is what it was, a Sample too
    assert _device.moved(frozen, lambda tensor: tensor + 1, "cuda") is frozen
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert _device.moved(packed, lambda tensor: tensor, "cpu").batch_sizes.tolist() == [2, 1]


# ---- on the CPU: the real path, with copies of its own ----


@pytest.mark.parametrize("workers", [0, 2])
def test_on_the_cpu(workers: int) -> None:
    made = millrace.transport(DataLoader(Numbers(), 4, num_workers=workers), device="cpu")
    for _ in range(2):
        check(made)
    kept = list(made)
    check(kept)
    if workers:
        assert made._millrace_arenas.counts()["copies"] == 0  # the loop holds copies, not slots


def test_a_loader_of_millraces(socket: str, folder: MakeFolder) -> None:
    objects = folder(40, 5000)
    ds = millrace.IterableDataset(objects.uri, transform=to_tensor)
    made = millrace.DataLoader(ds, batch_size=4, num_workers=2, device="cpu")
    got = torch.cat(list(made))
    assert [bytes(one.numpy().data) for one in got] == list(objects.contents.values())
    found = made.stats()
    assert found["waits_s"]["device"] >= 0 and sum(found["waits_s"].values()) == pytest.approx(found["wait_s"])
    state = made.state_dict()
    iterator = iter(made)
    next(iterator)
    assert made.state_dict()["cursor"] == 4 and state["cursor"] in (0, 40)  # what the loop has, not what was copied


def to_tensor(lease: Any) -> torch.Tensor:
    return torch.frombuffer(lease.copy(), dtype=torch.uint8)


def test_wrong_devices(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri)
    with pytest.raises(ValueError, match="leave pin_memory off"):
        millrace.DataLoader(ds, pin_memory=True, device="cpu", num_workers=1, collate_fn=keep)
    loader = millrace.DataLoader(ds, device="cpu", num_workers=1, collate_fn=keep)
    with pytest.raises(ValueError, match="leave pin_memory off"):
        loader.pin_memory = True
    assert not loader.pin_memory
    with pytest.raises(ValueError, match="'cuda', 'cuda:N' or 'cpu'"):
        millrace.DataLoader(ds, device="meta")
    with pytest.raises(RuntimeError):
        millrace.DataLoader(ds, device="no such thing")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="torch finds no GPU"):
            millrace.transport(DataLoader(Numbers()), device="cuda")


def test_the_arena_has_no_registration_of_its_own() -> None:
    assert _batches.Arena(1, 1, 1 << 20).pinned is None


def test_tensors_without_bytes_while_somebody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace never ends a training: a sparse tensor refuses to say how many it has."""
    monkeypatch.setattr(_trace, "tracing", lambda: True)
    said: list[int] = []
    monkeypatch.setattr(_trace, "trace", lambda *_, **span: said.append(span["bytes"]))
    batches = iter([[torch.eye(3).to_sparse(), torch.ones(2)]])
    batch, made = _device.Copier(batches, _device.Host(), None, torch.device("cpu")).one()
    assert batch[0].is_sparse
    assert (len(made), said) == (2, [8])
