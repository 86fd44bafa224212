"""Which ranks there are: those of a mesh that need the same samples, and those of which nobody has told."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from . import _torch

log = logging.getLogger("millrace")
_has_warned = False
# How many processes a launcher has started: Slurm's steps, MPI's.
_LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")

_SHARING = {"tp", "tensor", "tensor_parallel", "cp", "context", "context_parallel", "pp", "pipe", "pipeline"}
_SHARING |= {"pipeline_parallel", "model_parallel"}


def check(rank: tuple[int, int], given: tuple[int | None, int | None]) -> None:
    """ValueError if ranks that share a layer, a sequence or a batch would each read a part of their own. Warns, once,
    where this process seems to be one of several and reads everything. given: the arguments, which decide. To be
    called as an iteration begins."""
    if given != (None, None) or _torch.worker() is not None:
        return
    if rank[1] == 1:
        _warn_of_others()
        return
    names = sorted({name for name, size in _dimensions() if size > 1 and name in _SHARING})
    if names:
        raise ValueError(
            f"ranks along {', '.join(names)} of the job's mesh need the same samples, and each of {rank[1]} ranks "
            "would read its own: give rank= and world_size= of the ranks that are to read different ones, such as "
            'rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size() (docs/multi-node.md)'
        )


def _warn_of_others() -> None:
    global _has_warned
    sizes = {name: os.environ.get(name, "") for name in (*_LAUNCHERS, "WORLD_SIZE")}
    if os.environ.get("RANK"):
        return  # of a job of one
    told = [f"{name}={size}" for name, size in sizes.items() if size.isdecimal() and int(size) > 1]
    if told and not _has_warned:
        _has_warned = True
        log.warning(
            "%s: this process seems to be one of several, and reads all samples, as there is neither an initialised "
            "torch.distributed nor RANK with WORLD_SIZE; rank= and world_size= say which it is (docs/multi-node.md)",
            told[0],
        )


def _dimensions() -> Iterator[tuple[str, int]]:
    """Name and size of what the job has, by torch's process groups, Accelerate and Megatron. Some may come twice."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is not None and distributed.is_initialized():
        for group in distributed._world.pg_map:  # a mesh's are named after its dimensions, since torch 2.4
            yield str(getattr(group, "group_desc", "")).removeprefix("mesh_"), group.size()
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.AcceleratorState._shared_state:
        mesh: Any = getattr(accelerate.AcceleratorState(), "device_mesh", None)
        for at, name in enumerate(() if mesh is None else mesh.mesh_dim_names or ()):
            yield name, mesh.size(at)
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None and megatron.model_parallel_is_initialized():
        yield "tensor", megatron.get_tensor_model_parallel_world_size()
        yield "pipeline", megatron.get_pipeline_model_parallel_world_size()
        yield "context", megatron.get_context_parallel_world_size()
