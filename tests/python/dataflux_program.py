"""What a user's variations of the reference's programs see, as one line of JSON: samples, their order, errors.

Arguments: the package (dataflux_pytorch or millrace.dataflux), a bucket of 250 objects, and the parts to run. The same
program under both packages has to print the same.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import pickle
import random
import sys
import warnings
from typing import Any

import torch.utils.data

warnings.simplefilter("ignore")
package, bucket = sys.argv[1:3]
it: Any = importlib.import_module(f"{package}.dataflux_iterable_dataset")
mapped: Any = importlib.import_module(f"{package}.dataflux_mapstyle_dataset")


def config(module: Any = it, **fields: Any) -> Any:
    return module.Config(**{"num_processes": 1, "sort_listing_results": True, "prefix": "train/", **fields})


def dataset(cls: Any = None, module: Any = it, **arguments: Any) -> Any:
    cls = cls or (it.DataFluxIterableDataset if module is it else mapped.DataFluxMapStyleDataset)
    fields = arguments.pop("fields", {})
    return cls(project_name="p", bucket_name=bucket, config=config(module, **fields), **arguments)


def first(data: bytes) -> str:
    return data.decode().split()[0]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def loader(ds: Any, **arguments: Any) -> Any:
    return torch.utils.data.DataLoader(ds, **{"batch_size": 100, "num_workers": 2, **arguments})


def seen(ds: Any, **arguments: Any) -> list[Any]:
    """The sizes of the batches, and a digest of all samples in order."""
    batches = [list(batch) for batch in loader(ds, **arguments)]
    return [sizes(batches), digest(batches)]


def sizes(batches: list[Any]) -> str:
    """Such as "100x2 50": two batches of 100 and one of 50."""
    runs = ((size, len(list(run))) for size, run in itertools.groupby(map(len, batches)))
    return " ".join(f"{size}x{count}" if count > 1 else str(size) for size, count in runs)


class Tenfold(it.DataFluxIterableDataset):  # type: ignore[misc]
    """Ten samples an object."""

    def __iter__(self) -> Any:
        for sample in super().__iter__():
            yield from (f"{sample}.{i}" for i in range(10))


class Rows(it.DataFluxIterableDataset):  # type: ignore[misc]
    """As the reference's programs for parquet files: an __iter__ and attributes of its own."""

    def __init__(self, columns: Any, batch_size: int, rank: int, world_size: int, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.columns, self.batch_size, self.rank, self.world_size = columns, batch_size, rank, world_size
        self._transform = self._source = self._shuffle = self._window = "its own"

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        per_node = -(-len(self.objects) // self.world_size)
        start = self.rank * per_node
        end = start + per_node
        if info is not None:
            per_worker = -(-per_node // info.num_workers)
            start, end = start + info.id * per_worker, min(start + (info.id + 1) * per_worker, end)
        for content in it.dataflux_core.download.dataflux_download_lazy(
            project_name=self.project_name,
            bucket_name=self.bucket_name,
            objects=self.objects[start:end],
            storage_client=self.storage_client,
            dataflux_download_optimization_params=self.dataflux_download_optimization_params,
            retry_config=self.config.download_retry_config,
        ):
            table = self.data_format_fn(content)
            for _ in range(2):
                yield torch.full((512,), float(table))


class Overriding(it.DataFluxIterableDataset):  # type: ignore[misc]
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, data_format_fn=self.data_format_fn, **more)
        self.batch_size = 7

    def data_format_fn(self, data: bytes) -> Any:
        return first(data)


def lightning() -> Any:
    """Samples that a Trainer trains on."""
    import lightning.pytorch as pl

    class Counting(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), 0

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen += len(batch)
            return self.layer(torch.zeros(1, 1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    counts = []
    for cls, workers, batch, drop_last in ((None, 2, 100, False), (None, 3, 30, True), (Tenfold, 2, 100, False)):
        model = Counting()
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
        ds = dataset(cls, data_format_fn=first)
        trainer.fit(model, loader(ds, num_workers=workers, batch_size=batch, drop_last=drop_last))
        counts.append(model.seen)
    return counts


def shares() -> Any:
    """Every number of workers with each way of dividing into batches."""
    ds = dataset(data_format_fn=first)
    found = {}
    for workers in (0, 1, 2, 3, 7):
        for size, drop_last in ((31, False), (62, True)):
            found[f"{workers} workers, {size}"] = seen(ds, num_workers=workers, batch_size=size, drop_last=drop_last)
    return found


def few() -> Any:
    """More workers than there are objects for."""
    return seen(dataset(data_format_fn=first, fields={"prefix": "train/00"}), num_workers=8, batch_size=2)


def subclasses() -> Any:
    tenfold = list(loader(Tenfold("p", bucket, config(), first)))
    named = {"project_name": "p", "bucket_name": bucket, "config": config(), "data_format_fn": first}
    rows: list[Any] = []
    for workers in (0, 2):
        batches = list(loader(Rows(["text"], 10, 1, 3, **named), batch_size=10, num_workers=workers))
        rows += [sizes(batches), list(batches[0].shape), digest([batch[:, 0].tolist() for batch in batches])]
    own = Overriding("p", bucket, config())
    return [sizes(tenfold), rows, seen(own), type(own.objects).__name__]


def attributes() -> Any:
    from google.api_core.retry import Retry

    ds, other = dataset(), dataset(module=mapped)
    retry = ds.config.download_retry_config
    return [
        [hasattr(each, "__len__") for each in (ds, other)],
        [hasattr(ds, name) for name in ("batch_size", "rank", "transform", "shuffle")],
        [bool(each) for each in (ds, other)],
        [ds.storage_client, other.storage_client],
        ds.dataflux_download_optimization_params.max_composite_object_size,
        isinstance(retry, Retry),
        [retry._initial, retry._multiplier, retry._maximum, retry._timeout],
        retry is it.MODIFIED_RETRY,
        it.Config(list_retry_config=None).list_retry_config,
    ]


def lists() -> Any:
    """.objects as programs use it before the loop."""
    ds = dataset(data_format_fn=first)
    objects = ds.objects
    found: list[Any] = [type(objects).__name__, len(objects), objects[0], digest(json.loads(json.dumps(objects)))]
    found.append(digest([("x", 1)] + ds.objects + [("y", 2)]))
    found.append(digest(pickle.loads(pickle.dumps(objects))))
    ds.objects.sort(key=lambda pair: (-pair[1], pair[0]))
    found.append(seen(ds, num_workers=3, batch_size=20))
    random.Random(5).shuffle(ds.objects)
    found.append(seen(ds))
    ds.objects = [pair for pair in ds.objects if pair[1] % 2]
    found.append(seen(ds, num_workers=0))
    ds.objects += ds.objects[:10] + [("other/x", 3)]
    found.append(seen(ds))
    ds.objects = []
    found.append(seen(ds))
    return found


def lists_of_the_map() -> Any:
    # The reference's workers must not inherit a client that was used: they would get each other's answers.
    found: list[Any] = [seen(dataset(module=mapped, data_format_fn=first), num_workers=2)]
    ds = dataset(module=mapped, data_format_fn=first)
    ds.objects.reverse()
    found.append(seen(ds, num_workers=2, batch_size=20))
    ds.objects = ds.objects[:50] + [("other/x", 3)]
    found.append(seen(ds, num_workers=2, batch_size=20))
    found += [len(ds), ds[0], ds[-1], ds[50], ds.__getitems__([5, 5, 1]), digest(list(ds))]
    found.append(seen(ds, num_workers=0, batch_size=3, sampler=[4, 4, 0, 50]))
    return found


def missing() -> Any:
    """Which classes of exceptions a missing bucket raises, and where."""
    from google.api_core.exceptions import NotFound

    found = []
    for kind, error in ((it.DataFluxIterableDataset, NotFound), (mapped.DataFluxMapStyleDataset, RuntimeError)):
        module = it if error is NotFound else mapped
        try:
            kind("p", "no-such-bucket", config(module, max_listing_retries=1))
        except error:
            found.append(error.__name__)
    return found


def core() -> Any:
    """dataflux_core by itself: lists and downloads, in the main process and in DataLoader workers."""
    core = it.dataflux_core
    listed = core.fast_list.ListingController(2, "p", bucket, True, prefix="train/").run()
    parameters = core.download.DataFluxDownloadOptimizationParams(0)
    found: list[Any] = [len(listed), digest(listed)]
    for function in ("dataflux_download", "dataflux_download_threaded", "dataflux_download_lazy"):
        some = getattr(core.download, function)(
            project_name="p",
            bucket_name=bucket,
            objects=[listed[i] for i in (7, 3, 200, 3)] + [("other/x", 3)],
            dataflux_download_optimization_params=parameters,
        )
        found.append([first(data) for data in some])
    more = {"dataflux_download_optimization_params": parameters, "parallelization": 2}
    found.append([first(data) for data in core.download.dataflux_download_parallel("p", bucket, listed[:5], **more)])

    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(listed)

        def __getitem__(self, i: int) -> Any:
            from google.cloud import storage

            return first(core.download.download_single(storage.Client(project="p"), bucket, listed[i][0]))

        def __getitems__(self, indices: Any) -> Any:
            chosen = [listed[i] for i in indices]
            return [first(data) for data in core.download.dataflux_download("p", bucket, chosen, None, parameters)]

    own: Any = Own()
    found += [own[9], seen(own), seen(own, batch_size=None)]
    return found


print(json.dumps({part: globals()[part]() for part in sys.argv[3:]}))
