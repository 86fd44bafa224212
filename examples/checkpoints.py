"""Trains a small network and saves it while it trains. Started again, it continues after the last checkpoint.

    python examples/checkpoints.py gs://bucket/run7 --steps 400 --every 100

Each save is promised by close(wait=False) and awaited before the next one. So at most two are in flight, and the loop
stops for a copy only. A checkpoint that is listed is whole, whenever the program was killed.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import millrace.checkpoint


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of the step alone, so that a resumed run gets what an unbroken one gets."""
    samples = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    return samples, samples.sum(dim=1, keepdim=True).sin()


def last_checkpoint(prefix: str) -> dict[str, Any] | None:
    found = millrace.checkpoint.list(prefix)
    if not found:
        return None
    with millrace.checkpoint.reader(found[-1]) as file:
        state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def train(prefix: str, steps: int, every: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    first, save = 0, None
    state = last_checkpoint(prefix)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first + 1, steps + 1):
        samples, wanted = batch_of(step)
        loss = torch.nn.functional.mse_loss(model(samples), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every and step != steps:
            continue
        print(json.dumps({"step": step, "loss": loss.item()}), flush=True)
        if save is not None:
            save.result()  # raises the failure of the one before
        with millrace.checkpoint.writer(f"{prefix}/step-{step:08d}.pt") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
            save = file.close(wait=False)
    if save is not None:
        print(json.dumps({"saved": save.result().uri}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prefix", help="where the checkpoints lie: gs://bucket/folder, or a folder")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    train(options.prefix.rstrip("/"), options.steps, options.every)


if __name__ == "__main__":
    main()
