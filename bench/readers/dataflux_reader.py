"""gcs-torch-dataflux: its iterable or map-style data set, by itself or in torch's DataLoader.

No storage_client is passed: with one, forked workers share its connection and get each other's bytes.
"""

from __future__ import annotations

import argparse
from typing import Any

from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from torch.utils.data import DataLoader

from bench.readers import common


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--style", choices=["iterable", "map"], required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--compose", action="store_true")
    options = parser.parse_args()
    module = dataflux_mapstyle_dataset if options.style == "map" else dataflux_iterable_dataset
    config = module.Config(disable_compose=not options.compose)
    kind: Any = module.DataFluxMapStyleDataset if options.style == "map" else module.DataFluxIterableDataset
    dataset = kind(project_name="bench", bucket_name=options.bucket, config=config)
    assert dataset.objects

    def alone() -> Any:
        if options.style == "map":
            for at in range(0, len(dataset), options.batch):
                yield dataset.__getitems__(range(at, min(at + options.batch, len(dataset))))
        else:
            yield from ([data] for data in dataset)

    if options.workers:
        loader = DataLoader(dataset, batch_size=options.batch, num_workers=options.workers, collate_fn=list)
        batches = common.forever(lambda: loader)
    else:
        batches = common.forever(alone)
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    main()
