"""Segments pictures with a small U-Net: a picture and its mask are two objects, paired by their names.

    python examples/segmentation.py make out/pictures/bucket/shapes --count 400     # or put files of your own there
    millrace-devstore --root out/pictures --listen 127.0.0.1:9000 &
    export STORAGE_EMULATOR_HOST=http://127.0.0.1:9000
    python examples/segmentation.py train gs://bucket/shapes/

docs/segmentation.md walks through it. The pictures that `make` draws show disks and boxes on a noisy ground; the mask
has the disks alone, so colour does not tell them: shape does. A fifth of the pictures is held out.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import millrace

SIDE = 64
HELD_OUT = 5  # one of so many pictures
ENDS = (".image.png", ".mask.png")

# ---- the data ----


def draw(number: int) -> tuple[Image.Image, Image.Image]:
    """A picture of disks and boxes, and the mask of its disks. The same number draws the same."""
    rng = random.Random(number)
    noise = np.random.default_rng(number).normal(0, 18, (SIDE, SIDE, 3))
    picture = Image.new("RGB", (SIDE, SIDE), tuple(rng.randrange(40, 120) for _ in range(3)))
    mask = Image.new("L", (SIDE, SIDE), 0)
    for i in range(rng.randint(2, 5)):
        radius, x, y = rng.randint(5, 12), rng.randrange(SIDE), rng.randrange(SIDE)
        box = (x - radius, y - radius, x + radius, y + radius)
        colour = tuple(rng.randrange(120, 256) for _ in range(3))
        if i % 2:
            ImageDraw.Draw(picture).rectangle(box, fill=colour)
            ImageDraw.Draw(mask).rectangle(box, fill=0)
        else:
            ImageDraw.Draw(picture).ellipse(box, fill=colour)
            ImageDraw.Draw(mask).ellipse(box, fill=255)
    noisy = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy), mask


def make(folder: Path, count: int) -> None:
    """Writes NUMBER.image.png and NUMBER.mask.png: in the order of the names the two of a pair follow each other."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture, mask = draw(number)
        picture.save(folder / f"{number:05}.image.png")
        mask.save(folder / f"{number:05}.mask.png")


def decode(lease: millrace.Lease) -> torch.Tensor:
    """One object -> channels x height x width of 0 to 1. Runs in the DataLoader workers."""
    with Image.open(io.BytesIO(lease)) as picture:
        pixels = np.array(picture, dtype=np.float32) / 255
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()


def join(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What Pairs asks for is picture, mask, picture, mask, ..."""
    return torch.stack(samples[0::2]), torch.stack(samples[1::2])


class Pairs:
    """A batch sampler: batches of pairs, in another order each epoch. millrace.DataLoader calls set_epoch."""

    def __init__(self, objects: Sequence[tuple[str, int]], batch: int, held_out: bool, seed: int = 0) -> None:
        self.firsts = []
        for first in range(0, len(objects), 2):
            stems = [name.removesuffix(end) for (name, _), end in zip(objects[first : first + 2], ENDS)]
            if len(set(stems)) != 1 or len(stems) != 2:
                raise ValueError(f"{objects[first][0]} and its mask are not there as a pair: *.image.png, *.mask.png")
            if (first // 2 % HELD_OUT == 0) == held_out:
                self.firsts.append(first)
        self.batch, self.seed, self.epoch = batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.firsts) // self.batch)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.firsts)
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        for start in range(0, len(order), self.batch):
            yield [number for first in order[start : start + self.batch] for number in (first, first + 1)]


# ---- the network ----


def block(channels_in: int, channels_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [nn.Conv2d(channels, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down and up again; each level going up also gets the output of its level going down. Sides are multiples of 8."""

    def __init__(self, widths: Sequence[int] = (8, 16, 32, 64)) -> None:
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(block(2 * width, width) for width in widths[:-1])
        self.last = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else nn.functional.max_pool2d(x, 2))
            seen.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([seen[level], self.widen[level](x)], 1))
        out: torch.Tensor = self.last(x)
        return out


def loss_of(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Cross entropy and Dice: the second counts a small disk like a large ground."""
    chances = logits.sigmoid()
    dice = (2 * (chances * masks).sum((1, 2, 3)) + 1) / (chances.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
    return nn.functional.binary_cross_entropy_with_logits(logits, masks) + 1 - dice.mean()


# ---- training ----


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    dataset = millrace.MapDataset(arguments.uri, transform=decode)
    loaders = []
    for held_out in (False, True):
        pairs: Any = Pairs(dataset.objects, arguments.batch, held_out)
        loaders.append(
            millrace.DataLoader(dataset, batch_sampler=pairs, collate_fn=join, num_workers=arguments.workers)
        )
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, scores = [], []
    for epoch in range(arguments.epochs):
        model.train()
        total, seen = 0.0, 0
        for pictures, masks in loaders[0]:
            loss = loss_of(model(pictures), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(pictures), seen + len(pictures)
        losses.append(total / seen)
        scores.append(intersection_over_union(model, loaders[1]))
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, IoU of the held-out pictures {scores[-1]:.3f}", flush=True)
    return {"losses": losses, "scores": scores}


@torch.no_grad()
def intersection_over_union(model: nn.Module, loader: Any) -> float:
    model.eval()
    both = either = 0
    for pictures, masks in loader:
        found, true = model(pictures) > 0, masks > 0.5
        both += int((found & true).sum())
        either += int((found | true).sum())
    return both / max(either, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make", help="draw pictures and masks into a folder")
    making.add_argument("folder", type=Path)
    making.add_argument("--count", type=int, default=400)
    training = verbs.add_parser("train", help="train on the pairs under a URI")
    training.add_argument("uri")
    training.add_argument("--epochs", type=int, default=8)
    training.add_argument("--batch", type=int, default=8)
    training.add_argument("--workers", type=int, default=2)
    training.add_argument("--out", type=Path, help="a JSON file for the losses and scores")
    arguments = parser.parse_args()
    if arguments.verb == "make":
        make(arguments.folder, arguments.count)
        return
    result = train(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
