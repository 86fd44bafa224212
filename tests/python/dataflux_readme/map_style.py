"""Counts the objects under a prefix, one by one and by number. Arguments: project, bucket, prefix."""

import sys

from dataflux_pytorch import dataflux_mapstyle_dataset

project, bucket, prefix = sys.argv[1:]
dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset(
    project_name=project,
    bucket_name=bucket,
    config=dataflux_mapstyle_dataset.Config(prefix=prefix),
)
name, size = dataset.objects[0]
print(name, size)
assert len(dataset[0]) == size
count = 0
for content in dataset:
    assert content.startswith(b"\x89PNG")
    count += 1
assert count == len(dataset) == len(dataset.objects)
print(count, "objects")
