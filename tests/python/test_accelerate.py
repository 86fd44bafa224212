"""Hugging Face Accelerate: a prepared millrace.DataLoader stays what it is, and nothing divides a rank's part again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import torch.utils.data
from accelerate.state import AcceleratorState, PartialState
from torch.distributed.device_mesh import init_device_mesh

import millrace
import millrace.awsio.python.lib.io.s3.s3dataset as awsio
from millrace.s3torchconnector import S3IterableDataset
from tests.python import ranks
from tests.python.conftest import Folder

COUNT, BATCH = 100, 8
ALL = list(range(COUNT))


def number(lease: Any) -> int:
    return int.from_bytes(bytes(lease)[:4], "little")


def data_set(uri: str, **more: Any) -> Any:
    return millrace.IterableDataset(uri, transform=number, shuffle=True, **more)


def prepared(uri: str, **more: Any) -> tuple[accelerate.Accelerator, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    made = millrace.DataLoader(data_set(uri), batch_size=BATCH, **more)
    loader = accelerator.prepare(made)
    assert loader is made and accelerator.prepare(loader) is made and len(loader) == 7
    return accelerator, loader


def gathered(accelerator: accelerate.Accelerator, loader: Any, steps: int | None = None) -> list[int]:
    found = []
    for step, batch in enumerate(loader, 1):
        found += accelerator.gather_for_metrics(batch).tolist()
        if step == steps:
            break
    return found


# ---- what two ranks do ----


def train(uri: str, folder: str) -> None:
    model = torch.nn.Linear(1, 1)
    for more in ({"num_workers": 2, "tail": "pad"}, {"tail": "short"}):
        accelerator, loader = prepared(uri, **more)
        synced, last, found = [], [], []
        for batch in loader:
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            last.append(accelerator.gradient_state.end_of_dataloader)
            found += accelerator.gather_for_metrics(batch).tolist()
        assert sorted(found) == ALL, found  # and none of the padding
        assert last == [False] * 6 + [True]
        assert synced == [False, False, False, True, False, False, True]
        assert not accelerator.gradient_state.in_dataloader
    of_map = millrace.DataLoader(millrace.MapDataset(uri, transform=number), BATCH, shuffle=True, tail="pad")
    assert accelerator.prepare(of_map) is of_map and sorted(gathered(accelerator, of_map)) == ALL

    accelerator, loader = prepared(uri)
    begun = gathered(accelerator, loader, 3)
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # each rank writes the file of the loaders' states
    accelerator, loader = prepared(uri)
    accelerator.load_state(folder)
    assert sorted(begun + gathered(accelerator, loader)) == ALL


def divide(uri: str) -> None:
    for dispatch in (None, False):
        configuration = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
        whole = torch.utils.data.DataLoader(data_set(uri, rank=0, world_size=1), batch_size=BATCH)
        assert set(gathered(accelerator, accelerator.prepare(whole))) == set(ALL)
        part = torch.utils.data.DataLoader(data_set(uri), batch_size=BATCH)
        with pytest.raises(millrace.Error, match=r"divides the samples among the ranks.* each of the 2 ranks"):
            next(iter(accelerator.prepare(part)))


def share_a_layer(uri: str) -> None:
    accelerator, loader = prepared(uri)
    AcceleratorState().device_mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_shard", "tp"))
    with pytest.raises(ValueError, match=r"ranks along tp.* give rank= and world_size="):  # the default group's are too
        iter(loader)
    same = accelerator.prepare(millrace.DataLoader(data_set(uri, rank=0, world_size=1), batch_size=BATCH))
    assert sorted(number for batch in same for number in batch.tolist()) == ALL


def two_ranks(uri: str, folder: str) -> None:
    train(uri, folder)
    divide(uri)
    share_a_layer(uri)


def test_two_ranks(socket: str, hundred: Folder, tmp_path: Path) -> None:
    ranks.good(2, two_ranks, hundred.uri, str(tmp_path / "state"))


# ---- one rank, which has heard of another: the first to fail leaves the others waiting ----


def one_rank(uri: str) -> None:
    PartialState(cpu=True).num_processes = 2
    for context in ("fork", "spawn"):
        part = data_set(uri, rank=0, world_size=2)
        loader = torch.utils.data.DataLoader(part, BATCH, num_workers=1, multiprocessing_context=context)
        for dispatch in (True, False):
            with pytest.raises(millrace.Error, match="each of the 2 ranks"):
                next(
                    iter(
                        accelerate.data_loader.prepare_data_loader(
                            loader, put_on_device=True, dispatch_batches=dispatch
                        )
                    )
                )
    named = S3IterableDataset.from_objects(["s3://bucket/a"], region="us-east-1", enable_sharding=True)
    named._world_size = 2
    plugged = awsio.S3IterableDataset.__new__(awsio.S3IterableDataset)
    plugged.__dict__.update(dist=True, rank=0, world_size=2)
    for part in (named, plugged):
        for more in ({}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
            loader = torch.utils.data.DataLoader(part, BATCH, **more)  # type: ignore[arg-type]
            with pytest.raises(millrace.Error, match="each of the 2 ranks"):
                next(iter(accelerate.data_loader.prepare_data_loader(loader, put_on_device=True)))
    for dataset in (millrace.MapDataset(uri), millrace.IterableDataset(uri)):
        loader = millrace.DataLoader(dataset, BATCH)
        assert not loader._is_accelerate_prepared and not loader._is_prepared  # as a debugger asks
        with pytest.raises(ValueError, match="load_state_dict"):
            accelerate.skip_first_batches(loader, 2)
        assert loader.dataset is dataset


def test_workers_and_skipped_batches(socket: str, hundred: Folder) -> None:
    ranks.good(1, one_rank, hundred.uri)
