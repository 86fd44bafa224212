"""`objects` sorted, shuffled, filtered and added to before the loader gets the data set. Argument: bucket."""

import hashlib
import json
import random
import sys

import torch
from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset

KINDS = {
    "map": (dataflux_mapstyle_dataset.DataFluxMapStyleDataset, dataflux_mapstyle_dataset.Config),
    "iterable": (dataflux_iterable_dataset.DataFluxIterableDataset, dataflux_iterable_dataset.Config),
}


def by_size(dataset):
    dataset.objects.sort(key=lambda each: (each[1], each[0]))


def reversed_in_place(dataset):
    dataset.objects.reverse()


def shuffled(dataset):
    random.Random(3).shuffle(dataset.objects)


def filtered(dataset):
    dataset.objects = [(name, size) for name, size in dataset.objects if size > 1500]


def half(dataset):
    dataset.objects = dataset.objects[::2]


def twice(dataset):
    dataset.objects += dataset.objects[:5]
    dataset.objects.append(dataset.objects[0])


def without_some(dataset):
    del dataset.objects[10:]
    dataset.objects.pop()
    dataset.objects.remove(dataset.objects[0])


for name, (kind, config) in KINDS.items():
    for change in (by_size, reversed_in_place, shuffled, filtered, half, twice, without_some):
        for workers in (0, 2):  # each with its own: forked workers of the reference would share a client's connection
            dataset = kind("project", sys.argv[1], config(prefix="objects/", sort_listing_results=True))
            change(dataset)
            digest, count = hashlib.sha256(), 0
            for batch in torch.utils.data.DataLoader(dataset, batch_size=7, num_workers=workers):
                for content in batch:
                    digest.update(content)
                    count += 1
            print(name, change.__name__, workers, "workers:", count, digest.hexdigest()[:16])
    text = json.dumps(dataset.objects)
    print(name, len(text), text[:60], len([("first", 1)] + dataset.objects), len(dataset.objects * 2))
