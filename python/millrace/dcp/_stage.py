"""A copy of a state on the CPU, which training does not change: what async_save saves."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

AsyncStager: Any
try:
    from torch.distributed.checkpoint.staging import AsyncStager
except ImportError:  # torch 2.3.1, whose async_save copies by itself what is not on the CPU
    AsyncStager = object


def staged(value: Any, sharded_are_copies: bool = False) -> Any:
    """The state with every tensor copied: plain ones, DTensors and ShardedTensors.

    The containers' types stay: torch saves the parts of a dict and a list by themselves, and a tuple as a whole.
    sharded_are_copies: DTensors and ShardedTensors on the CPU were brought there for this alone.
    """
    kind = type(value)
    if kind in (dict, collections.OrderedDict):
        return kind((key, staged(each, sharded_are_copies)) for key, each in value.items())
    if kind in (list, tuple):
        return kind(staged(each, sharded_are_copies) for each in value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if not isinstance(value, ShardedTensor):
        value = value.detach()
    if value.device.type != "cpu":
        return value.to(device="cpu")
    return value if sharded_are_copies else copy.deepcopy(value)
