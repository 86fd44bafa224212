"""What every saver of the checkpoint benchmark does: it waits for a command, obeys, and says how long it took.

A saver prints "ready" when its client is open. Then each line on standard input is a JSON object with "op", answered by
a line of JSON:

    make     {bytes}   makes the state dict that this process is to save
    save     {name}    saves it; {blocked_s: until training could go on, total_s: until the store confirmed the object}
    drop               forgets it
    load     {name}    loads it; {wall_s}
    compare  {bytes}   compares what was loaded with what `make` had made, bit for bit, and forgets it; {tensors}
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch

State = dict[str, torch.Tensor]
Wait = Optional[Callable[[], object]]
SLAB_WORDS = 8 << 20  # of 4 bytes: larger than a cache
SIZES = [16 << 20, 1 << 10, 4 << 20, 16 << 10, 4 << 20]  # of tensors, repeated: matrices, biases, norms


class Saver(ABC):
    """One system."""

    @abstractmethod
    def save(self, name: str, state: State) -> Wait:
        """Returns when training could go on: the state dict may change. What it returns waits for the confirmation;
        None: there is nothing to wait for."""

    @abstractmethod
    def load(self, name: str) -> State: ...


def slab() -> torch.Tensor:
    """Noise, the same in every process."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-(2**31), 2**31 - 1, (SLAB_WORDS,), dtype=torch.int32, generator=generator)


def tensors(total: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of `total` bytes in all, each of other bytes, at about the speed of a copy."""
    noise, left, number = slab(), total // 4, 0
    while left:
        words = min(left, SIZES[number % len(SIZES)] // 4)
        at = (number * 7919) % (SLAB_WORDS - words) if words < SLAB_WORDS else 0
        made = noise[at : at + words] ^ number
        columns = math.gcd(words, 256)
        yield f"layers.{number // len(SIZES)}.{number}", made.view(torch.float32).reshape(-1, columns)
        left -= words
        number += 1


def compare(found: State, total: int) -> int:
    """The number of tensors; an exception where one differs."""
    count = 0
    for name, made in tensors(total):
        if not torch.equal(found[name].view(torch.int32), made.view(torch.int32)):
            raise RuntimeError(f"wrong data: {name} is not what was saved")
        count += 1
    if count != len(found):
        raise RuntimeError(f"wrong data: {len(found)} tensors where {count} were saved")
    return count


def serve(saver: Saver) -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    state: State = {}
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        operation = command["op"]
        answer: dict[str, Any] = {}
        if operation == "make":
            state = dict(tensors(command["bytes"]))
        elif operation == "save":
            answer = save(saver, command["name"], state)
        elif operation == "drop":
            state = {}
        elif operation == "load":
            begun = time.perf_counter()
            state = saver.load(command["name"])
            answer = {"wall_s": time.perf_counter() - begun}
        elif operation == "compare":
            answer = {"tensors": compare(state, command["bytes"])}
            state = {}
        else:
            raise SystemExit(f"no operation {operation!r}")
        if operation in ("make", "drop", "compare"):
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps freed tensors under 32 MiB: the next system needs the memory
        print(json.dumps(answer), flush=True)


def save(saver: Saver, name: str, state: State) -> dict[str, float]:
    begun = time.perf_counter()
    wait = saver.save(name, state)
    blocked = time.perf_counter() - begun
    if wait is not None:
        wait()
    return {"blocked_s": blocked, "total_s": time.perf_counter() - begun}
