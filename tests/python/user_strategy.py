"""An FSDP strategy as users of gcs-torch-dataflux write theirs: over the reference's names for torch's checkpoints.

It uses what those offer, and knows nothing of millrace: the path as a Path, `reader.fs`, torch's async_save, a plug-in
for what is neither model nor optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from millrace.dataflux.lightning import DatafluxLightningCheckpoint
from millrace.dataflux.lightning.gcs_filesystem import GCSDistributedReader, GCSDistributedWriter


class UserStrategy(pl.strategies.FSDPStrategy):  # type: ignore[misc]
    def __init__(self, project_name: str, storage_client: Any, use_async: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint_io = DatafluxLightningCheckpoint(project_name, storage_client)
        self.project_name, self.use_async = project_name, use_async
        self.group = torch.distributed.new_group(backend="gloo")
        self.pending: Any = None

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        self.wait()
        path = Path(self.broadcast(filepath))
        state = {"model": checkpoint.pop("state_dict")}
        for number, optimizer in enumerate(checkpoint.pop("optimizer_states")):
            state[f"optimizer_{number}"] = optimizer
        writer = GCSDistributedWriter(path, self.project_name)
        options: dict[str, Any] = {"checkpoint_id": path, "storage_writer": writer, "process_group": self.group}
        if self.use_async:
            self.pending = dcp.async_save(state, **options)
        else:
            dcp.save(state, **options)
        if self.global_rank == 0:
            self.checkpoint_io.save_checkpoint(checkpoint, path / "meta.pt")

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        reader = GCSDistributedReader(Path(self.broadcast(checkpoint_path)), self.project_name)
        model: Any = self.model
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict()}
            dcp.load(state, storage_reader=reader)
            model.load_state_dict(state["model"])
            for number, optimizer in enumerate(self.optimizers):
                name = f"optimizer_{number}"
                saved = load_sharded_optimizer_state_dict(state["model"], name, reader)[name]
                flat = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, saved)
                optimizer.load_state_dict(flat)
        with reader.fs.create_stream(path=reader.path / "meta.pt", mode="rb") as stream:
            rest: dict[str, Any] = torch.load(stream)
        return rest

    def teardown(self) -> None:
        self.wait()
        super().teardown()

    def wait(self) -> None:
        if self.pending is not None:
            self.pending.result()
