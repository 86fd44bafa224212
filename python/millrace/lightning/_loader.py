"""DataLoader with the length and the state that Lightning's loops count with."""

from __future__ import annotations

from typing import Any

from .._loader import DataLoader as _DataLoader
from .._progress import number


class DataLoader(_DataLoader):
    """millrace.DataLoader for a Trainer: `len` is the steps of the whole epoch, also after a resume in its middle.

    Lightning goes on counting where the checkpoint was taken and compares with `len`. millrace.DataLoader's is of what
    iterates next; here the steps before belong to it, and to the state.
    """

    def __len__(self) -> int:
        return self._batch_source.progress.steps + self._batch_source.left()

    def state_dict(self) -> dict[str, Any]:
        """As millrace.DataLoader's, and `steps`: the batches of this epoch that were given."""
        return {**super().state_dict(), "steps": self._batch_source.progress.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        steps = number(state, "steps")
        super().load_state_dict(state)
        self._batch_source.progress.steps = steps
