"""Clients of S3: boto3, obstore, s3fs, and s3torchconnector's data set; each in the way of its own documentation.

As client_reader.py: a batch of names in, their bytes out, with up to --parallel requests under way; s3torchconnector
reads its own listing, one object after the other. Endpoint, keys and region are in the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.readers import common
from bench.readers.client_reader import CLIENTS, Fetch, Names, Sample


def boto3(bucket: str, parallel: int) -> Fetch:
    import boto3 as module
    import botocore.config

    config = botocore.config.Config(
        s3={"addressing_style": "path"}, max_pool_connections=parallel, response_checksum_validation="when_required"
    )
    client = module.client("s3", config=config)

    def get(name: str) -> Sample:
        return name, client.get_object(Bucket=bucket, Key=name)["Body"].read()

    if parallel == 1:
        return lambda names: [get(name) for name in names]
    pool = ThreadPoolExecutor(parallel)
    return lambda names: list(pool.map(get, names))


def s3fs(bucket: str, parallel: int) -> Fetch:
    import s3fs as module

    files = module.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"],
        config_kwargs={"s3": {"addressing_style": "path"}, "response_checksum_validation": "when_required"},
        skip_instance_cache=True,
    )

    def fetch(names: Sequence[str]) -> list[Sample]:
        paths = [f"{bucket}/{name}" for name in names]
        if len(paths) == 1:
            return [(names[0], files.cat_file(paths[0]))]
        data = files.cat(paths, batch_size=parallel)
        return [(name, data[path]) for name, path in zip(names, paths)]

    return fetch


def obstore(bucket: str, parallel: int) -> Fetch:
    from obstore.store import S3Store

    options: Any = {"allow_http": True}
    store = S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL_S3"], client_options=options)
    loop = asyncio.new_event_loop()

    async def get(name: str) -> Sample:
        response = await store.get_async(name)
        return name, bytes(await response.bytes_async())

    async def fetch(names: Sequence[str]) -> list[Sample]:
        return list(await asyncio.gather(*map(get, names)))

    def gather(names: Sequence[str]) -> list[Sample]:
        found: list[Sample] = []
        for some in common.groups(names, parallel):
            found += loop.run_until_complete(fetch(some))
        return found

    return gather


def whole(reader: Any) -> Sample:
    return reader.key, reader.read()


def connector(bucket: str, batch: int, workers: int) -> Iterator[common.Batch]:
    from s3torchconnector import S3ClientConfig, S3IterableDataset
    from torch.utils.data import DataLoader

    dataset = S3IterableDataset.from_prefix(
        f"s3://{bucket}/",
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL_S3"],
        transform=whole,
        s3client_config=S3ClientConfig(force_path_style=True),
        enable_sharding=workers > 0,
    )
    loader = DataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=list)
    return common.forever(lambda: loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=["boto3", "obstore", "s3fs", "s3torchconnector"], required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    options = parser.parse_args()
    CLIENTS.update(boto3=boto3, obstore=obstore, s3fs=s3fs)
    names = common.made_up_names(options.count)
    if options.client == "s3torchconnector":
        batches = connector(options.bucket, options.batch, options.workers)
    elif options.workers:
        from torch.utils.data import DataLoader

        dataset: Any = Names(options.client, options.bucket, options.parallel, names)
        loader = DataLoader(dataset, batch_size=options.batch, num_workers=options.workers, collate_fn=list)
        batches = common.forever(lambda: loader)
    else:
        fetch = CLIENTS[options.client](options.bucket, options.parallel)
        batches = common.forever(lambda: map(fetch, common.groups(names, options.batch)))
    next(batches)
    common.serve(batches)


if __name__ == "__main__":
    main()
