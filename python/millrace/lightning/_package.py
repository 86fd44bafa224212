"""Which Lightning this process uses: `lightning` and `pytorch_lightning` are two packages with classes of their own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

NAMES = ("lightning.pytorch", "pytorch_lightning")


def _choose() -> str:
    for name in NAMES:
        if name in sys.modules:
            return name
    for name in NAMES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return name
    raise ImportError("millrace.lightning needs Lightning 2.0 or later: `pip install lightning`")


PACKAGE = _choose()


def module(name: str) -> Any:
    """A module of the Lightning that was imported before this, or is installed."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def register(cls: type) -> None:
    """Makes cls a CheckpointIO of each Lightning that is loaded, since a Trainer takes only those of its own."""
    for name in NAMES:
        if name in sys.modules:
            importlib.import_module(f"{name}.plugins.io").CheckpointIO.register(cls)
