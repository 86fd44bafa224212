"""Three kinds of storage_client under fork, spawn and forkserver. Arguments: bucket, start method."""

import hashlib
import multiprocessing
import sys
import warnings

import torch
from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage


class OurClient(storage.Client):
    """As users have who add something to each client of theirs."""


def main():
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method(sys.argv[2])
    workers = 2 if sys.argv[2] == "fork" else 1  # each imports torch
    clients = {
        "no client": lambda: None,
        "a client": lambda: storage.Client(project="project"),
        "a subclass": lambda: OurClient(project="project", credentials=AnonymousCredentials()),
    }
    for kind, module, dataset_class in (
        ("map", dataflux_mapstyle_dataset, dataflux_mapstyle_dataset.DataFluxMapStyleDataset),
        ("iterable", dataflux_iterable_dataset, dataflux_iterable_dataset.DataFluxIterableDataset),
    ):
        for name, client in clients.items():
            label = f"{kind}, {name}:"
            try:
                config = module.Config(prefix="objects/", sort_listing_results=True, num_processes=1)
                dataset = dataset_class("project", sys.argv[1], config, len, client())
                count, digest = 0, hashlib.sha256()
                for batch in torch.utils.data.DataLoader(dataset, batch_size=10, num_workers=workers):
                    digest.update(repr(batch.tolist()).encode())
                    count += len(batch)
                print(label, count, digest.hexdigest()[:16])
            except Exception as error:
                print(label, "raises", type(error).__name__)


if __name__ == "__main__":
    main()
