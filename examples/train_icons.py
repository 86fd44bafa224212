"""Trains a small network to tell the folder of a desktop icon, with millrace as the loader. `make demo` runs it.

    millrace run -c configs/demo.toml -- torchrun --nproc-per-node 2 examples/train_icons.py --out out/demo

The data are PNG files of 8 to 256 pixels; a sample's label is its folder (actions, apps, mimetypes, ...). The same
picture is there in several sizes, so a split by file would put copies of a training picture into the test. Here a tenth
of the *pictures* is held out, in every size: those samples are scored and never trained on.

Each file is an object, or a sample of a tar shard: NUMBER.png, and NUMBER.txt with the file's name.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import millrace

FOLDERS = ["actions", "animations", "applets", "apps", "categories", "devices"]
FOLDERS += ["emblems", "emotes", "mimetypes", "places", "special", "status"]
SIDE = 32  # every picture is scaled to this many pixels

Sample = tuple[np.ndarray, int, bool, str]


def name_and_file(source: millrace.Lease | millrace.Sample) -> tuple[str, Any]:
    if isinstance(source, millrace.Sample):
        return str(source["txt"], "utf-8"), source["png"]
    return source.name, source


def decode(source: millrace.Lease | millrace.Sample) -> Sample:
    """One icon -> (picture, label, held out, name). Runs in the DataLoader workers; the buffer is read in place."""
    name, file = name_and_file(source)
    folder, picture = name.split("/")[-2:]
    with Image.open(io.BytesIO(file)) as image:
        pixels = np.asarray(image.convert("RGBA").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    held_out = hashlib.sha256(f"{folder}/{picture}".encode()).digest()[0] < 26  # about a tenth, the same in each size
    return pixels.transpose(2, 0, 1).copy(), FOLDERS.index(folder), held_out, name


def network() -> nn.Module:
    def block(channels_in: int, channels_out: int) -> nn.Module:
        convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(block(4, 16), block(16, 32), block(32, 64), nn.Flatten(), nn.Linear(64 * 16, len(FOLDERS)))


@dataclass
class Score:
    """Sums over the samples of an epoch; `shared()` adds the ranks up."""

    sums: torch.Tensor = field(default_factory=lambda: torch.zeros(5, dtype=torch.float64))
    held_labels: torch.Tensor = field(default_factory=lambda: torch.zeros(len(FOLDERS), dtype=torch.float64))

    def add(self, loss: torch.Tensor, right: torch.Tensor, labels: torch.Tensor, held: torch.Tensor) -> None:
        train = ~held
        counts = [loss * train.sum(), train.sum(), right[train].sum(), held.sum(), right[held].sum()]
        self.sums += torch.stack(counts).double()
        self.held_labels += torch.bincount(labels[held], minlength=len(FOLDERS))

    def shared(self) -> dict[str, float]:
        both = torch.cat([self.sums, self.held_labels])
        dist.all_reduce(both)
        loss, trained, right, held, held_right = both[:5].tolist()
        return {
            "loss": loss / max(trained, 1),
            "accuracy": right / max(trained, 1),
            "held_out_accuracy": held_right / max(held, 1),
            "largest_class": float(both[5:].max()) / max(held, 1),
            "samples": trained + held,
        }


class Progress:
    """The progress bar of rank 0, and the record of throughput and waiting that the picture is drawn from."""

    def __init__(self, started: float, epochs: int, world: int) -> None:
        self.history: list[dict[str, float]] = []
        self.started, self.epochs, self.world = started, epochs, world
        self.live = sys.stderr.isatty()
        self.stops: list[float] = []  # when the training was resumed, on the same axis
        self.begin()

    def begin(self) -> None:
        """A new window of measurement: since when, samples of all ranks, seconds this rank waited for data."""
        self.window = [time.monotonic(), 0.0, 0.0]

    def step(self, epoch: int, step: int, steps: int, samples: int, waited_s: float, loss: float) -> None:
        self.window[1] += samples * self.world
        self.window[2] += waited_s
        now = time.monotonic()
        seconds = now - self.window[0]
        if seconds < 0.5 and step < steps:
            return
        rate, waiting = self.window[1] / seconds, min(1.0, self.window[2] / seconds)
        self.history.append({"t": now - self.started, "samples_per_s": rate, "waiting": waiting})
        self.begin()
        bar = "#" * (30 * step // steps)
        line = f"epoch {epoch + 1}/{self.epochs} [{bar:30}] {step:3}/{steps}  {rate:6,.0f} samples/s  "
        line += f"waiting for data {waiting:4.0%}  loss {loss:.3f}"
        if self.live:
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()

    def epoch_done(self, epoch: int, score: dict[str, float], seconds: float, waited_s: float) -> None:
        if self.live:
            sys.stderr.write("\r\x1b[K")
        print(
            f"epoch {epoch + 1}/{self.epochs}: {score['samples']:,.0f} samples, "
            f"{score['samples'] / seconds:,.0f} samples/s, waiting for data {waited_s / seconds:.0%}, "
            f"loss {score['loss']:.3f}, accuracy {score['accuracy']:.1%}, "
            f"on held-out pictures {score['held_out_accuracy']:.1%} (largest class {score['largest_class']:.1%})",
            flush=True,
        )


def timed(batches: Iterator[Any]) -> Iterator[tuple[float, Any]]:
    """Each batch with the seconds that the loop waited for it."""
    while True:
        before = time.monotonic()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield time.monotonic() - before, batch


def digest(names: list[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def save_state(state: dict[str, Any], place: str) -> None:
    """The whole state, or none: by millrace into a store, under a temporary name first into a file."""
    if "://" in place:
        with millrace.checkpoint.writer(place) as file:
            torch.save(state, file)
    else:
        temporary = Path(place).with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.rename(place)


def load_state(place: str) -> dict[str, Any]:
    with millrace.checkpoint.reader(place) if "://" in place else Path(place).open("rb") as file:
        state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        self.dataset = millrace.IterableDataset(options.data, transform=decode, shuffle=True, seed=options.seed)
        self.loader = self.new_loader()
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.05)
        self.epoch, self.step, self.global_step = 0, 0, 0
        self.steps = len(self.loader)
        self.progress = Progress(time.monotonic(), options.epochs, self.world)
        self.rest: list[str] = []  # after a resume: the names that an unbroken run would deliver from here on

    def new_loader(self) -> millrace.DataLoader:
        return millrace.DataLoader(self.dataset, batch_size=self.options.batch_size, num_workers=self.options.workers)

    def learning_rate(self) -> float:
        """Up for a tenth of the steps, then down to nothing along a cosine."""
        done: float = self.global_step / (self.options.epochs * self.steps)
        return 3e-3 * min(done * 10 + 0.1, 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)))

    def save(self, place: str) -> None:
        state = {
            "loader": self.loader.state_dict(),
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": [self.epoch, self.step, self.global_step, self.steps],
            "history": self.progress.history,
            "seconds": time.monotonic() - self.progress.started,
        }
        if self.rank == 0:
            save_state(state, place)
            print(f"stopped in epoch {self.epoch + 1} after step {self.step}; state in {place}")
            print(f"the loader's part of it: {json.dumps(state['loader'])}", flush=True)

    def resume(self, place: str) -> None:
        state = load_state(place)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step, self.global_step, self.steps = state["progress"]
        self.rest = self.unbroken(self.epoch, self.step)
        self.loader.load_state_dict(state["loader"])
        self.progress.history = state["history"]
        self.progress.stops = [state["seconds"]]
        self.progress.started = time.monotonic() - state["seconds"]

    def unbroken(self, epoch: int, step: int) -> list[str]:
        """What this rank gets from `step` on in an epoch that nobody interrupts: a pass by a loader without a state."""
        loader = self.new_loader()
        loader.set_epoch(epoch)
        return [name for i, batch in enumerate(loader) if i >= step for name in batch[3]]

    def train_epoch(self) -> bool:
        """One epoch, or the rest of it; False when it stopped in the middle, as asked."""
        score, names, waited_s, began = Score(), [], 0.0, time.monotonic()
        self.progress.begin()
        self.model.train()
        for waited, (pictures, labels, held, batch_names) in timed(iter(self.loader)):
            self.optimizer.param_groups[0]["lr"] = self.learning_rate()
            logits = self.model(pictures.float() / 255)
            losses = nn.functional.cross_entropy(logits, labels, reduction="none")
            # Held-out samples take part in nothing but the score (and the batch's mean and variance).
            loss = (losses * ~held).sum() / (~held).sum().clamp(min=1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

            self.step += 1
            self.global_step += 1
            waited_s += waited
            names += batch_names
            score.add(loss.detach(), logits.argmax(1) == labels, labels, held)
            if self.rank == 0:
                self.progress.step(self.epoch, self.step, self.steps, len(labels), waited, loss.item())
            if self.global_step == self.options.stop_after:
                self.save(self.options.state)
                return False
        self.compare_with_unbroken(names)
        shared = score.shared()
        if self.rank == 0:
            self.progress.epoch_done(self.epoch, shared, time.monotonic() - began, waited_s)
            (self.options.out / "score.json").write_text(json.dumps({"epoch": self.epoch + 1, **shared}))
        self.epoch, self.step = self.epoch + 1, 0
        return True

    def compare_with_unbroken(self, names: list[str]) -> None:
        if not self.rest:
            return
        if names != self.rest:
            raise SystemExit(f"rank {self.rank}: the samples after the resume are NOT those of an unbroken run")
        print(
            f"rank {self.rank}: the {len(names):,} samples after the resume are the same, in the same order, "
            f"as in an unbroken run (names {digest(names)} = {digest(self.rest)})",
            flush=True,
        )
        self.rest = []

    def draw(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        times = [row["t"] for row in self.progress.history]
        figure, (rate, waiting) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 5), layout="constrained")
        rate.plot(times, [row["samples_per_s"] for row in self.progress.history])
        rate.set_ylabel("samples/s, all ranks")
        rate.set_ylim(bottom=0)
        waiting.plot(times, [100 * row["waiting"] for row in self.progress.history], color="tab:orange")
        waiting.set_ylabel("waiting for data, %")
        waiting.set_ylim(0, 100)
        waiting.set_xlabel("seconds of training")
        for axes in (rate, waiting):
            for stop in self.progress.stops:
                axes.axvline(stop, color="gray", linestyle="--")
                axes.text(stop, axes.get_ylim()[1], " resumed", va="top", color="gray")
        figure.suptitle(f"{self.world} ranks, {self.options.workers} DataLoader workers each")
        figure.savefig(path, dpi=110)
        print(f"throughput and waiting over time: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="icons", help="a data set of the TOML file, or a URI (default: icons)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the state and the picture")
    parser.add_argument("--state", help="where the state is saved: a path or a URI (default: state.pt in that folder)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="samples a step of one rank")
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers a rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, default=0, help="save the state after so many steps and stop")
    parser.add_argument("--resume", action="store_true", help="continue from the saved state")
    options = parser.parse_args()

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    dist.init_process_group("gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    options.state = options.state or str(options.out / "state.pt")
    trainer = Trainer(options)
    if options.resume:
        trainer.resume(options.state)
    while trainer.epoch < options.epochs:
        if not trainer.train_epoch():
            break
    else:
        if trainer.rank == 0:
            trainer.draw(options.out / "throughput.png")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
