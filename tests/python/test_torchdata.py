"""millrace's data sets in torchdata's StatefulDataLoader: what it is given again is what was left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import millrace
from tests.python.conftest import Folder
from tests.python.helpers import keep, model_order, name_of


def loader_of(uri: str, batch_size: int | None = 8, workers: int = 0) -> Any:
    """Of batches of 8, made by the data set or, from single samples (None), by the loader."""
    ds = millrace.IterableDataset(
        uri, transform=name_of, batch_size=batch_size, shuffle="block", block_bytes=20000, mix_blocks=2
    )
    return StatefulDataLoader(ds, batch_size=None if batch_size else 8, num_workers=workers, collate_fn=keep)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [8, None])
def test_a_resume_repeats_and_loses_nothing(socket: str, hundred: Folder, batch_size: int | None, workers: int) -> None:
    first = loader_of(hundred.uri, batch_size, workers)
    whole = list(first)
    assert sorted(name for batch in whole for name in batch) == sorted(hundred.names)
    for taken in (1, 5, 12):
        steps = iter(first)
        seen = [next(steps) for _ in range(taken)]
        state = json.loads(json.dumps(first.state_dict()))
        again = loader_of(hundred.uri, batch_size, workers)
        again.load_state_dict(state)
        assert seen + list(again) == whole
        assert list(again) == whole, "the next iteration is a whole one"


def test_workers_that_live_on(socket: str, hundred: Folder) -> None:
    def make() -> Any:
        ds = millrace.IterableDataset(hundred.uri, shuffle=True, batch_size=8, transform=name_of)
        return StatefulDataLoader(ds, batch_size=None, num_workers=2, collate_fn=keep, persistent_workers=True)

    first = make()
    for epoch in range(3):
        first.dataset.set_epoch(epoch)
        steps = iter(first)
        seen = [next(steps) for _ in range(5)]
        state = first.state_dict()
        rest = list(steps)
        again = make()
        again.load_state_dict(state)
        assert list(again) == rest
        assert [name for batch in seen + rest for name in batch] == model_order(first.dataset, 0, epoch)


def test_an_epoch_that_was_set(socket: str, hundred: Folder) -> None:
    first = loader_of(hundred.uri)
    first.dataset.set_epoch(3)
    steps = iter(first)
    seen = [next(steps) for _ in range(4)]
    again = loader_of(hundred.uri)
    again.load_state_dict(first.state_dict())
    other = loader_of(hundred.uri)
    other.dataset.set_epoch(3)
    assert seen + list(again) == list(other)


def test_a_map_data_set(socket: str, hundred: Folder) -> None:
    first, again = (
        StatefulDataLoader(millrace.MapDataset(hundred.uri, transform=name_of), batch_size=8, collate_fn=keep)
        for _ in range(2)
    )
    steps = iter(first)
    seen = [next(steps) for _ in range(3)]
    again.load_state_dict(first.state_dict())
    assert [name for batch in seen + list(again) for name in batch] == hundred.names


def test_bad_samples_are_not_counted_twice(socket: str, hundred: Folder) -> None:
    def picky(lease: Any) -> str:
        if lease.position % 3 == 0:
            raise ValueError("no")
        return str(lease.name)

    def make() -> Any:
        return millrace.IterableDataset(hundred.uri, shuffle=True, on_error="skip", transform=picky)

    ds = make()
    want = [name for i, name in enumerate(model_order(ds, 0, 0)) if i % 3]
    share = iter(ds)
    seen = [next(share) for _ in range(20)]
    rest = iter(make())
    rest.load_state_dict(share.state_dict())
    assert seen + list(rest) == want


def test_a_state_of_another_part(socket: str, hundred: Folder) -> None:
    ds: Any = millrace.IterableDataset(hundred.uri, batch_size=8)
    state = iter(ds).state_dict()
    ds.set_epoch(1)
    share = iter(ds)
    with pytest.raises(ValueError, match="another part of an epoch: its epoch is 0, and not 1"):
        share.load_state_dict(state)
    next(share)
    with pytest.raises(RuntimeError, match="has begun"):
        share.load_state_dict(share.state_dict())
