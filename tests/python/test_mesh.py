"""Which ranks there are, by meshes and launchers."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # makes the backend known

import millrace
from millrace import _agree, _mesh
from tests.python.conftest import Folder


@pytest.fixture
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dist.init_process_group("fake", store=torch._C._distributed_c10d.HashStore(), rank=1, world_size=4)
    monkeypatch.setattr(_agree, "_agreed", {})
    yield
    dist.destroy_process_group()


def loaders(uri: str, **ranks: Any) -> list[Any]:
    iterable = millrace.IterableDataset(uri, **ranks)
    of_map = millrace.DataLoader(millrace.MapDataset(uri), batch_size=5, **ranks)
    return [iterable, iterable.batches(5), millrace.DataLoader(iterable, batch_size=5), of_map]


def refused(uri: str, names: str) -> None:
    for loader in loaders(uri):
        with pytest.raises(ValueError, match=f"ranks along {names} .* each of 4 ranks .* give rank= and world_size="):
            iter(loader)


def test_ranks_that_share_a_layer(socket: str, hundred: Folder, four_ranks: None) -> None:
    assert all(iter(loader) for loader in loaders(hundred.uri))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    refused(hundred.uri, "tp")
    both = loaders(hundred.uri, rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size())
    assert all(iter(loader) for loader in both)


def test_ranks_of_megatron(socket: str, hundred: Folder, four_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = types.ModuleType("megatron.core.parallel_state")
    sizes = {"tensor_model": 2, "pipeline_model": 2, "context": 1}
    for name, size in sizes.items():
        setattr(state, f"get_{name}_parallel_world_size", lambda size=size: size)
    state.model_parallel_is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    assert all(iter(loader) for loader in loaders(hundred.uri))
    state.model_parallel_is_initialized = lambda: True
    refused(hundred.uri, "pipeline, tensor")


@pytest.mark.parametrize(
    ("environment", "warns"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"WORLD_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"SLURM_STEP_NUM_TASKS": "8", "RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"PMI_SIZE": "4", "given": "x"}, False),
    ],
)
def test_ranks_that_nobody_has_told_of(
    socket: str,
    hundred: Folder,
    environment: dict[str, str],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_mesh, "_has_warned", False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ranks = {"rank": 0, "world_size": 1} if "given" in environment else {}
    with caplog.at_level(logging.WARNING, "millrace"):
        for loader in loaders(hundred.uri, **ranks):
            iter(loader)
    assert caplog.text.count("this process seems to be one of several") == warns
