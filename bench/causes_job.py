"""A training that waits for what bench/causes.py has planted: one rank of it, until it is killed."""

from __future__ import annotations

import concurrent.futures
import fcntl
import json
import logging
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

import millrace

logging.basicConfig(level=logging.INFO, format="%(message)s")
ASKED: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
_pool: Any = None


def asked(name: str, default: Any = 0) -> Any:
    return ASKED.get(name, default)


def is_slow() -> bool:
    return asked("slow_rank", None) in (None, asked("rank"))


def compute(ms: float) -> int:
    """On this thread's core, in Python: so much work, whatever else the core has to do."""
    steps = 0
    for _ in range(int(ms * 14_000)):
        steps += 1
    return steps


def threads(count: int, ms: float) -> None:
    global _pool
    _pool = _pool or concurrent.futures.ThreadPoolExecutor(count)
    list(_pool.map(compute, [ms / count] * count))


class Row:
    """What pickle takes long for."""

    def __init__(self, number: int) -> None:
        self.number, self.name = number, str(number)


def transform(lease: Any) -> Any:
    if is_slow() and asked("sleep_ms"):
        time.sleep(asked("sleep_ms") / 1e3)
    if asked("lock_ms"):
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            time.sleep(asked("lock_ms") / 1e3)
    if asked("threads"):
        threads(asked("threads"), asked("compute_ms"))
    elif asked("compute_ms"):
        compute(asked("compute_ms"))
    if asked("tensor_bytes"):
        return torch.zeros(asked("tensor_bytes"), dtype=torch.uint8)
    if asked("pickles"):
        return ROWS
    return len(lease)


LOCK = Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"), "causes.lock")
ROWS = [Row(number) for number in range(asked("pickles") // 8)]


def collate(samples: list[Any]) -> Any:
    time.sleep(asked("collate_ms") / 1e3)
    return torch.tensor(samples)


def save(step: int) -> None:
    if asked("save_every") and step % asked("save_every") == 0:
        with millrace.checkpoint.writer("gs://data/saved.pt") as file:
            file.write(bytes(asked("save_mib") << 20))


def main() -> None:
    if asked("sync"):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked("port")))
        torch.distributed.init_process_group("gloo", rank=asked("rank"), world_size=asked("world"))
    torch.set_num_threads(1)
    dataset = millrace.IterableDataset(
        "gs://data/", transform=transform, rank=asked("rank"), world_size=asked("world", 1)
    )
    how = {"collate_fn": collate} if asked("collate_ms") else {"collate_fn": list} if asked("pickles") else {}
    loader = millrace.DataLoader(dataset, batch_size=asked("batch", 16), num_workers=asked("workers", 2), **how)
    step, weights = 0, torch.zeros(10)
    kept: deque[Any] = deque(maxlen=asked("keep"))
    while True:
        for batch in loader:
            kept.append(batch)
            del batch
            time.sleep(asked("step_ms", 1) / 1e3)
            if asked("sync"):
                torch.distributed.all_reduce(weights)
            step += 1
            save(step)


if __name__ == "__main__":
    main()
