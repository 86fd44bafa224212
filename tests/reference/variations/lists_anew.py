"""A data set that is made while another of the same prefix lives, after objects came and went. Argument: bucket."""

import sys

from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

bucket = storage.Client(project="project", credentials=AnonymousCredentials()).bucket(sys.argv[1])
for kind, module, dataset_class in (
    ("map", dataflux_mapstyle_dataset, dataflux_mapstyle_dataset.DataFluxMapStyleDataset),
    ("iterable", dataflux_iterable_dataset, dataflux_iterable_dataset.DataFluxIterableDataset),
):
    config = module.Config(prefix=f"{kind}/", sort_listing_results=True)
    bucket.blob(f"{kind}/1").upload_from_string("one")
    bucket.blob(f"{kind}/2").upload_from_string("two")
    first = dataset_class("project", sys.argv[1], config)
    print(kind, first.objects, list(first))
    bucket.blob(f"{kind}/3").upload_from_string("three")
    bucket.blob(f"{kind}/1").upload_from_string("one again")
    bucket.blob(f"{kind}/2").delete()
    second = dataset_class("project", sys.argv[1], config)
    print(kind, second.objects, list(second))
