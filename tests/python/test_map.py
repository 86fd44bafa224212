"""MapDataset: by number, in batches, ahead; in the loader's own order, a sampler's, and in torch's DataLoader."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import torch.utils.data

import millrace
from millrace._map import Announced, announce
from tests.property.order_model import deal
from tests.python.conftest import Folder
from tests.python.helpers import keep, model_order, name_of, pair, refuse_a_fifth, refuse_all

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores


def test_by_number(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=pair)
    items = list(hundred.contents.items())
    assert len(ds) == 100
    assert ds[3] == items[3] and ds[-1] == items[99] and ds[np.int64(4)] == items[4]
    assert ds.__getitems__([5, 2, 5, -2]) == [items[5], items[2], items[5], items[98]]
    assert ds.__getitems__(list(range(100))) == items
    for bad in (100, -101):
        with pytest.raises(IndexError, match="of 100"):
            ds[bad]
    with pytest.raises(TypeError, match="integer"):
        ds["a"]  # type: ignore[index]


def test_a_batch_larger_than_the_window(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of, window=4)
    assert ds[0] == hundred.names[0]
    assert ds.__getitems__(list(range(100))) == hundred.names


def test_an_exception_in_a_batch_does_not_shift_the_next(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=refuse_a_fifth)
    numbers = {name: int.from_bytes(data[:4], "little") for name, data in hundred.contents.items()}
    good = [i for i, name in enumerate(hundred.names) if numbers[name] % 5]
    with pytest.raises(RuntimeError, match="a fifth"):
        ds.__getitems__(range(20))
    assert ds.__getitems__(good[:5]) == [hundred.names[i] for i in good[:5]]


@pytest.mark.parametrize("verb", ["feed_all", "next"])
def test_a_signal_within_a_read_does_not_shift_the_next(socket: str, hundred: Folder, verb: str) -> None:
    """One whose handler raises, between a call of the lane and what is noted of it."""
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    announced = [Announced([2, 3], 1, [[4, 5]]), Announced([2, 3], 1, [[4, 5]])]
    assert ds[0] == hundred.names[0] and ds._reader is not None
    lane = ds._reader.lane
    ds._reader.lane = cast(Any, Interrupted(lane, verb))
    with pytest.raises(KeyboardInterrupt):
        ds[2]
    assert [ds[5], *ds.__getitems__([6, 2])] == [hundred.names[i] for i in (5, 6, 2)]
    ds.__getitems__(announced[0])
    ds._reader.lane = cast(Any, Interrupted(ds._reader.lane, verb))
    with pytest.raises(KeyboardInterrupt):
        ds.__getitems__(Announced([4, 5], 1, [[2, 3]]))
    assert ds.__getitems__(announced[1]) == hundred.names[2:4]


class Interrupted:
    """A lane, and Control-C as this call of it returns."""

    def __init__(self, lane: Any, verb: str) -> None:
        self._lane, self._verb = lane, verb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lane, name)
        if name != self._verb:
            return found

        def call(*arguments: Any) -> Any:
            found(*arguments)
            raise KeyboardInterrupt

        return call


def counted(ds: millrace.MapDataset, what: str) -> int:
    """What `millrace stat` shows of the lanes that are open."""
    stat = json.loads(ds._source.connection().client.stat())
    return sum(lane["counters"][what] for lane in stat["lanes"])


def test_on_error(socket: str, hundred: Folder) -> None:
    numbers = [int.from_bytes(data[:4], "little") for data in hundred.contents.values()]
    good = [name for name, number in zip(hundred.names, numbers) if number % 5]
    skip = millrace.MapDataset(hundred.uri, transform=refuse_a_fifth, on_error="skip")
    assert skip.__getitems__(range(100)) == good
    assert counted(skip, "skipped_samples") == 20
    assert list(skip) == good
    bad = hundred.names.index(next(name for name in hundred.names if name not in good))
    replace = millrace.MapDataset(hundred.uri, transform=refuse_a_fifth, on_error="replace")
    got = replace.__getitems__(range(100))
    assert len(got) == 100 and set(got) <= set(good)
    assert counted(replace, "replaced_samples") == 20
    assert got == replace.__getitems__(range(100))
    assert len(skip.__getitems__([bad, bad])) == 1, "a batch is never empty"
    assert skip[bad] in good, "nor has a wrapper, such as ConcatDataset, use for no sample"
    with pytest.raises(millrace.Error, match="no readable replacement"):
        millrace.MapDataset(hundred.uri, transform=refuse_all, on_error="replace")[0]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_transform_that_reads_its_data_set(hundred: Folder, on_error: str, workers: int | None) -> None:
    """As those that mix two samples do: through a lane of its own, so that nothing is lost of what is on its way."""

    def with_others(lease: millrace.Lease) -> tuple[str, ...]:
        if ds.depth == 2:
            return (lease.name,)
        ds.depth += 1
        others = [ds[lease.index - 1], *ds.__getitems__([1, 2])]
        ds.depth -= 1
        return (lease.name, *(other[0] for other in others))

    class Mixed(millrace.MapDataset):
        depth = 0

    ds = Mixed(hundred.uri, transform=with_others, on_error=on_error)
    names = hundred.names
    whole = [(names[i], names[i - 1], names[1], names[2]) for i in range(100)]
    if workers is None:
        assert ds.__getitems__(range(100)) == whole and list(ds) == whole
        return
    loader = millrace.DataLoader(
        ds, batch_size=8, num_workers=workers, collate_fn=keep, multiprocessing_context="fork" if workers else None
    )
    assert sorted(sample for batch in loader for sample in batch) == sorted(whole)


@pytest.mark.random
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_loaders_own_order(socket: str, hundred: Folder, workers: int) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of, window=32)
    for rank in range(2):
        loader = millrace.DataLoader(
            ds, batch_size=8, num_workers=workers, shuffle=True, seed=6, collate_fn=keep, rank=rank, world_size=2
        )
        for epoch in range(2):
            order = model_order(ds, 6, epoch)
            want = [[order[p] for p in shares[rank]] for shares, _ in deal(100, 2, 8)]
            assert len(loader) == len(want)
            assert list(loader) == want


def test_own_order_resumes_with_another_world(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    first = millrace.DataLoader(ds, batch_size=8, shuffle=True, num_workers=2, collate_fn=keep)
    steps = iter(first)
    seen = [name for _ in range(5) for name in next(steps)]
    state = json.loads(json.dumps(first.state_dict()))
    assert state == {"digest": ds.digest, "seed": 0, "epoch": 0, "cursor": 40, "shuffle": True}
    rest = []
    for rank in range(3):
        loader = millrace.DataLoader(ds, batch_size=8, shuffle=True, collate_fn=keep, rank=rank, world_size=3)
        loader.load_state_dict(state)
        rest += [name for batch in loader for name in batch]
    assert sorted(seen + rest) == sorted(hundred.names)


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_resume_keeps_the_epoch_of_a_sampler(socket: str, hundred: Folder, forwarded: bool) -> None:
    """Most programs never call set_epoch: their DistributedSampler stays in its first one, however many there were."""

    def make() -> millrace.DataLoader:
        ds: Any = millrace.MapDataset(hundred.uri, transform=name_of)
        sampler: Any = torch.utils.data.DistributedSampler(ds, num_replicas=1, rank=0, seed=3)
        return millrace.DataLoader(ds, batch_size=8, sampler=sampler, collate_fn=keep)

    whole = make()
    list(whole)
    if forwarded:
        whole.set_epoch(1)
    steps = iter(whole)
    for _ in range(5):
        next(steps)
    state = json.loads(json.dumps(whole.state_dict()))
    assert state["epoch"] == 1 and state["sampler_epoch"] == int(forwarded)
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == list(steps)


def test_persistent_workers_after_a_break(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of, window=32)
    loader = millrace.DataLoader(
        ds, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=keep
    )
    for _ in loader:
        break
    order = model_order(ds, 0, 1)
    assert [name for batch in loader for name in batch] == order


def test_a_users_sampler_resumes_at_the_same_batch(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    chosen = list(range(99, -1, -3))

    def loader_of(**how: Any) -> millrace.DataLoader:
        return millrace.DataLoader(ds, collate_fn=keep, num_workers=2, **how)

    for how in ({"sampler": chosen, "batch_size": 5}, {"batch_sampler": [chosen[i : i + 5] for i in range(0, 34, 5)]}):
        loader = loader_of(**how)
        assert len(loader) == 7
        steps = iter(loader)
        seen = [name for _ in range(3) for name in next(steps)]
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["cursor"] == 3 and state["world"] == 1
        again = loader_of(**how)
        again.load_state_dict(state)
        assert len(again) == 4
        rest = [name for batch in again for name in batch]
        assert seen + rest == [hundred.names[i] for i in chosen]
        assert len(again) == 7 and again.state_dict()["epoch"] == 1
        with pytest.raises(ValueError, match="world of 4 ranks"):
            again.load_state_dict({**state, "world": 4})
    with pytest.raises(ValueError, match="batches of 5 samples, and these are of 10"):
        loader_of(sampler=chosen, batch_size=10).load_state_dict({**state, "batch_size": 5})
    loader_of(sampler=chosen, batch_size=10).load_state_dict({**state, "batch_size": 5, "cursor": 0})
    loader_of(sampler=chosen, batch_size=10).load_state_dict(state)  # it does not say


def test_drop_last_is_the_users_samplers(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    loader = millrace.DataLoader(ds, batch_size=8, sampler=range(20), drop_last=True, collate_fn=keep)
    assert [len(batch) for batch in loader] == [8, 8] and len(loader) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["random", "seeded", "subset", "weighted", "batches"])
def test_a_random_sampler_of_torchs_resumes(socket: str, hundred: Folder, kind: str, workers: int) -> None:
    failing = False

    def transform(item: Any) -> Any:
        if failing:
            raise LookupError("not now")
        return name_of(item)

    ds: Any = millrace.MapDataset(hundred.uri, transform=transform)

    def new() -> millrace.DataLoader:
        seeded = torch.Generator().manual_seed(3)
        samplers = {
            "random": torch.utils.data.RandomSampler(ds),
            "seeded": torch.utils.data.RandomSampler(ds, generator=seeded),
            "subset": torch.utils.data.SubsetRandomSampler(range(0, 100, 2)),
            "weighted": torch.utils.data.WeightedRandomSampler([1.0] * 100, 100, generator=seeded),
        }
        if kind == "batches":
            of_batches = torch.utils.data.BatchSampler(samplers["random"], 8, False)
            return millrace.DataLoader(ds, batch_sampler=of_batches, collate_fn=keep, num_workers=workers)
        return millrace.DataLoader(ds, batch_size=8, sampler=samplers[kind], collate_fn=keep, num_workers=workers)

    loader = new()
    first = list(loader)
    batches = iter(loader)
    second = [next(batches) for _ in range(3)]
    assert second != first[:3]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(batches)
    again = new()
    again.load_state_dict(state)
    assert again.state_dict() == state
    failing = True
    with pytest.raises(LookupError):
        list(again)
    failing = False
    assert again.state_dict() == state
    assert list(again) == rest, "from where nothing was given"
    third = list(again)
    assert third[:3] != second, "the next epoch's draws are new ones"
    if kind in ("seeded", "weighted"):
        assert third == list(loader) and again.state_dict() == loader.state_dict()
    with pytest.raises(ValueError, match="'sampler_generator' is no state"):
        again.load_state_dict({**state, "sampler_generator": "AAAA"})
    again = new()
    again.load_state_dict(state)
    again.set_epoch(state["epoch"] + 1)
    following = list(again)
    assert following[:3] != second, "an epoch that is left is not begun anew under another number"
    if kind in ("seeded", "weighted"):
        assert following == third


@pytest.mark.parametrize("kind", ["random", "subset", "weighted"])
def test_a_sampler_s_order_is_torchs(socket: str, hundred: Folder, kind: str) -> None:
    ds: Any = millrace.MapDataset(hundred.uri, transform=name_of)
    samplers = {
        "random": torch.utils.data.RandomSampler(ds),
        "subset": torch.utils.data.SubsetRandomSampler(range(100)),
        "weighted": torch.utils.data.WeightedRandomSampler([1.0] * 100, 100),
    }
    orders = []
    for cls in (torch.utils.data.DataLoader, millrace.DataLoader):
        torch.manual_seed(5)
        loader = cls(ds, batch_size=8, sampler=samplers[kind], collate_fn=keep)
        orders.append([list(loader), list(loader)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def test_a_sampler_derived_from_torchs(socket: str, hundred: Folder) -> None:
    """What it draws from is its own affair."""

    class Derived(torch.utils.data.RandomSampler):
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Iterator[int]:
            return iter(range(99, -1, -1))

        def __len__(self) -> int:
            return 100

    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    loader = millrace.DataLoader(ds, batch_size=50, sampler=Derived(), collate_fn=keep)
    assert next(iter(loader)) == hundred.names[:49:-1]
    assert set(loader.state_dict()) == {"digest", "seed", "epoch", "cursor", "world", "batch_size"}


def test_a_sampler_that_waits_for_the_loop(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of, window=1)
    wanted: list[int] = [5]

    def batches() -> Iterator[list[int]]:
        while wanted:
            yield [wanted.pop()]

    class Waiting:
        def __iter__(self) -> Iterator[list[int]]:
            return batches()

    seen = []
    for names in millrace.DataLoader(ds, batch_sampler=cast(Any, Waiting()), collate_fn=keep):
        seen += names
        if len(seen) < 5:
            wanted.append(len(seen))
    assert seen == [hundred.names[i] for i in (5, 1, 2, 3, 4)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_fails(socket: str, hundred: Folder, workers: int) -> None:
    """After the batches that it gave."""

    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([i] for i in range(20))
            raise OSError("the labels have gone")

    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    loader = millrace.DataLoader(ds, batch_sampler=cast(Any, Failing()), collate_fn=keep, num_workers=workers)
    batches = iter(loader)
    first = [next(batches) for _ in range(20 if workers == 0 else 15)]
    assert first == [[name] for name in hundred.names[: len(first)]]
    with pytest.raises(OSError, match="the labels"):
        list(batches)


def test_an_endless_sampler(socket: str, hundred: Folder) -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return itertools.cycle(range(3))

    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    loader = millrace.DataLoader(ds, batch_size=2, sampler=cast(Any, Endless()), collate_fn=keep)
    steps = iter(loader)
    found = [name for _ in range(3) for name in next(steps)]
    assert found == [hundred.names[i] for i in (0, 1, 2, 0, 1, 2)]
    for counted in (loader, steps):
        with pytest.raises(TypeError, match="len"):
            len(counted)
    again = millrace.DataLoader(ds, batch_size=2, sampler=cast(Any, Endless()), collate_fn=keep)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)) == [hundred.names[0], hundred.names[1]]


def test_set_epoch_reaches_the_users_sampler(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    sampler: Any = torch.utils.data.DistributedSampler(ds, num_replicas=2, rank=1, seed=3)  # type: ignore[arg-type]
    loader = millrace.DataLoader(ds, batch_size=8, sampler=sampler, collate_fn=keep)
    loader.set_epoch(2)
    sampler.set_epoch(2)
    assert [name for batch in loader for name in batch] == [hundred.names[i] for i in sampler]


def test_announcements() -> None:
    """Each worker hears of each of its batches once, `depth` before, and in order."""
    for count in (0, 1, 5, 20):
        for workers in (1, 2, 3):
            for depth in (0, 1, 2, 5):
                batches = [[10 * i, 10 * i + 1] for i in range(count)]
                announced = list(announce(batches, workers, depth, 7))
                assert [list(each) for each in announced] == batches
                for worker in range(workers):
                    own = announced[worker::workers]
                    told = [batch for each in own for batch in each.ahead]
                    assert told == ([list(batch) for batch in own[1:]] if depth else [])
                    for k in range(len(own)):
                        known = 1 + sum(len(before.ahead) for before in own[: k + 1])
                        assert known == (min(len(own), k + 1 + depth) if depth else 1)
                    assert all(type(each) is Announced and each.run == 7 for each in own)


def test_in_torchs_loader(socket: str, hundred: Folder, caplog: pytest.LogCaptureFixture) -> None:
    ds: Any = millrace.MapDataset(hundred.uri, transform=pair)
    assert isinstance(ds, torch.utils.data.Dataset)
    millrace._map._logged_no_look_ahead = False
    with caplog.at_level(logging.INFO, "millrace"):
        for workers in (0, 2):
            loader = torch.utils.data.DataLoader(ds, batch_size=8, num_workers=workers, collate_fn=keep)
            assert dict(sample for batch in loader for sample in batch) == hundred.contents
    assert sum("fetches the next ones ahead" in record.message for record in caplog.records) == 1


def test_threads_take_turns(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=pair)
    items = list(hundred.contents.items())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ds.__getitem__, range(100))) == items
        batches = list(pool.map(ds.__getitems__, [range(i, i + 10) for i in range(0, 100, 10)]))
    assert [sample for batch in batches for sample in batch] == items


def test_iteration(socket: str, hundred: Folder) -> None:
    assert list(millrace.MapDataset(hundred.uri, transform=name_of)) == hundred.names


def test_iterating_fetches_ahead(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri)
    for _ in range(2):
        assert [bytes(lease) for lease in ds] == list(hundred.contents.values())
    iteration: Any = iter(ds)
    next(iteration)
    assert ds._reader is not None and ds._reader.ahead() == 15
    iteration.close()
    assert ds._reader is None  # what was ahead is given up


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_reading_while_iterating(socket: str, hundred: Folder, on_error: str) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of, on_error=on_error)
    names = hundred.names
    both = [(name, ds[-1 - i], ds.__getitems__([i, 0])) for i, name in enumerate(ds)]
    assert both == [(name, names[-1 - i], [name, names[0]]) for i, name in enumerate(names)]
    assert list(zip(ds, ds)) == list(zip(names, names))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_of_other_integers(socket: str, hundred: Folder, workers: int) -> None:
    """Numpy's, and negative ones: also those of batches that are announced."""
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    order = [*np.arange(20), *range(-5, 0)]
    loader = millrace.DataLoader(ds, batch_size=4, sampler=order, num_workers=workers, collate_fn=keep)
    assert [name for batch in loader for name in batch] == [hundred.names[i] for i in order]
