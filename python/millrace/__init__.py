"""millrace feeds PyTorch training jobs from object storage, through shared memory.

Neither torch nor numpy is needed to import this; DataLoader, transport and batch_empty need torch when they are first
used. The submodules checkpoint, dcp, fs, lightning, dataflux, s3torchconnector and awsio are imported when they are
first used as well: `import millrace` is enough.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _interpreter  # noqa: F401  first: it says so where nothing below can work
from ._errors import ChangedError, Error, SupervisorGone
from ._item import Item
from ._iterable import IterableDataset
from ._map import MapDataset
from ._measure import measure
from ._ring import Lease
from ._sample import Sample

if TYPE_CHECKING:
    from . import awsio as awsio
    from . import checkpoint as checkpoint
    from . import dataflux as dataflux
    from . import dcp as dcp
    from . import fs as fs
    from . import lightning as lightning
    from . import s3torchconnector as s3torchconnector
    from ._batches import batch_empty as batch_empty
    from ._batches import transport as transport
    from ._file import File as File
    from ._file import TextFile as TextFile
    from ._file import open as open
    from ._loader import DataLoader

# Without open, which would hide the builtin one, and the submodules: `from millrace import *` imports neither
# torch.distributed nor Lightning.
__all__ = [
    "ChangedError",
    "DataLoader",
    "Error",
    "Item",
    "IterableDataset",
    "Lease",
    "MapDataset",
    "Sample",
    "SupervisorGone",
    "batch_empty",
    "measure",
    "transport",
]

_SUBMODULES = ("awsio", "checkpoint", "dataflux", "dcp", "fs", "lightning", "s3torchconnector")
_FILES = ("File", "TextFile", "open")


def __getattr__(name: str) -> Any:
    if name == "DataLoader":
        from ._loader import DataLoader

        return DataLoader
    if name in ("batch_empty", "transport"):
        return getattr(import_module(f"{__name__}._batches"), name)
    if name in _FILES:
        return getattr(import_module(f"{__name__}._file"), name)
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")  # which makes it an attribute: this is not asked again
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FILES, *_SUBMODULES})
