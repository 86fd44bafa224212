"""Subclasses with an `__iter__` and a `batch_size` of their own, under torch's DataLoader. Argument: bucket."""

import hashlib
import sys

import torch
from dataflux_pytorch import dataflux_iterable_dataset


class Rows(dataflux_iterable_dataset.DataFluxIterableDataset):
    """Ten rows of each object, read by dataflux_core as the reference's own subclasses do."""

    def __init__(self, batch_size, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.batch_size = batch_size

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        mine = self.objects if worker is None else self.objects[worker.id :: worker.num_workers]
        for content in dataflux_iterable_dataset.dataflux_core.download.dataflux_download_lazy(
            project_name=self.project_name,
            bucket_name=self.bucket_name,
            objects=mine,
            storage_client=self.storage_client,
            dataflux_download_optimization_params=self.dataflux_download_optimization_params,
            retry_config=self.config.download_retry_config,
        ):
            for row in range(10):
                yield torch.full((512,), float(content[0] + row))


class Sized(dataflux_iterable_dataset.DataFluxIterableDataset):
    """Only an attribute that has a name which a data set might use itself."""

    def __init__(self, batch_size, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.batch_size = batch_size


def row_of(content):
    return torch.full((512,), float(len(content)))


config = dataflux_iterable_dataset.Config(prefix="objects/", sort_listing_results=True)
for kind, data_format_fn in ((Rows, dataflux_iterable_dataset.data_format_default), (Sized, row_of)):
    for workers in (0, 2):
        dataset = kind(10, "project", sys.argv[1], config, data_format_fn)
        loader = torch.utils.data.DataLoader(dataset, batch_size=10, num_workers=workers)
        shapes, digest = {}, hashlib.sha256()
        for batch in loader:
            shape = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
            shapes[shape] = shapes.get(shape, 0) + 1
            digest.update(batch.numpy().tobytes())
        print(kind.__name__, workers, "workers:", shapes, digest.hexdigest()[:16])
    try:
        print(kind.__name__, "length", len(dataset))
    except TypeError:
        print(kind.__name__, "has no length")
