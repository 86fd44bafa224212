"""Reads the objects under a prefix as a stream, then through torch's DataLoader. Arguments: project, bucket, prefix."""

import sys

import torch.utils.data
from dataflux_pytorch import dataflux_iterable_dataset

project, bucket, prefix = sys.argv[1:]
dataset = dataflux_iterable_dataset.DataFluxIterableDataset(
    project_name=project,
    bucket_name=bucket,
    config=dataflux_iterable_dataset.Config(prefix=prefix, sort_listing_results=True),
)
one_by_one = [len(content) for content in dataset]
assert one_by_one == [size for _, size in dataset.objects]
loader = torch.utils.data.DataLoader(dataset, batch_size=5, num_workers=2)
batches = [len(content) for batch in loader for content in batch]
assert sorted(batches) == sorted(one_by_one)
print(len(one_by_one), "objects")
