"""An epoch over real files through an object store: every object once, right bytes, one order, also under SIGKILLs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, start_devstore
from tests.e2e.common import (
    Seen,
    finish_ranks,
    icon_files,
    make_bucket,
    run_ranks,
    start_ranks,
)
from tests.serve import Supervisor, start_supervisor, strike

ICONS = 6296
FEW = "22x22/"  # a part of them, where all would show no more

pytestmark = pytest.mark.timeout(600)  # each starts up to eight processes that import torch


@pytest.fixture(scope="module")
def icons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    root = tmp_path_factory.mktemp("store")
    digests = make_bucket(root, icon_files())
    assert len(digests) == ICONS
    server = start_devstore("--root", root)
    yield server, digests
    server.stop()


@pytest.fixture
def one(icons: tuple[Server, Any], tmp_path: Path, millrace_bin: Path) -> Iterator[Supervisor]:
    started = start_supervisor(
        millrace_bin, tmp_path, icons[0].url, "[fetch]\nworkers = 2\n[memory]\narena_bytes = '16MiB'\n"
    )
    yield started
    assert started.stop() == 0


def few(icons: tuple[Server, dict[str, str]]) -> dict[str, str]:
    return {name: digest for name, digest in icons[1].items() if name.startswith(FEW)}


def check_complete(ranks: list[Seen], digests: dict[str, str]) -> None:
    samples = [sample for rank in ranks for sample in rank.samples]
    assert len(samples) == len(digests)
    assert dict(samples) == digests
    assert len({len(rank.epochs[0]) for rank in ranks}) == 1, "each rank has the same number of steps"
    assert [rank.ends[0]["len"] for rank in ranks] == [len(rank.epochs[0]) for rank in ranks]


def global_order(ranks: list[Seen]) -> list[list[str]]:
    steps = zip(*(rank.epochs[0] for rank in ranks))
    return [[name for share in step for name, _ in share] for step in steps]


def test_two_ranks_two_workers(icons: tuple[Server, dict[str, str]], tmp_path: Path, millrace_bin: Path) -> None:
    """Complete and right with 1, 2 and 4 fetch workers, and the same order with each."""
    orders = []
    for workers in (1, 2, 4):
        supervisor = start_supervisor(millrace_bin, tmp_path, icons[0].url, f"[fetch]\nworkers = {workers}\n")
        try:
            ranks = run_ranks(supervisor, tmp_path, 2, workers=2, seed=3)
        finally:
            assert supervisor.stop() == 0
        check_complete(ranks, icons[1])
        orders.append(global_order(ranks))
    assert orders[0] == orders[1] == orders[2]
    names = [name for step in orders[0] for name in step]
    assert names != sorted(names)


def test_same_order_for_any_number_of_loader_workers(
    one: Supervisor, icons: tuple[Server, dict[str, str]], tmp_path: Path
) -> None:
    orders = []
    for workers in (0, 1, 3):
        ranks = run_ranks(one, tmp_path, 2, uri=f"gs://icons/{FEW}", workers=workers, seed=3, batch=64)
        check_complete(ranks, few(icons))
        orders.append(global_order(ranks))
    assert orders[0] == orders[1] == orders[2]
    again = run_ranks(one, tmp_path, 2, uri=f"gs://icons/{FEW}", workers=1, seed=4, batch=64)
    assert global_order(again) != orders[0], "another seed, another order"


@pytest.mark.random
def test_fetch_workers_killed_again_and_again(
    one: Supervisor, icons: tuple[Server, dict[str, str]], tmp_path: Path
) -> None:
    """The next one is killed when the ranks have been given more since the last; they wait for one every 20 steps."""
    kills = seen = 0
    gate = tmp_path / "gate"
    gate.touch()
    ranks = start_ranks(one, tmp_path, 2, {"workers": 2, "seed": 5, "gate": str(gate)})
    while any(rank.runs() for rank in ranks):
        time.sleep(0.05)
        given = sum(rank.out.stat().st_size for rank in ranks if rank.out.exists())
        victims = one.workers("fetch") if given > seen else []
        if victims and strike(victims[kills % len(victims)]):
            kills, seen = kills + 1, given
            gate.write_bytes(bytes(kills))
    check_complete(finish_ranks(ranks), icons[1])
    assert kills >= 3


@pytest.mark.parametrize("world", [1, 3])
def test_resume_on_another_world(
    one: Supervisor, icons: tuple[Server, dict[str, str]], tmp_path: Path, world: int
) -> None:
    before = run_ranks(one, tmp_path, 2, workers=2, seed=6, stop_after=37)
    state = before[0].ends[0]["state"]
    assert state == before[1].ends[0]["state"], "any rank's state serves all"
    after = run_ranks(one, tmp_path, world, workers=2, seed=6, state=state)
    first = {name for rank in before for name, _ in rank.samples}
    rest = [name for rank in after for name, _ in rank.samples]
    assert len(first) == 2 * 37 * 32
    assert len(rest) == len(set(rest))
    missing = set(icons[1]) - first - set(rest)
    assert not first & set(rest)
    assert len(missing) < world, "fewer left than ranks are left out; nothing else"


def test_persistent_workers_see_each_epoch(
    one: Supervisor, icons: tuple[Server, dict[str, str]], tmp_path: Path
) -> None:
    orders = []
    for _ in range(2):
        ranks = run_ranks(
            one, tmp_path, 2, uri=f"gs://icons/{FEW}", workers=2, seed=7, epochs=3, persistent=True, batch=64
        )
        epochs = []
        for epoch in range(3):
            names = [name for rank in ranks for step in rank.epochs[epoch] for name, _ in step]
            assert sorted(names) == sorted(few(icons))
            epochs.append(names)
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        orders.append(epochs)
    assert orders[0] == orders[1]
