"""DataLoader with the length and the state that Lightning's loops count with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from .._errors import Error
from .._loader import DataLoader as _DataLoader
from .._progress import number


class DataLoader(_DataLoader):
    """millrace.DataLoader for a Trainer: `len` is the steps of the whole epoch, also after a resume in its middle.

    Lightning goes on counting where the checkpoint was taken and compares with `len`. millrace.DataLoader's is of what
    iterates next; here the steps before belong to it, and to the state. The first batch that a Trainer takes, of a new
    one or after the Trainer has loaded its state, is of the epoch and the step at which the Trainer stands.
    """

    _is_new = True  # the Trainer has had no batch since it was made, or since the Trainer loaded its state
    _is_placed = False  # by set_epoch or load_state_dict
    _is_trainers = False  # its state is of the Trainer's checkpoint

    def __len__(self) -> int:
        return self._batch_source.progress.steps + self._batch_source.left()

    def __iter__(self) -> Any:
        iteration = super().__iter__()
        return _First(self, iteration) if self._is_new else iteration

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._is_placed = True

    def state_dict(self) -> dict[str, Any]:
        """As millrace.DataLoader's, and `steps`: the batches of this epoch that were given; `before`: the cursor before
        the last of them."""
        progress = self._batch_source.progress
        return {**super().state_dict(), "steps": progress.steps, "before": min(progress.before, progress.cursor)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        steps = number(state, "steps")
        super().load_state_dict(state)
        progress = self._batch_source.progress
        progress.steps, progress.before = steps, number(state, "before") if "before" in state else progress.cursor
        package = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        self._is_trainers = package in ("lightning", "pytorch_lightning")
        self._is_new = self._is_placed = True

    def _in_step(self, iteration: Any) -> Any:
        """The iteration that the Trainer needs now: this one, or another where Lightning has loaded no state, or has
        saved one at the end of an epoch and begins the next."""
        loop = _training_loop()
        if loop is None:
            return iteration
        self._is_new = False
        progress, fit_loop = self._batch_source.progress, loop.trainer.fit_loop
        ready, epoch = loop.batch_progress.current.ready, fit_loop.epoch_progress.current.processed
        if not self._is_placed and (ready > 0 or epoch > 0):
            _load_states(fit_loop)  # which Lightning leaves out after trainer.estimated_stepping_batches
            self._is_new = False
        if not self._is_placed and ready > 0:
            raise Error(
                f"the Trainer goes on after batch {ready} of epoch {epoch}, and its checkpoint has no state of this "
                "loader: resume with the one that it was saved with, or call set_epoch to begin an epoch anew"
            )
        if not self._is_placed and epoch > 0:
            self._batch_source.set_epoch(epoch)  # made anew: reload_dataloaders_every_n_epochs
        elif self._is_trainers and ready == 0 and self._is_behind(epoch):
            progress.finish()  # all of its epoch, or what limit_train_batches left of it
        elif self._is_trainers and self._is_in_hand(loop):
            progress.cursor, progress.steps = progress.before, ready
        elif iteration._serial == progress.serial:
            return iteration
        iteration._abandon(StopIteration())  # its workers end before others start
        return super().__iter__()

    def _is_in_hand(self, loop: Any) -> bool:
        """The Trainer was saved within a training step, as by a signal's handler, and makes it again."""
        progress = self._batch_source.progress
        since_2_5 = hasattr(loop, "restarted_on_train_batch_end")  # before, a step that was made was also made again
        return (
            bool(loop.restarting and since_2_5)
            and progress.steps == loop.batch_progress.current.ready + 1
            and progress.before < progress.cursor
        )

    def _is_behind(self, epoch: int) -> bool:
        """The Trainer begins an epoch, and the state is of one before. Not where it was saved with the first batch of
        this one in hand."""
        progress = self._batch_source.progress
        return progress.steps > 1 or (progress.steps == 1 and epoch > progress.epoch)


class _First(Iterator[Any]):
    """An iteration that may be another one when its first batch is asked for."""

    def __init__(self, loader: DataLoader, iteration: Any) -> None:
        self._loader: DataLoader | None = loader
        self._iteration = iteration

    def __len__(self) -> int:
        return len(self._iteration)

    def __next__(self) -> Any:
        loader, self._loader = self._loader, None
        if loader is not None:
            self._iteration = loader._in_step(self._iteration)
        return next(self._iteration)


def _training_loop() -> Any:
    """Lightning's loop over the batches of an epoch, if that is what asks for one: not a validation within it, nor the
    training step."""
    frame = sys._getframe(3)  # of who asked
    while str(frame.f_globals.get("__name__")).endswith((".fetchers", ".combined_loader")) and frame.f_back is not None:
        frame = frame.f_back
    loop = frame.f_locals.get("self")
    return loop if type(loop).__name__ == "_TrainingEpochLoop" else None


def _load_states(fit_loop: Any) -> None:
    load = getattr(fit_loop, "_load_combined_loader_states", None)
    if load is not None:
        load()
