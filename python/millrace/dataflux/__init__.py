"""The names of gcs-torch-dataflux over millrace: `sed s/dataflux_pytorch/millrace.dataflux/` is the migration.

docs/migrating.md says what each field of a Config does here.
"""

from . import dataflux_checkpoint, dataflux_iterable_dataset, dataflux_mapstyle_dataset

__all__ = ["dataflux_checkpoint", "dataflux_iterable_dataset", "dataflux_mapstyle_dataset"]
