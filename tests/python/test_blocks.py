"""shuffle="block": the model's order for any number of workers, ranks and fetch workers; states; kills and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace
from tests.property.order_model import BlockOrder, deal
from tests.python.conftest import Folder, MakeFolder
from tests.python.helpers import keep, name_of
from tests.serve import start_supervisor, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores

BLOCK_BYTES, MIX = 6000, 3  # of objects of 1 to 3000 bytes: about four in a block
BLOCKS: dict[str, Any] = {"shuffle": "block", "block_bytes": BLOCK_BYTES, "mix_blocks": MIX}


def loader_of(uri: str, rank: int = 0, world: int = 1, workers: int = 0, **arguments: Any) -> millrace.DataLoader:
    ds = millrace.IterableDataset(
        uri, rank=rank, world_size=world, transform=name_of, **{**BLOCKS, "seed": 5, **arguments}
    )
    return millrace.DataLoader(ds, batch_size=8, collate_fn=keep, num_workers=workers)


def objects_of_a_block(sizes: list[int], block_bytes: int = BLOCK_BYTES) -> int:
    return max(1, block_bytes * len(sizes) // sum(sizes))


def model_names(dataset: Any, epoch: int = 0, seed: int = 5, block: int = 0, mix: int = MIX) -> list[str]:
    names, sizes = zip(*dataset.objects)
    digest = bytes.fromhex(dataset.digest)
    order = BlockOrder(len(names), seed, epoch, digest, block or objects_of_a_block(list(sizes)), mix)
    return [names[number] for number in order.objects]


def model_steps(loader: Any, world: int = 1, cursor: int = 0, tail: str = "short", **order: Any) -> list[Any]:
    """rank -> steps -> names."""
    names = model_names(loader.dataset, **order)
    steps = deal(len(names), world, 8, cursor, tail)
    return [[[names[p] for p in shares[rank]] for shares, _ in steps] for rank in range(world)]


@pytest.mark.random
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_order_is_the_models_for_any_number_of_workers(socket: str, hundred: Folder, workers: int) -> None:
    loader = loader_of(hundred.uri, workers=workers)
    for epoch in range(2):
        assert list(loader) == model_steps(loader, epoch=epoch)[0]


@pytest.mark.parametrize("fetch_workers", [1, 2, 4])
def test_order_is_the_models_for_any_number_of_fetch_workers(
    millrace_bin: Path, hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetch_workers: int
) -> None:
    config = f'[memory]\narena_bytes = "16MiB"\n[fetch]\nworkers = {fetch_workers}\n'
    started = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", config)
    try:
        monkeypatch.setenv("MILLRACE_SOCKET", str(started.socket))
        loader = loader_of(hundred.uri, workers=1)
        assert list(loader) == model_steps(loader)[0]
        assert len(started.workers("fetch")) == fetch_workers
    finally:
        started.stop()


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("count", [0, 1, 7, 35])
def test_tails(socket: str, folder: MakeFolder, count: int, tail: str) -> None:
    objects = folder(count)
    objects.root.mkdir(exist_ok=True)
    ranks = [loader_of(objects.uri, rank, 2, tail=tail) for rank in range(2)]
    want = model_steps(ranks[0], 2, tail=tail) if count and tail != "pad" else [[], []]
    if count and tail == "pad":
        names = model_names(ranks[0].dataset)
        steps = deal(count, 2, 8, 0, tail)
        want = [[[names[p] for p in shares[rank]] for shares, _ in steps] for rank in range(2)]
    assert [list(loader) for loader in ranks] == want


def test_a_mix_holds_whole_blocks(socket: str, hundred: Folder) -> None:
    """Not by the model: a mix is made of few blocks, and the order is neither the names' nor that of the last epoch."""
    loader = loader_of(hundred.uri)
    orders = [[hundred.names.index(name) for batch in loader for name in batch] for _ in range(2)]
    block = loader.state_dict()["block"]
    assert 3 <= block <= 5
    for order in orders:
        assert sorted(order) == list(range(100))
        first = order[: MIX * block - (block - 1)]  # a mix less what a short block may lack
        assert len({number // block for number in first}) <= MIX
        assert order != sorted(order)
    assert orders[0] != orders[1]


def test_defaults(socket: str, hundred: Folder) -> None:
    """4 MiB are more than all of it: one block, which is mixed."""
    ds = millrace.IterableDataset(hundred.uri, shuffle="block", transform=name_of)
    assert next(iter(ds.batches(100))) == model_names(ds, seed=0, block=100, mix=16)
    assert ds.state_dict() == {"digest": ds.digest, "seed": 0, "epoch": 0, "cursor": 100, "block": 100, "mix": 16} | {
        "shuffle": True
    }


def test_objects_that_are_larger_than_a_block(socket: str, hundred: Folder) -> None:
    loader = loader_of(hundred.uri, block_bytes=1)
    assert list(loader) == model_steps(loader, block=1)[0]


def test_empty_objects(socket: str, tmp_path: Path) -> None:
    for i in range(10):
        (tmp_path / f"{i}").touch()
    loader = loader_of(f"file://{tmp_path}/")
    assert list(loader) == model_steps(loader, block=10)[0]


def test_map_dataset(socket: str, hundred: Folder) -> None:
    ds = millrace.MapDataset(hundred.uri, transform=name_of)
    ranks = [
        millrace.DataLoader(
            ds, batch_size=8, collate_fn=keep, num_workers=2 * rank, rank=rank, world_size=2, seed=5, **BLOCKS
        )
        for rank in range(2)
    ]
    steps = [iter(loader) for loader in ranks]
    want = model_steps(ranks[0], 2)
    assert [[next(it) for _ in range(3)] for it in steps] == [rank[:3] for rank in want]
    state = ranks[1].state_dict()
    assert state["cursor"] == 48 and (state["block"], state["mix"]) == (objects_of_a_block(sizes_of(ds)), MIX)
    alone = loader_of(hundred.uri)
    alone.load_state_dict(state)  # the states of both kinds of data sets are the same
    assert list(alone) == model_steps(alone, cursor=48)[0]


def sizes_of(dataset: Any) -> list[int]:
    return [size for _, size in dataset.objects]


def test_in_a_bare_torch_loader(socket: str, hundred: Folder) -> None:
    import torch

    ds: Any = millrace.IterableDataset(hundred.uri, transform=name_of, batch_size=8, seed=5, **BLOCKS)
    loader: Any = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=2)
    names = [name for batch in loader for name in batch]
    assert names == model_names(ds)
    single = millrace.IterableDataset(hundred.uri, transform=name_of, seed=5, **BLOCKS)
    assert list(single) == model_names(single)


# ---- states ----


def stop_after(loader: Any, steps: int) -> tuple[list[str], dict[str, Any]]:
    batches = iter(loader)
    seen = [name for _ in range(steps) for name in next(batches)]
    return seen, json.loads(json.dumps(loader.state_dict()))


def test_the_blocks_of_a_state_count_as_its_seed_does(socket: str, hundred: Folder) -> None:
    """Whoever changes the options continues the epoch that was begun, also in workers that live on."""
    first = loader_of(hundred.uri)
    _, state = stop_after(first, 3)
    assert state.keys() == {"digest", "seed", "epoch", "cursor", "block", "mix", "shuffle"}
    assert len(json.dumps(state)) < 200
    block = state["block"]
    ds: Any = millrace.IterableDataset(
        hundred.uri, transform=name_of, shuffle="block", block_bytes=20000, mix_blocks=1, seed=9
    )
    other = millrace.DataLoader(ds, batch_size=8, collate_fn=keep, num_workers=2, persistent_workers=True)
    assert list(other) == model_steps(other, seed=9, block=objects_of_a_block(sizes_of(ds), 20000), mix=1)[0]
    other.load_state_dict(state)
    assert list(other) == model_steps(other, cursor=24)[0]
    assert other.state_dict() == {**state, "epoch": 1, "cursor": 0}
    assert list(other) == model_steps(other, epoch=1, block=block)[0]
    ds.load_state_dict(state)
    assert list(ds.batches(8)) == model_steps(other, cursor=24)[0]


def test_states_of_another_shuffle(socket: str, hundred: Folder) -> None:
    """A state without blocks (also one of an older millrace) goes on in the order that it is of, and in no other."""
    plain = loader_of(hundred.uri, shuffle=True, block_bytes=None, mix_blocks=None)
    blocks = loader_of(hundred.uri)
    _, old = stop_after(plain, 2)
    assert old.keys() == {"digest", "seed", "epoch", "cursor", "shuffle"}
    with pytest.raises(ValueError, match="the data set has shuffle='block' and the state has not"):
        blocks.load_state_dict(old)
    _, state = stop_after(blocks, 2)
    with pytest.raises(ValueError, match="the state has shuffle='block' and the data set has not"):
        plain.load_state_dict(state)
    blocks.load_state_dict({**old, "cursor": 0, "epoch": 4})  # nothing was given of this epoch yet
    assert list(blocks) == model_steps(blocks, epoch=4)[0]
    plain.load_state_dict({**state, "cursor": 0, "epoch": 4})
    assert plain.state_dict() == {**old, "cursor": 0, "epoch": 4}
    for change in ({"block": 0}, {"mix": 0}, {"block": 1 << 49}, {"mix": "3"}):
        with pytest.raises(ValueError, match="must be an integer from 1 to"):
            blocks.load_state_dict({**state, **change})
    with pytest.raises(ValueError, match="no 'mix'"):
        blocks.load_state_dict({key: value for key, value in state.items() if key != "mix"})


RANK = """
import json, sys, time
import millrace
from tests.python.test_blocks import loader_of
uri, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loader = loader_of(uri, rank, world, workers=rank)
for step, batch in enumerate(loader):
    print(json.dumps([batch, loader.state_dict()]), flush=True)
    if step == 3:
        time.sleep(1000)
"""


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("world", [1, 3])
def test_killed_and_resumed(socket: str, hundred: Folder, tmp_path: Path, world: int) -> None:
    """Two ranks die in the middle of an epoch: `world` ranks get exactly the rest, in the same order."""
    logs = [tmp_path / f"rank-{rank}" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as out:
            command = [sys.executable, "-c", RANK, hundred.uri, str(rank), "2"]
            ranks.append(subprocess.Popen(command, stdout=out, cwd=Path(__file__).parents[2], start_new_session=True))
    try:
        wait_for(lambda: all(len(lines_of(log)) == 4 for log in logs), "the ranks never got so far")
    finally:
        for each in ranks:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    given = [lines_of(log) for log in logs]
    states = [steps[2][1] for steps in given]  # the last that was saved: a step before the kill
    assert states[0] == states[1] and states[0]["cursor"] == 48
    seen = [name for steps in given for batch, _ in steps[:3] for name in batch]
    loaders = [loader_of(hundred.uri, rank, world, workers=rank) for rank in range(world)]
    for loader in loaders:
        loader.load_state_dict(states[0])
    rest = [list(loader) for loader in loaders]
    assert rest == model_steps(loaders[0], world, cursor=48)
    assert sorted(seen + [name for steps in rest for batch in steps for name in batch]) == sorted(hundred.names)
