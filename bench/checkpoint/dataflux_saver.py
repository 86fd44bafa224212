"""gcs-torch-dataflux: its file objects, or its asynchronous plug-in for Lightning, which copies the state first."""

from __future__ import annotations

import argparse

import torch
from dataflux_pytorch import dataflux_checkpoint
from dataflux_pytorch.lightning import DatafluxLightningAsyncCheckpoint, DatafluxLightningCheckpoint

from bench.checkpoint.common import Saver, State, Wait, serve


class Files(Saver):
    def __init__(self, bucket: str) -> None:
        self.checkpoint = dataflux_checkpoint.DatafluxCheckpoint(project_name="bench", bucket_name=bucket)

    def save(self, name: str, state: State) -> Wait:
        with self.checkpoint.writer(name) as file:
            torch.save(state, file)
        return None

    def load(self, name: str) -> State:
        with self.checkpoint.reader(name) as file:
            found: State = torch.load(file)
        return found


class Asynchronous(Saver):
    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.saver = DatafluxLightningAsyncCheckpoint(project_name="bench")
        self.loader = DatafluxLightningCheckpoint(project_name="bench")

    def save(self, name: str, state: State) -> Wait:
        self.saver.save_checkpoint(state, f"gs://{self.bucket}/{name}")
        wait: Wait = self.saver.teardown
        return wait

    def load(self, name: str) -> State:
        found: State = self.loader.load_checkpoint(f"gs://{self.bucket}/{name}")
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    serve(Asynchronous(options.bucket) if options.asynchronous else Files(options.bucket))


if __name__ == "__main__":
    main()
