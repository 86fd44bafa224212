"""Decodes pictures with Pillow in data_format_fn, in both kinds of data sets. Arguments: project, bucket, prefix."""

import io
import sys

import numpy
import torch.utils.data
from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from PIL import Image

project, bucket, prefix = sys.argv[1:]


def transform(content):
    return numpy.asarray(Image.open(io.BytesIO(content)))


mapped = dataflux_mapstyle_dataset.DataFluxMapStyleDataset(
    project_name=project,
    bucket_name=bucket,
    config=dataflux_mapstyle_dataset.Config(prefix=prefix),
    data_format_fn=transform,
)
# The other kind takes the same Config.
streamed = dataflux_iterable_dataset.DataFluxIterableDataset(
    project_name=project,
    bucket_name=bucket,
    config=dataflux_mapstyle_dataset.Config(prefix=prefix),
    data_format_fn=lambda content: numpy.asarray(Image.open(io.BytesIO(content))),
)
assert all(picture.shape == (16, 16, 3) for picture in mapped)
assert all(picture.shape == (16, 16, 3) for picture in streamed)
loader = torch.utils.data.DataLoader(mapped, batch_size=4, shuffle=True, num_workers=2)
shapes = [tuple(batch.shape) for batch in loader]
assert shapes == [(4, 16, 16, 3)] * 3, shapes
print(sum(shape[0] for shape in shapes), "objects")
