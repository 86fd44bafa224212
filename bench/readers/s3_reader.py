"""Clients of S3: boto3, obstore, s3fs, and s3torchconnector's data set; each in the way of its own documentation.

The first three as in client_reader.py; s3torchconnector reads its own listing, one object after the other, and the same
program after the sed is millrace.s3torchconnector. Endpoint, keys and region are in the environment.
"""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any

from bench.readers import common
from bench.readers.client_reader import Client, Fetch, Sample, arguments, by_asyncio, by_cat, by_threads, serve


def boto3(bucket: str, parallel: int) -> Fetch:
    import boto3 as module
    import botocore.config

    config = botocore.config.Config(
        s3={"addressing_style": "path"}, max_pool_connections=parallel, response_checksum_validation="when_required"
    )
    client = module.client("s3", config=config)
    return by_threads(lambda name: client.get_object(Bucket=bucket, Key=name)["Body"].read(), parallel)


def s3fs_files() -> Any:
    import s3fs as module

    return module.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"],
        config_kwargs={"s3": {"addressing_style": "path"}, "response_checksum_validation": "when_required"},
        skip_instance_cache=True,
    )


def s3fs(bucket: str, parallel: int) -> Fetch:
    return by_cat(s3fs_files(), bucket, parallel)


def obstore(bucket: str, parallel: int) -> Fetch:
    from obstore.store import S3Store

    options: Any = {"allow_http": True}
    store = S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL_S3"], client_options=options)
    return by_asyncio(store, parallel)


CLIENTS: dict[str, Client] = {"boto3": boto3, "obstore": obstore, "s3fs": s3fs}
CONNECTORS = ("s3torchconnector", "millrace.s3torchconnector")


def whole(reader: Any) -> Sample:
    return reader.key, reader.read()


def serve_connector(options: argparse.Namespace) -> None:
    from torch.utils.data import DataLoader

    module = importlib.import_module(options.client)
    dataset = module.S3IterableDataset.from_prefix(
        f"s3://{options.bucket}/",
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL_S3"],
        transform=whole,
        s3client_config=module.S3ClientConfig(force_path_style=True),
        enable_sharding=options.workers > 0,
    )
    loader = DataLoader(dataset, batch_size=options.batch, num_workers=options.workers, collate_fn=list)
    batches = common.forever(lambda: loader)
    next(batches)
    common.serve(batches)


def main() -> None:
    options = arguments([*CLIENTS, *CONNECTORS])
    if options.client in CONNECTORS:
        serve_connector(options)
    else:
        serve(CLIENTS[options.client], options)


if __name__ == "__main__":
    main()
