"""Copies of a loader or a data set, by copy, pickle and fork: each goes by its own place and its own rank."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import millrace
from millrace._connection import Source
from tests.python.conftest import Folder
from tests.python.helpers import keep, model_order, name_of
from tests.serve import DEADLINE_S

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def data_set(uri: str) -> millrace.IterableDataset:
    return millrace.IterableDataset(uri, transform=name_of, shuffle=True)


def loader_of(ds: millrace.IterableDataset, workers: int = 0) -> millrace.DataLoader:
    return millrace.DataLoader(ds, batch_size=8, num_workers=workers, collate_fn=keep)


def read(loader: Any) -> list[str]:
    return [name for batch in loader for name in batch]


def read_as_rank(made: Any, rank: int, both: Any, results: Any) -> None:
    """In a process of its own. Both ranks have handed their place to their workers before either has a lane."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    put = Source.put_loop

    def put_and_wait(self: Source, *arguments: Any) -> None:
        put(self, *arguments)
        both.wait(DEADLINE_S)

    Source.put_loop = put_and_wait  # type: ignore[assignment, method-assign]
    results.put(read(made if isinstance(made, millrace.DataLoader) else loader_of(made)))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("what", ["loader", "data set"])
def test_ranks_that_got_one_made_before_them(socket: str, hundred: Folder, what: str, method: str) -> None:
    ds = data_set(hundred.uri)
    made = loader_of(ds) if what == "loader" else ds
    context: Any = multiprocessing.get_context(method)
    both, results = context.Barrier(2), context.Queue()
    ranks = [context.Process(target=read_as_rank, args=(made, rank, both, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = [results.get(timeout=DEADLINE_S) for _ in ranks]
    for process in ranks:
        process.join(DEADLINE_S)
    assert len(found[0]) == len(found[1]) == 50
    assert sorted(found[0] + found[1]) == hundred.names


def read_by_workers(made: Any, results: Any) -> None:
    """As where torch.distributed was begun without these variables."""
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    how: dict[str, Any] = {"batch_size": 8, "num_workers": 1, "collate_fn": keep}
    for each in (made, copy.copy(made)):
        found = read(torch.utils.data.DataLoader(each, multiprocessing_context="fork", **how))
        results.put((len(each), len(found), through_pickle(each)._rank()))


def test_workers_of_a_process_that_got_one_pickled(
    socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no rank by itself, and neither are its workers: they have the rank of where it was pickled."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    context: Any = multiprocessing.get_context("forkserver")
    results = context.Queue()
    process = context.Process(target=read_by_workers, args=(data_set(hundred.uri), results))
    process.start()
    assert [results.get(timeout=DEADLINE_S) for _ in range(2)] == [(25, 25, (2, 4))] * 2
    process.join(DEADLINE_S)


def test_a_copy_in_a_process_has_the_rank_of_its_original(
    socket: str, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once there are no ranks any more."""
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    ds = data_set(hundred.uri)
    copies = [copied(ds) for copied in (copy.copy, copy.deepcopy, through_pickle)]
    assert [len(each) for each in copies] == [50] * 3
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert [len(each) for each in copies] == [100] * 3


def through_pickle(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_of_a_loader_moves_by_itself(
    socket: str, hundred: Folder, copied: Callable[[Any], Any], workers: int
) -> None:
    loader = loader_of(data_set(hundred.uri), workers)
    assert read(loader) == model_order(loader.dataset, 0, 0)
    other = copied(loader)
    other.set_epoch(5)
    mine, others = iter(loader), iter(other)
    assert read(mine) == model_order(loader.dataset, 0, 1)
    assert read(others) == model_order(loader.dataset, 0, 5)
