"""torch's DataLoader over samples that need no network: local files, or bytes that are in memory already."""

from __future__ import annotations

import argparse
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from bench.readers import common

Sample = tuple[str, bytes]


class Files(Dataset[Sample]):
    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return self.paths[index].name, self.paths[index].read_bytes()


class Held(Dataset[Sample]):
    """Always the same few objects, so that making a sample costs nothing: what is left is torch's transport.

    No batch has an object twice, since pickle would send it once.
    """

    def __init__(self, folder: str, batch: int) -> None:
        self.samples = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())[:batch]]

    def __len__(self) -> int:
        return 1000 * len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index % len(self.samples)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    dataset: Dataset[Sample] = Held(options.folder, options.batch) if options.held else Files(options.folder)
    loader = DataLoader(
        dataset,
        batch_size=options.batch,
        num_workers=options.workers,
        collate_fn=list,
        persistent_workers=options.workers > 0,
    )
    batches = common.forever(lambda: loader)
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    main()
