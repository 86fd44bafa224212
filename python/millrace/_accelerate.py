"""Hugging Face Accelerate, and the Trainer of transformers, which trains with it. Nothing here imports it before it is
used.

`Accelerator.prepare` makes loaders of its own out of torch's. One of an iterable data set divides what it gives by the
number of ranks: rank 0 reads for all of them, or each drops what is not its own. A data set of millrace's gives a rank
its part already, and divided again most samples would never be seen, without an error. So prepare leaves a
millrace.DataLoader as it is, which does itself what else it is prepared for; other loaders are refused as they begin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ._errors import Error

_MODULE = "accelerate.data_loader"
_DIVIDING = ("DataLoaderDispatcher", "IterableDatasetShard")


def refuse_to_divide(world: int) -> None:
    """Error if a loader of Accelerate's iterates what is already this rank's part of `world`. To be called by what is
    iterated or pickled, in the loop's process or a worker forked from it: the loader is found on the stack."""
    if world == 1 or _MODULE not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None and not _divides(frame.f_locals.get("self"), frame.f_globals.get("__name__")):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None:
        raise Error(
            f"Accelerate divides the samples among the ranks, and this data set gives each of the {world} ranks its "
            "part already: most samples would never be read. Give Accelerator.prepare a millrace.DataLoader, or a "
            "transformers Trainer one by its get_train_dataloader, or use a MapDataset; with rank=0, world_size=1 the "
            "data set is not divided (docs/python.md)"
        )


def _divides(loader: Any, module: Any) -> bool:
    if module != _MODULE or type(loader).__name__ not in _DIVIDING:
        return False
    counts = loader if hasattr(loader, "num_processes") else getattr(loader, "state", None)
    return bool(getattr(counts, "num_processes", 2) > 1)


class _Dataset:
    """The attribute `dataset` of a loader. accelerate.skip_first_batches would take it to another loader."""

    def __get__(self, loader: Any, cls: type) -> Any:
        caller = sys._getframe(1)
        if caller.f_code.co_name == "skip_first_batches" and caller.f_globals.get("__name__") == _MODULE:
            raise ValueError(
                "skip_first_batches would read the batches of a millrace.DataLoader with another loader, in another "
                "order: load_state_dict(state) continues after the batch of the state, and Accelerator.save_state and "
                "load_state do that for a prepared loader; a transformers Trainer needs ignore_data_skip=True, or a "
                "MapDataset as train_dataset (docs/python.md)"
            )
        try:
            return loader.__dict__["dataset"]
        except KeyError:
            raise AttributeError("dataset") from None

    def __set__(self, loader: Any, value: Any) -> None:
        loader.__dict__["dataset"] = value


class Preparable:
    """What Accelerate expects of a loader that it has prepared. millrace.DataLoader is one, prepared or not."""

    dataset: Any = _Dataset()
    use_stateful_dataloader = True  # Accelerator.save_state and load_state keep its state_dict()
    end_of_dataloader = False  # the batch that the loop has is the last one
    remainder = -1  # that batch's samples, of all ranks together; -1: not known, or all
    _is_prepared = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerator.prepare asks for it, and takes the loader as it is: from then on it is prepared."""
        asks = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        self._is_prepared |= asks == "accelerate"
        return self._is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        self._is_prepared = bool(value)


def mover(loader: Any) -> Callable[[Any], Any] | None:
    """What brings a batch of a prepared loader to the accelerator's device. None: the loader has one of its own."""
    if loader._inner._millrace_device is not None:
        return None
    from accelerate.state import PartialState
    from accelerate.utils import send_to_device

    return partial(send_to_device, device=PartialState().device, non_blocking=loader.pin_memory)


class PreparedIteration(Iterator[Any]):
    """The batches of a prepared loader, with what `accumulate` and `gather_for_metrics` ask for."""

    def __init__(self, loader: Any, batches: Any) -> None:
        from accelerate.state import GradientState

        self._loader, self._batches = loader, batches
        self._state = GradientState()
        loader.end_of_dataloader, loader.remainder = False, -1
        self._state._remove_dataloader(loader)  # of an iteration that was left
        self._state._add_dataloader(loader)

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        loader, source = self._loader, self._loader._batch_source
        cursor = source.progress.cursor
        try:
            batch = next(self._batches)
        except BaseException:
            self._state._remove_dataloader(loader)
            raise
        if self._batches.is_over():
            loader.end_of_dataloader, loader.remainder = True, source.samples_since(cursor)
        return batch
