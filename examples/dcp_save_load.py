"""Trains a small sharded network (FSDP2) and saves it as it goes, asynchronously, with torch.distributed.checkpoint.

    millrace run -- torchrun --nproc-per-node 4 examples/dcp_save_load.py gs://bucket/run1 --steps 20
    millrace run -- torchrun --nproc-per-node 2 examples/dcp_save_load.py gs://bucket/run1 --steps 40

Started again it continues from the last whole checkpoint, with any number of ranks. Needs torch 2.6 or later.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import millrace.checkpoint
import millrace.dcp

BATCH = 24  # of all ranks together
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # names that do not depend on the number of ranks


class Training:
    """The network and its optimizer, sharded over the ranks; a torch Stateful."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, number: int) -> float:
        """One step over the batch of that number. Returns the loss over all ranks."""
        data = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(number))
        mine = data[dist.get_rank() :: dist.get_world_size()]
        loss = (self.model(mine) - mine.prod(1, keepdim=True).sin()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total / dist.get_world_size())

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=FLAT)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=FLAT,
        )


def last_step(uri: str) -> int | None:
    """The last checkpoint that is whole: one without `.metadata` was never finished."""
    found = [name.split("/")[-2] for name in millrace.checkpoint.list(uri) if name.endswith("/.metadata")]
    return max((int(name.removeprefix("step-")) for name in found), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("uri", help="where the checkpoints go: gs://bucket/run1, or a folder")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    # The checkpoints' collectives run in another thread than the training's: they need a group of their own.
    group: Any = dist.new_group(backend="gloo")
    training = Training()
    state: dict[str, Any] = {"training": training, "step": 0}
    last = [last_step(arguments.uri)]
    dist.broadcast_object_list(last)  # every rank has the same answer
    if last[0] is not None:
        dcp.load(state, checkpoint_id=f"{arguments.uri}/step-{last[0]}", storage_reader=millrace.dcp.StorageReader())

    writer = millrace.dcp.StorageWriter()  # one for all saves
    pending: Future[Any] | None = None
    for step in range(state["step"], arguments.steps):
        loss = training.step(step)
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss:.6f}", flush=True)
        if (step + 1) % arguments.every == 0:
            if pending is not None:
                pending.result()  # one at a time; raises the save's failure
            place = f"{arguments.uri}/step-{step + 1}"
            response = dcp.async_save(
                {"training": training, "step": step + 1},
                checkpoint_id=place,
                storage_writer=writer,
                process_group=group,
            )
            pending = response if isinstance(response, Future) else response.upload_completion
    if pending is not None:
        pending.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
