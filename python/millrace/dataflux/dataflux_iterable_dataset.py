"""`Config` and `DataFluxIterableDataset`, as the module of this name in gcs-torch-dataflux has them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Callable

from .. import _arguments, _torch
from .._iterable import IterableDataset
from . import _retry, dataflux_core
from ._config import BaseConfig
from ._dataset import DropIn, data_format_default
from ._google import GoogleIterable

__all__ = ["Config", "DataFluxIterableDataset", "data_format_default", "dataflux_core"]

log = logging.getLogger("millrace")
_logged_ranks = False


class Config(BaseConfig):
    """The reference's fields, in its order. docs/migrating.md describes what each does here."""


class DataFluxIterableDataset(DropIn):
    """The objects of a bucket, divided among DataLoader workers: each sample is data_format_fn of its bytes.

    As in gcs-torch-dataflux every rank gets all objects, a worker a part of `.objects` without gaps, and there is no
    len(). The keyword-only arguments are those of millrace.IterableDataset; with one that changes the order (shuffle,
    batch_size, rank, ...) iterating is as of that.
    """

    _torch_base = "IterableDataset"
    config_class = Config

    def __init__(
        self,
        project_name: Any,
        bucket_name: str,
        config: BaseConfig | None = None,
        data_format_fn: Callable[[bytes], Any] = data_format_default,
        storage_client: Any = None,
        *,
        on_error: str | None = None,
        window: int | None = None,
        writable: bool = False,
        **order: Any,
    ) -> None:
        super().__init__(project_name, bucket_name, config, data_format_fn, storage_client)
        self._is_planned = bool(order)
        ranks: dict[str, Any] = {} if "rank" in order or "world_size" in order else {"rank": 0, "world_size": 1}
        self._millrace = GoogleIterable(
            self._listed, on_error=on_error, window=window, writable=writable, **ranks, **order
        )

    def __iter__(self) -> Iterator[Any]:
        if self._is_planned:
            yield from self.millrace
            return
        worker, workers = _torch.worker() or (0, 1)
        if worker == 0:
            _log_ranks()
        count = self._count()
        share = -(-count // workers)
        yield from self._read(range(min(worker * share, count), min((worker + 1) * share, count)))

    @property
    def millrace(self) -> IterableDataset:
        """The millrace.IterableDataset over the same listing: what millrace.DataLoader reads."""
        self._check_own(DataFluxIterableDataset, "__iter__")
        found: IterableDataset = self._formatted()
        return found


def _log_ranks() -> None:
    """Once a process: in a job of several ranks this is seldom what is wanted."""
    global _logged_ranks
    world = 1
    with contextlib.suppress(ValueError):  # the environment's ranks do not fit; nothing here divides by them
        _, world = _arguments.resolve_rank(None, None)
    if world > 1 and not _logged_ranks:
        _logged_ranks = True
        log.info(
            "each of the %d ranks reads every object, as in gcs-torch-dataflux: rank= and world_size= divide them",
            world,
        )


def __getattr__(name: str) -> Any:
    if name == "MODIFIED_RETRY":  # it needs Google's library, and nothing else here does
        return _retry.of_data_sets()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
