"""millrace: a file object that torch.save writes; close() waits for the store, close(wait=False) does not."""

from __future__ import annotations

import argparse

import torch

import millrace.checkpoint
from bench.checkpoint.common import Saver, State, Wait, serve


class Millrace(Saver):
    def __init__(self, bucket: str, wait: bool) -> None:
        self.bucket, self.wait = bucket, wait

    def save(self, name: str, state: State) -> Wait:
        file = millrace.checkpoint.writer(f"gs://{self.bucket}/{name}")
        torch.save(state, file)
        if self.wait:
            file.close()
            return None
        return file.close(wait=False).result

    def load(self, name: str) -> State:
        with millrace.checkpoint.reader(f"gs://{self.bucket}/{name}") as file:
            found: State = torch.load(file)
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    serve(Millrace(options.bucket, not options.asynchronous))


if __name__ == "__main__":
    main()
