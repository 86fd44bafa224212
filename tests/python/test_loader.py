"""DataLoader over an IterableDataset: order, exactly once, epochs, state, tails. Ranks are simulated by arguments."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import millrace
from millrace._connection import Source
from tests.property.order_model import deal
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, model_order, name_of, pair, refuse_a_fifth

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores


def loader_of(uri: str, rank: int = 0, world: int = 1, batch: int = 8, **arguments: Any) -> millrace.DataLoader:
    of_loader = {k: arguments.pop(k) for k in ("num_workers", "persistent_workers", "drop_last") if k in arguments}
    arguments.setdefault("transform", name_of)
    arguments.setdefault("shuffle", True)
    ds = millrace.IterableDataset(uri, rank=rank, world_size=world, **arguments)
    return millrace.DataLoader(ds, batch_size=batch, collate_fn=keep, **of_loader)


def model_steps(loader: Any, world: int, batch: int, seed: int = 0, epoch: int = 0, **where: Any) -> list[Any]:
    """rank -> steps -> names, by the model."""
    order = model_order(loader.dataset, seed, epoch)
    steps = deal(len(order), world, batch, **where)
    return [[[order[p] for p in shares[rank]] for shares, _ in steps] for rank in range(world)]


@pytest.mark.random
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_order_is_the_models_for_any_number_of_workers(socket: str, hundred: Folder, workers: int) -> None:
    loader = loader_of(hundred.uri, seed=5, num_workers=workers)
    want = model_steps(loader, 1, 8, seed=5)[0]
    assert len(loader) == len(want) == 13
    assert list(loader) == want


def test_exactly_once_over_two_ranks_with_two_workers(socket: str, hundred: Folder) -> None:
    ranks = [loader_of(hundred.uri, r, 2, num_workers=2, seed=9, transform=pair) for r in range(2)]
    both = [list(loader) for loader in ranks]
    want = model_steps(ranks[0], 2, 8, seed=9)
    assert [[[name for name, _ in batch] for batch in rank] for rank in both] == want
    samples = [sample for rank in both for batch in rank for sample in batch]
    assert len(samples) == 100 and dict(samples) == hundred.contents


def test_without_shuffle_the_order_is_that_of_the_names(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri, shuffle=False)
    assert [name for batch in loader for name in batch] == hundred.names


@pytest.mark.parametrize(("tail", "drop_last"), [("short", False), ("drop", False), ("pad", False), (None, True)])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 35])
def test_tails(socket: str, folder: MakeFolder, count: int, tail: str | None, drop_last: bool) -> None:
    objects = folder(count)
    objects.root.mkdir(exist_ok=True)
    world, batch = 2, 8
    ranks = [loader_of(objects.uri, r, world, batch, tail=tail, drop_last=drop_last) for r in range(world)]
    want = model_steps(ranks[0], world, batch, tail=tail or "drop") if count else [[], []]
    if tail == "pad" and count:
        order = model_order(ranks[0].dataset, 0, 0)
        steps = deal(count, world, batch, 0, "pad")
        want = [[[order[p % count] for p in shares[r]] for shares, _ in steps] for r in range(world)]
    assert [len(loader) for loader in ranks] == [len(steps) for steps in want]
    assert [list(loader) for loader in ranks] == want


def test_drop_last_of_the_data_set(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, batch_size=8, drop_last=True, transform=name_of)
    assert len(ds) == 12
    assert len(millrace.DataLoader(ds, collate_fn=keep)) == 12
    assert [len(batch) for batch in ds] == [8] * 12


# ---- epochs ----


def test_epochs_follow_each_other(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri, seed=1)
    for epoch in range(3):
        assert loader.state_dict()["epoch"] == epoch
        assert list(loader) == model_steps(loader, 1, 8, seed=1, epoch=epoch)[0]
    assert loader.state_dict() == {
        "digest": loader.dataset.digest,
        "seed": 1,
        "epoch": 3,
        "cursor": 0,
        "shuffle": True,
    }


def test_a_break_begins_the_next_epoch(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri)
    for _ in loader:
        break
    assert loader.state_dict()["cursor"] == 8 and loader.state_dict()["epoch"] == 0
    assert len(loader) == 13, "of the next iteration"
    assert list(loader) == model_steps(loader, 1, 8, epoch=1)[0]
    assert loader.state_dict()["epoch"] == 2


def test_set_epoch_overrides(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri)
    for epoch in (7, 7, 2):
        loader.set_epoch(epoch)
        assert list(loader) == model_steps(loader, 1, 8, epoch=epoch)[0]
    for _ in loader:
        break
    loader.set_epoch(3)
    assert list(loader) == model_steps(loader, 1, 8, epoch=3)[0]


def test_it_begins_where_its_data_set_was_put(socket: str, hundred: Folder) -> None:
    """As programs put it that give their data sets to torch's DataLoader."""
    dataset = loader_of(hundred.uri).dataset
    dataset.set_epoch(5)
    loader = millrace.DataLoader(dataset, batch_size=8)
    batches = iter(loader)
    first = next(batches)
    again = loader_of(hundred.uri).dataset
    again.load_state_dict(loader.state_dict())
    rest = list(batches)
    assert [first, *rest] == model_steps(loader, 1, 8, epoch=5)[0]
    assert list(millrace.DataLoader(again, batch_size=8)) == rest
    looked_at = loader_of(hundred.uri).dataset
    next(iter(looked_at.batches(8)))
    assert list(millrace.DataLoader(looked_at, batch_size=8)) == model_steps(loader, 1, 8, epoch=0)[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_is_not_the_end_of_an_epoch(socket: str, hundred: Folder, workers: int) -> None:
    """A loop that goes on after it hears so, once, and can go on where it was."""
    loader = loader_of(hundred.uri, transform=refuse_a_fifth, num_workers=workers, shuffle=False)
    left_out = {name for name in hundred.names if int.from_bytes(hundred.contents[name][:4], "little") % 5 == 0}
    given = list(itertools.takewhile(lambda name: name not in left_out, hundred.names))
    batches = iter(loader)
    for _ in range(len(given) // 8):
        next(batches)
    state = loader.state_dict()
    with pytest.raises(RuntimeError, match="a fifth"):
        next(batches)
    with pytest.raises(millrace.Error, match=r"after \d+ of 13 steps, with RuntimeError: a fifth. on_error='skip'"):
        next(batches)
    assert list(batches) == [] and loader.state_dict() == state
    loader.load_state_dict(state)
    assert len(loader) == 13 - len(given) // 8
    with pytest.raises(RuntimeError, match="a fifth"):
        next(iter(loader))


def test_what_may_be_set_later(socket: str, hundred: Folder) -> None:
    """As Lightning sets worker_init_fn."""
    loader = loader_of(hundred.uri, shuffle=False, num_workers=1)
    loader.collate_fn = tuple
    loader.worker_init_fn = functools.partial(setattr, millrace, "set_by_worker_init_fn")
    loader.dataset._transform = of_worker_init_fn
    assert next(iter(loader)) == (0,) * 8
    with pytest.raises(ValueError, match="num_workers is fixed"):
        loader.num_workers = 2
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 2


def of_worker_init_fn(_: Any) -> Any:
    return getattr(millrace, "set_by_worker_init_fn", None)


def test_an_older_iteration_is_over(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri)
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    with pytest.raises(RuntimeError, match="over"):
        next(old)
    assert next(new) == model_steps(loader, 1, 8, epoch=1)[0][1]


def test_an_iterator_for_one_thread_at_a_time(socket: str, hundred: Folder) -> None:
    """Another one that comes in the middle of a next() is told so, and takes nothing from it."""
    begun, go_on = threading.Event(), threading.Event()

    def transform(lease: millrace.Lease) -> str:
        begun.set()
        assert go_on.wait(100)
        return lease.name

    ds = millrace.IterableDataset(hundred.uri, transform=transform)
    batches = iter(millrace.DataLoader(ds, batch_size=10, collate_fn=keep))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, batches)
        assert begun.wait(100)
        with pytest.raises(RuntimeError, match="in the middle of a next"):
            next(batches)
        go_on.set()
        names = [*first.result(), *itertools.chain.from_iterable(batches)]
    assert names == hundred.names


def test_persistent_workers_see_each_epoch(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri, num_workers=2, persistent_workers=True, seed=4)
    epochs = []
    for epoch in range(3):
        epochs.append(list(loader))
        assert epochs[-1] == model_steps(loader, 1, 8, seed=4, epoch=epoch)[0]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert list(loader) == epochs[1]  # each can be repeated
    for _ in loader:  # left early: the workers go on to the next
        break
    assert list(loader) == model_steps(loader, 1, 8, seed=4, epoch=3)[0]


def test_an_epoch_that_cannot_begin_in_workers_that_live_on(
    socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is told why, and the next epoch begins; also after the death of a worker."""
    opened = Source.open_lane
    calls = iter(range(9))

    def open_lane(self: Source, *arguments: Any) -> Any:
        if next(calls) == 1:
            raise millrace.Error("no lane is free")
        return opened(self, *arguments)

    monkeypatch.setattr(Source, "open_lane", open_lane)
    loader = loader_of(hundred.uri, num_workers=1, persistent_workers=True)
    assert list(loader) == model_steps(loader, 1, 8)[0]
    with pytest.raises(millrace.Error, match="no lane is free"):
        list(loader)
    assert list(loader) == model_steps(loader, 1, 8, epoch=1)[0]
    [worker] = loader._inner._iterator._workers
    worker.kill()
    worker.join()
    monkeypatch.undo()
    assert list(loader) == model_steps(loader, 1, 8, epoch=2)[0]


def test_an_interrupt_as_an_epoch_begins(socket: str, hundred: Folder) -> None:
    """At any line of what sets torch's loader up, and of torch's own setting of it."""
    loader = loader_of(hundred.uri)
    expected = list(loader)
    for at in range(40):
        lines = itertools.count()

        def interrupt(frame: Any, event: str, _: Any) -> Any:
            if event == "line" and next(lines) == at:  # noqa: B023
                raise KeyboardInterrupt
            return interrupt

        def calls(frame: Any, event: str, _: Any) -> Any:
            return interrupt if frame.f_code.co_name in ("_get_iterator", "__setattr__") else None

        loader.set_epoch(0)
        before = sys.gettrace()
        sys.settrace(calls)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                iter(loader)
        finally:
            sys.settrace(before)
        loader.set_epoch(0)
        assert list(loader) == expected, at


@pytest.mark.parametrize("answer", [0, 4])  # of those that torch waits for: as the workers go on to an epoch, or in it
@pytest.mark.parametrize("kind", [millrace.IterableDataset, millrace.MapDataset])
def test_workers_that_live_on_are_replaced_after_an_interrupt(
    socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch, kind: Any, answer: int
) -> None:
    """torch has an answer less than it waits for, and would take those of this epoch for the next one's."""
    loader = millrace.DataLoader(
        kind(hundred.uri, transform=name_of), batch_size=8, num_workers=2, persistent_workers=True, collate_fn=keep
    )
    expected = list(loader)
    torchs = type(loader._inner._iterator)
    get = torchs._get_data
    for _ in range(2):
        answers = itertools.count()

        def interrupted(self: Any) -> Any:
            got = get(self)
            if next(answers) == answer:  # noqa: B023
                raise KeyboardInterrupt
            return got

        loader.set_epoch(0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(torchs, "_get_data", interrupted)
            list(loader)
        loader.set_epoch(0)
        assert list(loader) == expected


class Nested(torch.utils.data.Dataset[list[Any]]):
    """Each item is an epoch of a loader of its own."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[Any]:
        return list(millrace.DataLoader(millrace.IterableDataset(self.uri, transform=name_of), 8, collate_fn=keep))


def test_a_loader_in_a_worker_of_another_one(socket: str, hundred: Folder) -> None:
    outer = torch.utils.data.DataLoader(Nested(hundred.uri), batch_size=None, num_workers=2)
    assert all(list(itertools.chain(*epoch)) == hundred.names for epoch in outer)


def test_a_worker_never_goes_by_its_own_copy(socket: str, hundred: Folder) -> None:
    """The supervisor keeps 256 loops: with more the oldest is forgotten, and its workers must not guess."""
    loader = loader_of(hundred.uri)
    steps = loader._inner.dataset
    with pytest.raises(millrace.Error, match="forgotten"):
        iter(steps)  # before the loader has put anything
    next(iter(loader))
    assert next(iter(steps))
    for _ in range(256):
        iter(loader_of(hundred.uri))
    with pytest.raises(millrace.Error, match="forgotten"):
        iter(steps)


# ---- state ----


def finish(uri: str, state: dict[str, Any], world: int, workers: int = 0) -> list[list[list[str]]]:
    ranks = []
    for rank in range(world):
        loader = loader_of(uri, rank, world, num_workers=workers)
        loader.load_state_dict(json.loads(json.dumps(state)))
        ranks.append(list(loader))
    return ranks


@pytest.mark.random
@pytest.mark.parametrize("workers", [0, 2])
def test_resume_with_another_world(socket: str, hundred: Folder, workers: int) -> None:
    stopped, seen = [], []
    for rank in range(2):
        loader = loader_of(hundred.uri, rank, 2, num_workers=workers)
        steps = iter(loader)
        seen += [name for _ in range(3) for name in next(steps)]
        stopped.append(loader.state_dict())
    assert stopped[0] == stopped[1] and stopped[0]["cursor"] == 48
    assert len(json.dumps(stopped[0])) < 200
    for world in (1, 2, 3):
        ranks = finish(hundred.uri, stopped[0], world, workers)
        rest = [name for rank in ranks for batch in rank for name in batch]
        loader = loader_of(hundred.uri)
        assert ranks == model_steps(loader, world, 8, cursor=48)
        assert sorted(seen + rest) == sorted(hundred.names)


def test_resume_at_the_ends_of_an_epoch(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri)
    steps = iter(loader)
    for _ in range(13):
        next(steps)
    assert loader.state_dict()["cursor"] == 100
    resumed = loader_of(hundred.uri)
    resumed.load_state_dict(loader.state_dict())
    assert len(resumed) == 0 and list(resumed) == []
    assert list(resumed) == model_steps(loader, 1, 8, epoch=1)[0]


@pytest.mark.parametrize("shuffled", [True, False])
def test_the_rest_of_an_epoch_in_another_order_is_refused(socket: str, hundred: Folder, shuffled: bool) -> None:
    first, other = (loader_of(hundred.uri, shuffle=on) for on in (shuffled, not shuffled))
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(ValueError, match=f"an epoch with shuffle={shuffled}, and shuffle={not shuffled} here"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="'shuffle' is 1, it must be True or False"):
        first.load_state_dict({**state, "shuffle": 1})
    ds = other.dataset
    with pytest.raises(ValueError, match="the shuffle that it was begun with"):
        ds.load_state_dict(state)
    other.load_state_dict({**state, "epoch": 4, "cursor": 0})  # nothing was given of this epoch yet
    assert other.state_dict()["shuffle"] == (not shuffled)
    del state["shuffle"]  # of an older millrace
    other.load_state_dict(state)


def test_a_loaded_epoch_survives_set_epoch_of_the_same(socket: str, hundred: Folder) -> None:
    """`for e in range(state["epoch"], n): loader.set_epoch(e)` must not lose the place."""
    loader = loader_of(hundred.uri)
    loader.load_state_dict({"digest": loader.dataset.digest, "seed": 3, "epoch": 2, "cursor": 48})
    loader.set_epoch(2)
    assert list(loader) == model_steps(loader, 1, 8, seed=3, epoch=2, cursor=48)[0]
    place = {"digest": loader.dataset.digest, "seed": 3, "epoch": 3, "cursor": 0}
    assert loader.state_dict() == {**place, "shuffle": True}


def test_state_counts_what_was_given_not_what_was_fetched(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri, num_workers=2)
    steps = iter(loader)
    assert loader.state_dict()["cursor"] == 0
    for given in range(1, 4):
        next(steps)
        assert loader.state_dict()["cursor"] == 8 * given


def test_states_that_do_not_fit(socket: str, hundred: Folder, folder: MakeFolder) -> None:
    loader = loader_of(hundred.uri)
    good = loader.state_dict()
    with pytest.raises(millrace.Error, match="another listing"):
        loader_of(folder(30).uri).load_state_dict(good)
    for change, error in (
        ({"cursor": 101}, "cursor is 101"),
        ({"cursor": -1}, "cursor"),
        ({"epoch": "1"}, "epoch"),
        ({"seed": 1 << 64}, "seed"),
    ):
        with pytest.raises(ValueError, match=error):
            loader.load_state_dict({**good, **change})
    with pytest.raises(ValueError, match="no 'epoch'"):
        loader.load_state_dict({"digest": good["digest"], "seed": 0})
    with pytest.raises(TypeError):
        loader.load_state_dict("state")  # type: ignore[arg-type]
    ds = millrace.MapDataset(hundred.uri)
    sampled = millrace.DataLoader(ds, sampler=torch.utils.data.SequentialSampler(ds))
    with pytest.raises(ValueError, match="a sampler, whose cursor counts batches"):
        loader.load_state_dict(sampled.state_dict())
    with pytest.raises(ValueError, match="no 'world'"):
        sampled.load_state_dict(good)
    assert loader.state_dict() == good


# ---- without torch ----


def test_batches_have_the_loaders_order_epochs_and_state(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri)
    ds = millrace.IterableDataset(hundred.uri, shuffle=True, transform=name_of)
    batches = ds.batches(8)
    assert len(batches) == 13
    assert list(batches) == model_steps(loader, 1, 8)[0]
    for batch in ds.batches(8):
        assert batch == model_steps(loader, 1, 8, epoch=1)[0][0]
        break
    state = ds.state_dict()
    assert state == {"digest": ds.digest, "seed": 0, "epoch": 1, "cursor": 8, "shuffle": True}
    loader.load_state_dict(state)
    again = pickle.loads(pickle.dumps(ds))
    again.load_state_dict(state)
    want = model_steps(loader, 1, 8, epoch=1, cursor=8)[0]
    assert list(again.batches(8)) == list(loader) == want
    assert list(ds.batches(8)) == model_steps(loader, 1, 8, epoch=2)[0]


# ---- what torch does with the batches ----


def as_tensor(lease: millrace.Lease) -> tuple[torch.Tensor, int]:
    return torch.frombuffer(bytearray(lease), dtype=torch.uint8)[:4].clone(), lease.size


def test_default_collate_stacks(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=as_tensor)
    for workers in (0, 2):
        first, sizes = next(iter(millrace.DataLoader(ds, batch_size=8, num_workers=workers)))
        assert first.shape == (8, 4) and sizes.shape == (8,)
        assert sizes.tolist() == [len(hundred.contents[name]) for name in hundred.names[:8]]


def test_batch_size_none_gives_single_samples(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=as_tensor)
    loader = millrace.DataLoader(ds, batch_size=None)
    assert len(loader) == 100
    samples = list(loader)
    assert len(samples) == 100 and samples[0][0].shape == (4,)


def everything(lease: Any) -> Any:
    """All that a Lease says, and its bytes."""
    said = [getattr(lease, name) for name in ("name", "url", "size", "generation", "crc32c", "index", "encoding")]
    return lease.position, *said, len(lease), bytes(lease), memoryview(lease).readonly


@pytest.mark.parametrize(
    ("kind", "writable"),
    ((millrace.IterableDataset, False), (millrace.MapDataset, True)),  # a spawned worker imports torch: not all four
)
def test_leases_stay_leases_between_processes(socket: str, hundred: Folder, kind: Any, writable: bool) -> None:
    ds = kind(hundred.uri, writable=writable)
    seen = []
    for make, workers, method in (
        (millrace.DataLoader, 0, None),
        (millrace.DataLoader, 2, "fork"),
        (millrace.DataLoader, 1, "spawn"),
        (torch.utils.data.DataLoader, 2, "fork"),
        (torch.utils.data.DataLoader, 1, "spawn"),
    ):
        loader: Any = make(ds, batch_size=8, num_workers=workers, multiprocessing_context=method)
        batches = list(loader)
        assert {type(lease) for batch in batches for lease in batch} == {millrace.Lease}
        seen.append(sorted(everything(lease) for batch in batches for lease in batch))
    assert all(rows == seen[0] for rows in seen)
    assert {row[1]: row[9] for row in seen[0]} == hundred.contents


def test_the_loop_may_keep_every_lease(socket: str, hundred: Folder) -> None:
    kept = [lease for batch in millrace.IterableDataset(hundred.uri, window=16).batches(4) for lease in batch]
    assert {lease.name: bytes(lease) for lease in kept} == hundred.contents


@pytest.fixture
def large(tmp_path: Any) -> Iterator[Folder]:
    from tests.python.conftest import make_folder

    yield make_folder(tmp_path, 40, 1 << 20)  # several times the arena


def test_more_than_the_arena(socket: str, large: Folder) -> None:
    ds = millrace.IterableDataset(large.uri, shuffle=True, transform=pair)
    assert dict(sample for batch in ds.batches(4) for sample in batch) == large.contents
