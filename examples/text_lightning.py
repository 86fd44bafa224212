"""Trains a small language model with Lightning: text comes from a bucket, checkpoints go there, a killed run continues.

    python examples/text_lightning.py make out/text/bucket/code          # or put text files of your own there
    millrace-devstore --root out/text --listen 127.0.0.1:9000 &
    export STORAGE_EMULATOR_HOST=http://127.0.0.1:9000
    python examples/text_lightning.py train gs://bucket/code/ gs://bucket/run1 --epochs 3

Kill it and start it again, with the same command: it continues from the newest checkpoint, in the middle of the epoch,
with the batches that it has not had. `make` cuts Python's own standard library into objects of 2,000 bytes; the network
reads bytes and guesses the next one. docs/checkpoints.md says what each part does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

import millrace
import millrace.lightning

LENGTH = 256  # bytes of a sample, and one more that is to be guessed


def make(folder: Path, count: int) -> None:
    """Writes `count` pieces of the standard library."""
    folder.mkdir(parents=True, exist_ok=True)
    text = b"".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py")))
    for number in range(count):
        (folder / f"{number:05}.txt").write_bytes(text[2000 * number :][:2000])


def decode(lease: millrace.Lease) -> torch.Tensor:
    """One object -> the first of its bytes. Runs in the DataLoader workers."""
    data = bytes(lease)[: LENGTH + 1].ljust(LENGTH + 1)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


class Model(pl.LightningModule):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.bytes = nn.Embedding(256, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.guess = nn.Linear(width, 256)
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        states, _ = self.memory(self.bytes(batch[:, :-1]))
        loss = nn.functional.cross_entropy(self.guess(states).flatten(0, 1), batch[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        steps, self.losses = len(self.losses), self.losses or [0.0]
        print(f"epoch {self.current_epoch}: {steps} steps, loss {sum(self.losses) / len(self.losses):.3f}", flush=True)
        self.losses = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def train(data: str, folder: str, epochs: int, batch: int, workers: int, every: int) -> None:
    pl.seed_everything(0, verbose=False)
    dataset = millrace.IterableDataset(data, transform=decode, shuffle=True, seed=0)
    # The length of the epoch and the position in it are what Lightning expects of a loader that it resumes.
    loader = millrace.lightning.DataLoader(dataset, batch_size=batch, num_workers=workers)
    saves: Any = pl.callbacks.ModelCheckpoint(
        folder, filename="newest", every_n_train_steps=every, enable_version_counter=False
    )
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saves],
        plugins=[millrace.lightning.CheckpointIO(wait=False)],  # training continues while a checkpoint is uploaded
    )
    # Each save replaces the object, which is the last whole one until the next is confirmed.
    newest = f"{folder.rstrip('/')}/newest.ckpt"
    found = millrace.checkpoint.exists(newest)
    if found:
        print("going on from", newest, flush=True)
    trainer.fit(Model(), loader, ckpt_path=newest if found else None)
    print(f"{trainer.global_step} steps in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--count", type=int, default=400)
    training = commands.add_parser("train")
    training.add_argument("data")
    training.add_argument("checkpoints")
    training.add_argument("--epochs", type=int, default=3)
    training.add_argument("--batch", type=int, default=16)
    training.add_argument("--workers", type=int, default=2)
    training.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.folder, arguments.count)
    else:
        train(
            arguments.data,
            arguments.checkpoints,
            arguments.epochs,
            arguments.batch,
            arguments.workers,
            arguments.every,
        )


if __name__ == "__main__":
    main()
