"""Loaded by every Python process of a program under tests/reference/run: fixed seeds, notes of what was trained on.

With MR_OBSERVE=FOLDER each process appends one line of JSON for each batch that a torch DataLoader gives it to a file
of its own there: the digest of every sample, in order. The program itself is not changed.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

FOLDER = os.environ.get("MR_OBSERVE")
SMALL_MODEL = "demo.lightning.checkpoint.simulated.llama2_utils"


def note(**fields: Any) -> None:
    assert FOLDER
    with (Path(FOLDER) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(fields) + "\n")


def digest(value: Any) -> str:
    """Of bytes and tensors by content, of anything else by how it prints."""
    import torch

    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        described = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
        data = described + tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else described
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    elif isinstance(value, (list, tuple)):
        data = " ".join(digest(each) for each in value).encode()
    else:
        data = repr(value).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def samples(batch: Any) -> list[str]:
    """The digest of each sample of a batch: a row of the columns that were collated, or an element of a list."""
    import torch

    if isinstance(batch, dict):
        batch = [batch[key] for key in sorted(batch)]
    if isinstance(batch, torch.Tensor) and batch.ndim:
        return [digest(row) for row in batch]
    if isinstance(batch, (list, tuple)):
        columns = [each for each in batch if isinstance(each, list) or (isinstance(each, torch.Tensor) and each.ndim)]
        if batch and len(columns) == len(batch) and len({len(each) for each in columns}) == 1:
            return [digest(rows) for rows in zip(*columns)]
        return [digest(each) for each in batch]
    return [digest(batch)]


def noted(batches: Iterator[Any], loader: int, epoch: int) -> Iterator[Any]:
    for batch in batches:
        note(loader=loader, epoch=epoch, kind=type(batch).__name__, samples=samples(batch))
        yield batch


def after_torch(torch: ModuleType) -> None:
    import random

    import torch.utils.data

    torch.manual_seed(0)
    random.seed(0)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(0)
    if not FOLDER:
        return
    numbers = itertools.count()
    plain = torch.utils.data.DataLoader.__iter__

    def observed(self: Any) -> Iterator[Any]:
        seen = self.__dict__.setdefault("_observed", {"number": next(numbers), "epochs": 0})
        seen["epochs"] += 1
        return noted(plain(self), seen["number"], seen["epochs"] - 1)

    torch.utils.data.DataLoader.__iter__ = observed


def after_models(module: Any) -> None:
    """7 billion parameters are too many here: its table of models gets small ones by the same names."""
    for model in module.models.values():
        model.model_layers, model.intermediate_size, model.hidden_size, model.vocab_size = 2, 32, 16, 64


def after_buffer(module: Any) -> None:
    """torch 2.15 closes a file of a distributed checkpoint twice, and the reference's cannot be: its saves all fail
    (`I/O operation on closed file`). Mended in the control, so that there is something to compare with."""
    buffer = module.DatafluxCheckpointBuffer
    plain = buffer.close

    def close(self: Any) -> None:
        if not self.closed:
            plain(self)

    buffer.close = close


def after_fsdp(module: Any) -> None:
    """Lightning's strategy leaves the device to torch, which then asks for an accelerator: here it is the CPU."""

    def on_cpu(self: Any, model: Any) -> Any:
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)

    module.FSDPStrategy._setup_model = on_cpu


class Hook:
    """A finder that calls a function with a module as soon as that has been imported."""

    def __init__(self, name: str, function: Callable[[Any], None]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run: Callable[[ModuleType], None] = spec.loader.exec_module

        def execute(module: ModuleType) -> None:
            run(module)
            self.function(module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Hook("torch", after_torch))
sys.meta_path.insert(0, Hook(SMALL_MODEL, after_models))
sys.meta_path.insert(0, Hook("dataflux_pytorch.dataflux_checkpoint", after_buffer))
sys.meta_path.insert(0, Hook("lightning.pytorch.strategies.fsdp", after_fsdp))
