"""millrace feeds PyTorch training jobs from object storage, through shared memory.

Neither torch nor numpy is needed to import this; DataLoader needs torch when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import ChangedError, Error, SupervisorGone
from ._item import Item
from ._iterable import IterableDataset
from ._map import MapDataset
from ._ring import Lease

if TYPE_CHECKING:
    from ._loader import DataLoader

__all__ = [
    "ChangedError",
    "DataLoader",
    "Error",
    "Item",
    "IterableDataset",
    "Lease",
    "MapDataset",
    "SupervisorGone",
]


def __getattr__(name: str) -> Any:
    if name == "DataLoader":
        from ._loader import DataLoader

        return DataLoader
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")
