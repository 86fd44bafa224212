"""Samples of 100 KiB out of shards on S3: webdataset (`pipe:curl`, `pipe:aws`, s3fs), streaming, millrace.

The first reads tar files as they come; streaming downloads files of its own layout into a folder, a fresh one each
epoch, and reads them there. Endpoint, keys and region are in the environment.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from bench.readers import common
from bench.readers.s3_reader import s3fs_files


def in_batches(source: Any, batch: int) -> Iterator[common.Batch]:
    samples = iter(source)
    while some := [sample["jpg"] for sample in itertools.islice(samples, batch)]:
        yield some


def webdataset(options: argparse.Namespace) -> Iterator[common.Batch]:
    import webdataset as wds

    names = [f"{n:03}.tar" for n in range(options.shards)]
    if options.client == "webdataset, s3fs":
        files = s3fs_files()

        def opened(urls: Any) -> Iterator[dict[str, Any]]:
            for url in urls:
                with files.open(f"bench/wds/{url['url']}", "rb") as stream:
                    yield {"url": url["url"], "stream": stream}

        source: Any = wds.DataPipeline(
            wds.SimpleShardList(names), opened, wds.tariterators.tar_file_expander, wds.tariterators.group_by_keys
        )
    else:
        curl = f"pipe:curl -s {os.environ['AWS_ENDPOINT_URL_S3']}/bench/wds/"
        start = curl if options.client.endswith("curl") else "pipe:aws s3 cp s3://bench/wds/"
        end = "" if options.client.endswith("curl") else " -"
        source = wds.WebDataset([f"{start}{name}{end}" for name in names], shardshuffle=False)

    return common.forever(lambda: in_batches(source, options.batch))


def streaming(options: argparse.Namespace) -> Iterator[common.Batch]:
    from streaming import StreamingDataset

    def batches() -> Iterator[common.Batch]:
        folder = tempfile.mkdtemp()
        dataset = StreamingDataset(remote="s3://bench/mds", local=folder, shuffle=False, batch_size=options.batch)
        yield from in_batches(dataset, options.batch)
        shutil.rmtree(folder, ignore_errors=True)

    return common.forever(batches)


def millrace(options: argparse.Namespace) -> Iterator[common.Batch]:
    import millrace as module

    shuffle: Any = "block" if options.client.endswith("blocks") else options.client.endswith("shuffled")
    ds = module.IterableDataset(f"s3://bench/wds/{{000..{options.shards - 1:03}}}.tar", shuffle=shuffle, seed=1)
    return ([sample["jpg"] for sample in batch] for batch in common.forever(lambda: ds.batches(options.batch)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    make = {"webdataset": webdataset, "streaming": streaming, "millrace": millrace}
    batches = make[options.client.split(",")[0]](options)
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    main()
