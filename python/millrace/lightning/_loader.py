"""DataLoader with the length and the state that Lightning's loops count with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._loader import DataLoader as _DataLoader
from .._progress import number


class DataLoader(_DataLoader):
    """millrace.DataLoader for a Trainer: `len` is the steps of the whole epoch, also after a resume in its middle.

    Lightning goes on counting where the checkpoint was taken and compares with `len`. millrace.DataLoader's is of what
    iterates next; here the steps before belong to it, and to the state.
    """

    _given = 0  # batches of this epoch, here and before the resume

    def __iter__(self) -> Any:
        batches = super().__iter__()
        if self._batch_source.progress.cursor == 0:
            self._given = 0
        return _Counted(self, batches)

    def __len__(self) -> int:
        return self._given + self._batch_source.left()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if self._batch_source.progress.cursor == 0:
            self._given = 0

    def state_dict(self) -> dict[str, Any]:
        """As millrace.DataLoader's, and `steps`: the batches of this epoch that were given."""
        return {**super().state_dict(), "steps": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        steps = number(state, "steps")
        super().load_state_dict(state)
        self._given = steps


class _Counted(Iterator[Any]):
    """The batches of an epoch. It keeps none while the next one is made."""

    def __init__(self, loader: DataLoader, batches: Any) -> None:
        self._loader, self._batches = loader, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._given = 0
            raise
        self._loader._given += 1
        return batch
