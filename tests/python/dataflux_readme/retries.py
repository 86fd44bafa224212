"""Composing turned off, retries tuned, a client passed. Arguments: project, bucket, prefix."""

import sys

from dataflux_pytorch import dataflux_mapstyle_dataset
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

project, bucket, prefix = sys.argv[1:]
config = dataflux_mapstyle_dataset.Config(
    prefix=prefix,
    max_composite_object_size=0,
    disable_compose=True,
    num_processes=1,
    threads_per_process=4,
    list_retry_config=DEFAULT_RETRY.with_deadline(300.0).with_delay(initial=1.0, multiplier=1.2, maximum=45.0),
    download_retry_config=DEFAULT_RETRY.with_deadline(600.0).with_delay(initial=1.0, multiplier=1.5, maximum=90.0),
)
dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset(
    project_name=project,
    bucket_name=bucket,
    config=config,
    storage_client=storage.Client(project=project),
)
names = [name for name, _ in dataset.objects[2:]]
assert len(names) == len(dataset) - 2
print(len(dataset.__getitems__(range(len(dataset)))), "objects")
