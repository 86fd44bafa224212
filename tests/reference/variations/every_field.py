"""A Config with every field, by name and by position, of both kinds. Argument: bucket."""

import hashlib
import sys

from dataflux_pytorch import dataflux_iterable_dataset, dataflux_mapstyle_dataset
from google.cloud.storage.retry import DEFAULT_RETRY

retry = DEFAULT_RETRY.with_deadline(300.0).with_delay(initial=1.0, multiplier=1.2, maximum=45.0)
fields = {
    "sort_listing_results": True,
    "max_composite_object_size": 1000000,
    "num_processes": 2,
    "prefix": "objects/",
    "max_listing_retries": 5,
    "disable_compose": False,
    "list_retry_config": retry,
    "download_retry_config": retry.with_deadline(600.0),
}
kinds = (
    (dataflux_mapstyle_dataset, dataflux_mapstyle_dataset.DataFluxMapStyleDataset, {"threads_per_process": 2}),
    (dataflux_iterable_dataset, dataflux_iterable_dataset.DataFluxIterableDataset, {}),
)
for module, dataset_class, more in kinds:
    names = [*list(fields)[:5], *more, *list(fields)[5:]]
    values = {**fields, **more}
    for config in (
        module.Config(**values),
        module.Config(*(values[name] for name in names)),
        module.Config(**{**values, "disable_compose": True}),
        module.Config(**{**values, "list_retry_config": None, "download_retry_config": None}),
    ):
        kept = {name: getattr(config, name) for name in names if name != "disable_compose"}
        print(sorted((name, str(value)) for name, value in kept.items() if "retry" not in name or value is None))
        dataset = dataset_class(project_name="project", bucket_name=sys.argv[1], config=config)
        digest = hashlib.sha256()
        for content in dataset:
            digest.update(content)
        print(dataset_class.__name__, len(dataset.objects), digest.hexdigest()[:16])
    config = module.Config()
    config.prefix, config.max_composite_object_size, config.num_processes = "objects/0", 0, 1
    print(len(dataset_class("project", sys.argv[1], config).objects))
