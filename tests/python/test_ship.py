"""How batches come from DataLoader workers: the pool's blocks by themselves, and through millrace.DataLoader."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import millrace
from millrace import _loader, _ship, _torch
from millrace._item import Item
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, nested, pair

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> _ship.Pool:
    """Of two workers with two blocks each; this process plays both ends, as worker 1."""
    monkeypatch.setattr(_ship, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(_torch, "worker", lambda: (1, 2))
    return _ship.Pool(2, 2, multiprocessing.get_context())


def shipping(pool: _ship.Pool) -> Callable[[Any], Any]:
    made = _ship.Shipping(lambda samples: samples)
    made.pool = pool
    return lambda samples: made(samples).batch


def sent(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))


def test_a_batch_arrives_as_it_was(pool: _ship.Pool) -> None:
    items = [Item(bytes([i]) * (5000 + i), f"n{i}") for i in range(3)]
    batch = {"a": items, "b": (b"x" * 9000, [b"short", 7, None]), "empty": Item(b"", "none"), "t": torch.arange(3)}
    shipped = shipping(pool)(batch)
    assert isinstance(shipped, _ship.Shipped)
    message = pickle.dumps(shipped)
    assert len(message) < 3000
    got = _ship.open_batch(pickle.loads(message))
    assert got["a"] == items and [one.name for one in got["a"]] == ["n0", "n1", "n2"]
    assert all(type(one) is Item for one in got["a"]) and got["empty"].name == "none"
    assert got["b"] == batch["b"] and type(got["b"][0]) is bytes and torch.equal(got["t"], torch.arange(3))


def test_blocks_are_free_again_when_a_batch_is_open_batch_or_thrown_away(pool: _ship.Pool) -> None:
    ship = shipping(pool)
    for number in range(7):
        arrived = sent(ship([Item(bytes([number]) * 5000, "n")]))
        assert isinstance(arrived, _ship.Shipped)
        if number % 2:
            assert arrived.open()[0] == bytes([number]) * 5000
        del arrived


def test_a_block_is_not_used_again_before_its_batch_is_open_batch(pool: _ship.Pool) -> None:
    ship = shipping(pool)
    under_way = [sent(ship([bytes([number]) * 5000])) for number in range(3)]
    assert [type(batch) for batch in under_way] == [_ship.Shipped, _ship.Shipped, list]  # the third by the pipe
    assert [_ship.open_batch(batch)[0][0] for batch in under_way] == [0, 1, 2]
    assert isinstance(ship([b"4" * 5000]), _ship.Shipped)


def test_what_does_not_fit_or_has_no_bytes_is_left_alone(pool: _ship.Pool) -> None:
    ship = shipping(pool)
    for batch in ([b"x" * (1 << 20), b"y" * 5000], [torch.zeros(5000)], [b"short"], [], Item(b"", "n")):
        assert ship(batch) is batch
    exactly = [b"x" * (1 << 20)]
    assert sent(ship(exactly)).open() == exactly


def test_a_failure_while_packing_frees_the_block(pool: _ship.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(_ship, "Placed", fail)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no"):
                shipping(pool)([b"x" * 5000])
    assert isinstance(shipping(pool)([b"x" * 5000]), _ship.Shipped)


def count_shipped(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Counts what the loop takes, by how it came."""
    seen = SimpleNamespace(shipped=0, piped=0)

    def counted(batch: Any) -> Any:
        if isinstance(batch, _ship.Shipped):
            seen.shipped += 1
        else:
            seen.piped += 1
        return _ship.open_batch(batch)

    monkeypatch.setattr(_loader, "open_batch", counted)
    return seen


@pytest.mark.parametrize(("style", "method"), [("iterable", "fork"), ("map", "fork"), ("iterable", "spawn")])
def test_through_a_loader(
    socket: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, style: str, method: str
) -> None:
    seen = count_shipped(monkeypatch)
    objects = folder(40, 5000)
    kind: Any = millrace.IterableDataset if style == "iterable" else millrace.MapDataset
    loader = millrace.DataLoader(
        kind(objects.uri), batch_size=4, num_workers=2, collate_fn=keep, multiprocessing_context=method
    )
    items = [item for batch in loader for item in batch]
    assert [(item.name, bytes(item)) for item in items] == list(objects.contents.items())
    assert (seen.shipped, seen.piped) == (10, 0)


def test_nested_batches_of_a_transform(socket: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_shipped(monkeypatch)
    objects = folder(12, 5000)
    ds = millrace.IterableDataset(objects.uri, transform=pair)
    loader = millrace.DataLoader(ds, batch_size=4, num_workers=1, collate_fn=nested)
    got: dict[str, bytes] = {}
    for names, data in loader:
        got.update(zip(names, data["data"]))
    assert got == objects.contents and seen.shipped


def test_workers_that_live_on_keep_their_blocks_after_a_break(
    socket: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_shipped(monkeypatch)
    objects = folder(60, 5000)
    ds = millrace.IterableDataset(objects.uri)
    loader = millrace.DataLoader(ds, batch_size=4, num_workers=2, collate_fn=keep, persistent_workers=True)
    for _ in range(4):
        for number, _batch in enumerate(loader):
            if number == 2:
                break
    seen.piped = seen.shipped = 0
    items = [item for batch in loader for item in batch]
    assert [(item.name, bytes(item)) for item in items] == list(objects.contents.items())
    assert (seen.shipped, seen.piped) == (15, 0)


def test_a_loader_without_workers_uses_no_pool(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri)
    alone = iter(millrace.DataLoader(ds, batch_size=4, collate_fn=keep))
    assert isinstance(next(alone)[0], millrace.Lease)
    assert alone._pool is None
