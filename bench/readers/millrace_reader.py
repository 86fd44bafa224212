"""millrace: `batches` (one reader) or millrace.DataLoader, over an iterable or a map-style data set."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.readers import common


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", help="of Google Cloud Storage; or --uri")
    parser.add_argument("--uri")
    parser.add_argument("--style", choices=["iterable", "map"], required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    options = parser.parse_args()
    import millrace

    uri = options.uri or f"gs://{options.bucket}/"
    dataset: Any
    if options.style == "map":
        dataset = millrace.MapDataset(uri, window=options.window)
    else:
        dataset = millrace.IterableDataset(uri, window=options.window)
    if options.style == "iterable" and options.workers == 0:
        assert "torch" not in sys.modules
        source = dataset.batches(options.batch)
    else:
        source = millrace.DataLoader(dataset, batch_size=options.batch, num_workers=options.workers, collate_fn=list)
    batches = common.forever(lambda: source)
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    main()
