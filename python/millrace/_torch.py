"""What millrace knows about torch without importing it: it works with torch loaded, and without."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ._item import Item
from ._ring import Lease
from ._sample import Sample

_mixed: dict[tuple[type, str], type] = {}


def data_module() -> Any:
    """torch.utils.data when it is loaded (and not half loaded), else None."""
    module = sys.modules.get("torch.utils.data")
    return module if hasattr(module, "DataLoader") else None


def worker() -> tuple[int, int] | None:
    """(number, count) in a DataLoader worker, else None."""
    module = data_module()
    info = module.get_worker_info() if module is not None else None
    return None if info is None else (info.id, info.num_workers)


def loader_asking(dataset: Any, frame: FrameType) -> Any:
    """The DataLoader of this data set whose __len__ asks for its length, or None. frame: who asks, one up from __len__.

    torch asks a data set for its length and then divides by the batch size, as if there were one worker. Only the
    loader that asks knows how many there are; of a ChainDataset, which adds lengths up, no loader's can be right.
    """
    caller = frame.f_locals.get("self") if frame.f_code.co_name == "__len__" else None
    if any(each is dataset for each in getattr(caller, "datasets", ())):
        raise TypeError("the length of several data sets in a row depends on the loader's workers: none is known")
    asks = getattr(caller, "dataset", None) is dataset and hasattr(caller, "num_workers")
    return caller if asks else None


def mixed(cls: type, base: str) -> type:
    """cls with torch.utils.data.<base> among its bases once torch is loaded: what isinstance checks.

    torch's DataLoader recognises iterable data sets by isinstance, and torch may be imported before or after a data set
    is made; so the class that an instance reports is decided when it is asked.
    """
    module = data_module()
    if module is None:
        return cls
    register_collate()
    known = _mixed.get((cls, base))
    if known is None:
        known = type(getattr(module, base))(cls.__name__, (cls, getattr(module, base)), {"__module__": cls.__module__})
        _mixed[cls, base] = known
    return known


def register_collate() -> None:
    """Leases, Items and Samples collate to a list."""
    if data_module() is None:
        return
    from torch.utils.data._utils.collate import default_collate_fn_map

    for cls in (Lease, Item, Sample):
        default_collate_fn_map.setdefault(cls, _collate)


def _collate(batch: list[Any], *, collate_fn_map: Any = None) -> list[Any]:
    return list(batch)
