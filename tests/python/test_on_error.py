"""on_error: objects that cannot be read, or that the transform refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.property.order_model import deal, replacements
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, model_order, name_of, refuse_a_fifth, refuse_all

BATCH = 8


def number(folder: Folder, name: str) -> int:
    return int.from_bytes(folder.contents[name][:4], "little")


def loader_of(uri: str, **arguments: Any) -> millrace.DataLoader:
    workers = arguments.pop("num_workers", 0)
    ds = millrace.IterableDataset(uri, shuffle=True, window=16, **arguments)
    return millrace.DataLoader(ds, batch_size=BATCH, num_workers=workers, collate_fn=keep)


def model(loader: millrace.DataLoader, bad: set[str], policy: str) -> list[list[str]]:
    order = model_order(loader.dataset, 0, 0)
    n = len(order)

    def replacement(position: int) -> str:
        return next(order[p] for p in replacements(n, 0, 0, position) if order[p] not in bad)

    steps = []
    for (share,), _ in deal(n, 1, BATCH):
        good = [p for p in share if order[p] not in bad]
        if policy == "replace":
            steps.append([order[p] if order[p] not in bad else replacement(p) for p in share])
        else:
            steps.append([order[p] for p in good] or [replacement(share[0])])
    return steps


@pytest.fixture
def damaged(folder: MakeFolder) -> tuple[Folder, set[str]]:
    """60 objects; a third of them is gone once listed."""
    objects = folder(60)
    return objects, {name for name in objects.names if number(objects, name) % 3 == 0}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_missing_objects(socket: str, damaged: tuple[Folder, set[str]], policy: str, workers: int) -> None:
    objects, bad = damaged
    loader = loader_of(objects.uri, transform=name_of, on_error=policy, num_workers=workers)
    assert len(loader.dataset.objects) == 60
    for name in bad:
        Path(name).unlink()
    assert list(loader) == model(loader, bad, policy)
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_transform_that_raises(socket: str, hundred: Folder, policy: str) -> None:
    bad = {name for name in hundred.names if number(hundred, name) % 5 == 0}
    loader = loader_of(hundred.uri, transform=refuse_a_fifth, on_error=policy)
    assert list(loader) == model(loader, bad, policy)


@pytest.mark.parametrize("workers", [0, 1])
def test_raise_is_the_default(socket: str, damaged: tuple[Folder, set[str]], workers: int) -> None:
    objects, bad = damaged
    loader = loader_of(objects.uri, transform=name_of, num_workers=workers)
    len(loader)
    for name in bad:
        Path(name).unlink()
    with pytest.raises(FileNotFoundError, match="object-"):
        list(loader)


def test_a_changed_object(socket: str, folder: MakeFolder) -> None:
    objects = folder(4)
    ds = millrace.IterableDataset(objects.uri)
    len(ds)
    with Path(objects.names[0]).open("ab") as file:
        file.write(b"more")
    with pytest.raises(millrace.ChangedError, match="object-"):
        list(ds.batches(4))


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_nothing_readable_raises_in_the_end(socket: str, hundred: Folder, policy: str) -> None:
    loader = loader_of(hundred.uri, transform=refuse_all, on_error=policy)
    with pytest.raises(millrace.Error, match="no readable replacement"):
        list(loader)


def test_skip_without_batches(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=refuse_a_fifth, on_error="skip")
    assert list(ds) == [name for name in hundred.names if number(hundred, name) % 5]
