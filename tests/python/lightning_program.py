"""Trains a small network with Lightning, in a test or as a program: `lightning_program.py DATA CHECKPOINTS STEP`.

The program prints "STEP LOSS" for each step, and waits in that one until it is killed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
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
    def __init__(self, say: Callable[[int, str], None]) -> None:
        super().__init__()
        self.say = say
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 16))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch), batch)
        self.say(self.global_step + 1, f"{loss.item():.9f}")
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


def train(data: str, folder: str, say: Callable[[int, str], None], resume: bool = False, wait: bool = True) -> None:
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[millrace.lightning.CheckpointIO(wait=wait)],
        callbacks=[pl.callbacks.ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=5)],
    )
    trainer.fit(Model(say), datamodule=Data(data), ckpt_path=newest(folder) if resume else None)


def main() -> None:
    warnings.simplefilter("ignore")
    data, folder, hold = sys.argv[1:]

    def say(step: int, loss: str) -> None:
        print(step, loss, flush=True)
        if step == int(hold):
            sys.stdin.read()

    train(data, folder, say, wait=False)


if __name__ == "__main__":
    main()
