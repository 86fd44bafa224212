"""Training with checkpoints of every kind of state, in ranks.run(): what a killed job's next run must continue."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

import millrace.checkpoint
import millrace.dcp
from tests.python import ranks

# Without types, as in ranks.
dist: Any = torch.distributed
dcp: Any = torch.distributed.checkpoint
fsdp: Any = torch.distributed.fsdp
tensors: Any = sharded_tensor
EVERY = 2  # steps between two saves


def writer(names: str, place: str) -> Any:
    """Of millrace.dcp, or under the reference's names."""
    if names == "dcp":
        return millrace.dcp.StorageWriter(place)
    from millrace.dataflux.lightning import GCSDistributedWriter

    return GCSDistributedWriter(place, "a-project")


def reader(names: str, place: str) -> Any:
    if names == "dcp":
        return millrace.dcp.StorageReader(place)
    from millrace.dataflux.lightning import GCSDistributedReader

    return GCSDistributedReader(place, "a-project")


class Trainer:
    """kind: plain (DDP), dtensor (FSDP2) or sharded (FSDP of ShardedTensors)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model, _ = ranks.model_and_optimizer()
        if kind == "plain":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        elif kind == "dtensor":
            for layer in self.model:
                fsdp.fully_shard(layer, mesh=ranks.mesh())
            fsdp.fully_shard(self.model, mesh=ranks.mesh())
        else:
            self.model = fsdp.FullyShardedDataParallel(self.model, device_id=torch.device("cpu"), use_orig_params=True)
            fsdp.FullyShardedDataParallel.set_state_dict_type(self.model, fsdp.StateDictType.SHARDED_STATE_DICT)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, number: int) -> float:
        return ranks.train_step(self.model, self.optimizer, number)

    def state(self) -> dict[str, Any]:
        if self.kind == "sharded":
            optimizer = fsdp.FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer)
            return {"model": self.model.state_dict(), "optimizer": optimizer}
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, names: str, place: str) -> None:
        if self.kind == "sharded":
            state = {"model": self.model.state_dict()}
            dcp.load(state, storage_reader=reader(names, place))
            self.model.load_state_dict(state["model"])
            saved: Any = load_sharded_optimizer_state_dict(state["model"], "optimizer", reader(names, place))
            flat = fsdp.FullyShardedDataParallel.optim_state_dict_to_load(
                self.model, self.optimizer, saved["optimizer"]
            )
            self.optimizer.load_state_dict(flat)
            return
        state = self.state()
        dcp.load(state, storage_reader=reader(names, place))
        states.set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def train_until_killed(kind: str, names: str, base: str, steps: int) -> None:
    """Saves both ways every second step, and dies of SIGKILL behind the last step, with a save under way."""
    trainer, pending = Trainer(kind), None
    group = dist.new_group(backend="gloo")
    for number in range(1, steps + 1):
        trainer.step(number)
        if number % EVERY == 0:
            dcp.save(trainer.state(), storage_writer=writer(names, f"{base}/sync-{number}"))
            if pending is not None:
                pending.result()
            place = f"{base}/async-{number}"
            pending = dcp.async_save(trainer.state(), storage_writer=writer(names, place), process_group=group)
    os.kill(os.getpid(), signal.SIGKILL)


def continue_training(kind: str, names: str, base: str, steps: int) -> dict[str, Any]:
    """The losses of a run that nothing stops, and of those that continue from the last whole checkpoint of each way."""
    found = [uri for uri in millrace.checkpoint.list(base) if uri.endswith("/.metadata")]
    whole = Trainer(kind)
    losses = {number: whole.step(number) for number in range(1, steps + 1)}
    results: dict[str, Any] = {}
    for way in ("sync", "async"):
        last = max(int(uri.split("/")[-2].partition("-")[2]) for uri in found if f"/{way}-" in uri)
        trainer = Trainer(kind)
        trainer.load(names, f"{base}/{way}-{last}")
        results[way] = last, [trainer.step(number) == losses[number] for number in range(last + 1, steps + 1)]
    return results


def async_save_of_changing_state(names: str, base: str, in_process: bool) -> list[bool]:
    """Plain tensors, DTensors and ShardedTensors that are changed as soon as async_save has returned."""

    def make(of: Any) -> dict[str, Any]:
        spec = ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(dist.get_world_size())])
        return {
            "sharded": of(spec, 10, 4),
            "dtensors": ranks.sharded(3)["model"],
            "plain": torch.arange(5.0),
            "scalar": torch.tensor(2.0),
            "view": torch.arange(20.0).reshape(4, 5).t(),
            "list": [torch.ones(2), (1, torch.nn.Parameter(torch.ones(3)))],
            "text": "of its own",
        }

    def parts(state: dict[str, Any]) -> list[torch.Tensor]:
        found = [shard.tensor for shard in state["sharded"].local_shards()]
        found += [one.to_local() for one in state["dtensors"].values()]
        return [*found, state["plain"], state["scalar"], state["view"], state["list"][0], state["list"][1][1].detach()]

    options: dict[str, Any] = {}
    if in_process:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    state = make(tensors.rand)
    was = copy.deepcopy(parts(state))
    group = dist.new_group(backend="gloo")
    pending = dcp.async_save(state, storage_writer=writer(names, base), process_group=group, **options)
    for part in parts(state):
        part.add_(100)
    pending.result()
    loaded = make(tensors.zeros)
    dcp.load(loaded, storage_reader=reader(names, base))
    return [torch.equal(one, other) for one, other in zip(parts(loaded), was)]
