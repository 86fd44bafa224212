"""measure: how much of a training loop's time its loader takes, and how much there is to gain."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import islice
from typing import Any, Callable, NamedTuple

from . import _arguments

_MS = 1e-6
_MISSING: Any = object()


class _Pass(NamedTuple):
    batches: int
    ns: int  # without what came before its first batch
    first_ns: int

    def ms(self) -> float:
        return self.ns / max(self.batches - 1, 1) * _MS


def measure(
    loader: Iterable[Any], step: Callable[[Any], Any], batches: int = 100, *, show: bool = True
) -> dict[str, float]:
    """Runs `loader` without `step`, `step` without `loader` (over one batch that is kept), and both, for `batches`
    batches each or as many as an epoch has; prints the three, and returns them.

    loader is any iterable of batches that can be iterated again, torch's DataLoader too. step is what a loop does with
    a batch; work that it leaves to a GPU is waited for at the end of each run. show=False prints nothing.

    Milliseconds a batch: loader_ms, step_ms, both_ms (the loop as it is), first_ms (until a loop has its first batch);
    wait_ms = both_ms - step_ms, which a loader that costs nothing would save. A loader with state_dict has the same
    state afterwards, also if step raises, and begins its next epoch there. ValueError where the loader gives fewer than
    two batches.
    """
    count = _arguments.integer("batches", batches, 2, 1 << 31)
    save, load = getattr(loader, "state_dict", None), getattr(loader, "load_state_dict", None)
    state = save() if save is not None and load is not None else None
    try:
        alone, kept = _run(loader, count, None)
        replayed, _ = _run([kept] * alone.batches, alone.batches, step)
        if state is not None and load is not None:
            load(state)
        both, _ = _run(loader, count, step)
    finally:
        if state is not None and load is not None:
            load(state)
    found = {
        "batches": both.batches,
        "loader_ms": alone.ms(),
        "step_ms": replayed.ms(),
        "both_ms": both.ms(),
        "first_ms": both.first_ns * _MS,
    }
    found["wait_ms"] = max(found["both_ms"] - found["step_ms"], 0.0)
    if _arguments.boolean("show", show):
        print(_table(found))
    return found


def _run(loader: Iterable[Any], count: int, step: Callable[[Any], Any] | None) -> tuple[_Pass, Any]:
    began = time.monotonic_ns()
    first = taken = 0
    batch = _MISSING
    for batch in islice(loader, count):
        taken += 1
        if taken == 1:
            _finish()
            first = time.monotonic_ns()
        elif step is not None:
            step(batch)
    _finish()
    ended = time.monotonic_ns()
    if taken < 2:
        raise ValueError(f"the loader gave {taken} batches: two are the least to measure")
    return _Pass(taken, ended - first, first - began), batch


def _finish() -> None:
    """Until the GPU has done what it was given."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()


def _table(found: dict[str, float]) -> str:
    share = found["wait_ms"] / found["both_ms"] if found["both_ms"] else 0.0
    return "\n".join(
        (
            f"{'':22}{'ms a batch':>10}",
            f"{'loader, empty loop':22}{found['loader_ms']:10.2f}",
            f"{'step, one kept batch':22}{found['step_ms']:10.2f}",
            f"{'loader and step':22}{found['both_ms']:10.2f}   first batch after {found['first_ms']:.0f} ms",
            f"{'waited':22}{found['wait_ms']:10.2f}   {share:.0%}, over {found['batches']:.0f} batches",
        )
    )
