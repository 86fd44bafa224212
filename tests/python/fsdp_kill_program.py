"""Trains with an FSDP strategy on the CPU, in a rank, and may be killed in the middle.

    fsdp_kill_program.py MODULE:CLASS FOLDER STEPS [async] [dtensor] [full] [kill=STEP] [resume=CHECKPOINT]
        [meet=FILE]

Saves into FOLDER every second step. Rank 0 says each step and its loss. The class takes the arguments of
DatafluxFSDPStrategy, and may be in a file beside the program or on PYTHONPATH. The ranks meet as torchrun has them
meet, or by a FILE that is not there yet.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel


def on_cpu(self: Any, model: Any) -> Any:
    """What Lightning's does, which does not name the device where it is the CPU."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, kill: int) -> None:
        super().__init__()
        self.net: Any = None
        self.kill = kill

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        if self.global_step + 1 == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.net(batch).square().mean()
        if self.global_rank == 0:
            print("|", self.global_step + 1, f"{loss.item():.7f}", flush=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.trainer.model.parameters(), lr=0.05)


def strategy(name: str, use_async: bool, **more: Any) -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    module, _, found = name.partition(":")
    cls: Any = getattr(importlib.import_module(module), found)

    class OnCpu(cls):  # type: ignore[misc]
        _setup_model = on_cpu

        def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> Any:
            if "weights_only" in inspect.signature(cls.load_checkpoint).parameters:
                return super().load_checkpoint(checkpoint_path, weights_only)
            return super().load_checkpoint(checkpoint_path)  # of a time when Lightning had no such argument

    return OnCpu("a-project", None, use_async=use_async, use_orig_params=True, **more)


def main() -> None:
    warnings.simplefilter("ignore")
    name, folder, steps, *more = sys.argv[1:]
    options = dict(one.partition("=")[::2] for one in more)
    # A rank whose others were killed does not wait for half an hour.
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        "gloo",
        f"file://{options['meet']}" if "meet" in options else "env://",
        timeout=datetime.timedelta(minutes=4),
        rank=rank,
        world_size=world,
    )
    more_arguments: dict[str, Any] = {"state_dict_type": "full" if "full" in options else "sharded"}
    if "dtensor" in options:
        more_arguments["device_mesh"] = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    data = [torch.rand(8)] * 8 * world  # what a resumed run is given is the same
    trainer = pl.Trainer(
        max_steps=int(steps),
        accelerator="cpu",
        devices=world,
        strategy=strategy(name, "async" in options, **more_arguments),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[pl.callbacks.ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=2)],
    )
    loader: Any = torch.utils.data.DataLoader(data, batch_size=1)  # type: ignore[arg-type]
    trainer.fit(Model(int(options.get("kill", 0))), loader, ckpt_path=options.get("resume"))


if __name__ == "__main__":
    main()
