"""What needs no store: torch.save to a local file or to one that discards it, a copy of the state dict's bytes."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench.checkpoint.common import Saver, State, Wait, serve

WARM_BYTES = 256 << 20  # of the buffer that is copied into, over and over


class Nothing:
    """A file that keeps nothing."""

    def write(self, data: memoryview) -> int:
        return len(data)

    def flush(self) -> None:
        pass


class Null(Saver):
    def save(self, name: str, state: State) -> Wait:
        torch.save(state, Nothing())  # type: ignore[arg-type]
        return None

    def load(self, name: str) -> State:
        raise NotImplementedError


class File(Saver):
    """In the page cache: nothing is waited for until it is on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, state: State) -> Wait:
        torch.save(state, self.folder / name)
        return None

    def load(self, name: str) -> State:
        found: State = torch.load(self.folder / name)
        (self.folder / name).unlink()
        return found


class Copy(Saver):
    """A memcpy by one thread into memory that has been touched."""

    def __init__(self) -> None:
        self.buffer = torch.ones(WARM_BYTES, dtype=torch.uint8)

    def save(self, name: str, state: State) -> Wait:
        at = 0
        for tensor in state.values():
            data = tensor.view(torch.uint8).reshape(-1)
            if at + data.numel() > WARM_BYTES:
                at = 0
            self.buffer[at : at + data.numel()].copy_(data)
            at += data.numel()
        return None

    def load(self, name: str) -> State:
        raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["null", "file", "memcpy"], required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    kinds = {"null": Null, "file": lambda: File(options.folder), "memcpy": Copy}
    serve(kinds[options.kind]())


if __name__ == "__main__":
    main()
