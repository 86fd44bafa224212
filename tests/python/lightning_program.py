"""Trains a small network with Lightning: `lightning_program.py DATA CHECKPOINTS [--resume] [--hold STEP] [--keep]`.

Prints "STEP LOSS" for each step. After step STEP of --hold it waits until it is killed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch

try:
    import lightning.pytorch as pl
except ImportError:  # the oldest version is tested as pytorch_lightning
    import pytorch_lightning as pl

import millrace
import millrace.checkpoint
import millrace.lightning


def decode(lease: millrace.Lease) -> torch.Tensor:
    return torch.frombuffer(bytearray(lease)[:16], dtype=torch.uint8).float() / 255


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, hold: int) -> None:
        super().__init__()
        self.hold = hold
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 16))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch), batch)
        print(self.global_step + 1, f"{loss.item():.9f}", flush=True)
        if self.global_step + 1 == self.hold:
            sys.stdin.read()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Data(pl.LightningDataModule):  # type: ignore[misc]
    """The loader's position is part of the checkpoint: Lightning 2.0 does not ask the loader, as later ones do."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        dataset = millrace.MapDataset(uri, transform=decode)
        self.loader = millrace.lightning.DataLoader(dataset, batch_size=2, shuffle=True, seed=3)

    def train_dataloader(self) -> Any:
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)


def newest(folder: str) -> str:
    found = millrace.checkpoint.list(f"{folder}/")
    return max(found, key=lambda uri: int(uri.rpartition("=")[2].partition(".")[0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("checkpoints")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--hold", type=int, default=0)
    parser.add_argument("--no-wait", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[millrace.lightning.CheckpointIO(wait=not arguments.no_wait)],
        callbacks=[pl.callbacks.ModelCheckpoint(arguments.checkpoints, save_top_k=-1, every_n_train_steps=5)],
    )
    trainer.fit(
        Model(arguments.hold),
        datamodule=Data(arguments.data),
        ckpt_path=newest(arguments.checkpoints) if arguments.resume else None,
    )


if __name__ == "__main__":
    main()
