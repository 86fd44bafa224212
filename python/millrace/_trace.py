"""Spans of this process: for `millrace trace`, and as NVTX ranges where Nsight Systems profiles it.

Both are off as a rule, and cost a look at a flag then. NVTX: under `nsys profile`, which says so in the environment, or
with MILLRACE_NVTX=1; never with MILLRACE_NVTX=0, nor where torch is not imported or has no CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ._ring import trace, tracing

__all__ = ["now", "nvtx", "span", "trace", "tracing", "transformed"]

log = logging.getLogger("millrace")
Item = TypeVar("Item")
now = time.monotonic_ns


@functools.cache
def nvtx() -> Any:
    """torch.cuda.nvtx, or None where no ranges are wanted. Decided once a process."""
    wanted = os.environ.get("MILLRACE_NVTX", "")
    if wanted == "0" or not (wanted or os.environ.get("NSYS_PROFILING_SESSION_ID")):
        return None
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.version, "cuda", None) is None:
        if wanted:
            log.warning("MILLRACE_NVTX=%s has no effect: this torch has no CUDA", wanted)
        return None
    return torch.cuda.nvtx


class _Range:
    """An NVTX range of this thread."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        nvtx().range_push(self.name)

    def __exit__(self, *error: object) -> None:
        nvtx().range_pop()


_NOTHING = contextlib.nullcontext()


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """An NVTX range of that name around a block, where they are wanted."""
    return _NOTHING if nvtx() is None else _Range(name)


def transformed(transform: Callable[[Item], Any], item: Item, index: int) -> Any:
    """transform(item), of the object of that number."""
    if not tracing() and nvtx() is None:
        return transform(item)
    began = now()
    try:
        with span("millrace: transform"):
            return transform(item)
    finally:
        trace("transform", began, index)
