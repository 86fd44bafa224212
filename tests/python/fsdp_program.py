"""Trains with FSDPStrategy on the CPU, in a rank of torchrun: `fsdp_program.py CHECKPOINTS`.

6 steps; 4 steps that are saved asynchronously; from there to the 6th; a save that fails. Rank 0 says what happens.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from millrace.dataflux.lightning import DatafluxFSDPStrategy
from millrace.lightning import FSDPStrategy


def say(*words: Any) -> None:
    if torch.distributed.get_rank() == 0:
        print("|", *words, flush=True)


def on_cpu(self: Any, model: Any) -> Any:
    """What Lightning's does, which does not name the device where it is the CPU."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = self.net(batch).square().mean()
        say(self.global_step + 1, f"{loss.item():.7f}")
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fit(strategy: Any, folder: str, steps: int, resume: str | None = None) -> Any:
    torch.manual_seed(1)
    data = [torch.rand(8)] * 24  # what a resumed run is given is the same
    type(strategy)._setup_model = on_cpu
    saves = pl.callbacks.ModelCheckpoint(folder, save_top_k=1, every_n_train_steps=2)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saves],
    )
    loader: Any = torch.utils.data.DataLoader(data, batch_size=1)  # type: ignore[arg-type]
    trainer.fit(Model(), loader, ckpt_path=resume)
    return trainer


def main() -> None:
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    say("whole", fit(FSDPStrategy(), f"{folder}/whole", 6).global_step)
    trainer = fit(DatafluxFSDPStrategy("a-project", None, use_async=True), f"{folder}/part", 4)
    say("part", trainer.global_step)
    trainer.save_checkpoint(f"{folder}/after")
    trainer = fit(FSDPStrategy(), f"{folder}/resumed", 6, f"{folder}/after")
    say("resumed", trainer.global_step)
    try:
        trainer.save_checkpoint("gs://no-such-bucket/lost")
    except BaseException as error:  # which torch's CheckpointException is
        say("failed", str(error).replace("\n", " "))
    torch.distributed.destroy_process_group()  # else gloo's threads may outlive what they use, and end it by abort()


if __name__ == "__main__":
    main()
