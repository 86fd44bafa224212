"""The same training loop under Ray Train: what changes is who starts the processes.

    python deploy/train_ray.py --data gs://bucket/prefix/ --workers 4

Ray starts the ranks, so there is no command for `millrace run` to wrap. Each node gets its supervisor in one of two
ways. By itself, as here: the first rank of a node that constructs a data set starts one, which the node's other ranks
share. Or from `millrace serve -c train.toml`, started on each node beside `ray start` with MILLRACE_SOCKET in the
environment: the way to give it a configuration file and to keep it across jobs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import millrace

WIDTH = 256


def decode(lease: millrace.Lease) -> torch.Tensor:
    """The first bytes of an object as numbers: a stand-in for a real decoder."""
    data = bytes(memoryview(lease)[:WIDTH])
    return torch.frombuffer(bytearray(data.ljust(WIDTH, b"\0")), dtype=torch.uint8).float() / 255


def train(config: dict[str, Any]) -> None:
    """One rank. rank and world_size come from torch.distributed, which Ray has initialised."""
    dataset = millrace.IterableDataset(config["data"], transform=decode, shuffle=True, seed=0)
    loader = millrace.DataLoader(dataset, batch_size=config["batch"], num_workers=0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:  # a restart, perhaps on another number of nodes
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(json.loads((Path(folder) / "loader.json").read_text()))
            state = torch.load(Path(folder) / "model.pt", weights_only=True)
        model.load_state_dict(state)
        first_epoch = loader.state_dict()["epoch"]
    for epoch in range(first_epoch, config["epochs"]):
        loss_sum, samples = 0.0, 0
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum, samples = loss_sum + loss.item() * len(batch), samples + len(batch)
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.state_dict(), Path(folder) / "model.pt")
                (Path(folder) / "loader.json").write_text(json.dumps(loader.state_dict()))
                saved = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": loss_sum / max(samples, 1), "samples": samples}, checkpoint=saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True, help="gs:// or file:// URI, or a folder that all nodes have")
    parser.add_argument("--workers", type=int, default=2, help="ranks in all")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--storage", help="where checkpoints go; a folder or URI that all nodes reach")
    options = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"data": options.data, "batch": options.batch, "epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        run_config=RunConfig(storage_path=options.storage, failure_config=FailureConfig(max_failures=3)),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
