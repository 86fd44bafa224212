"""What it costs to bring made-up batches from DataLoader workers to the loop: torch's way beside millrace's.

    .venv/bin/python -m bench.batches [--quick]

Workers that do nothing but collate tensors that they have: what is left is the way of the batch. Each row is a process
of its own; rows of a size take turns. `collate` is the same stack in one process into memory that is warm: the least.
`a number` is torch's loader with 7 for a batch: what its queue takes by itself, whatever is sent.
Columns: CPU seconds a GiB of workers and training process together, and the median time that `next()` held the loop up
(it sleeps between two batches, so that the next one is ready).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKERS, SAMPLES = 2, 8
SIZES_MIB = (10, 40, 150)
WAYS = ("torch", "millrace", "torch, pinned", "millrace, pinned", "a number", "collate")


def cpu(workers: Any = ()) -> float:
    """Seconds of this process and of living workers."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ticks = 0
    for worker in workers:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def loader(way: str, size: int, batches: int) -> Any:
    import torch
    from torch.utils.data import DataLoader, Dataset

    import millrace

    class Made(Dataset[Any]):
        kept: Any = None

        def __len__(self) -> int:
            return batches * SAMPLES

        def __getitems__(self, ids: list[int]) -> list[Any]:
            if self.kept is None:
                self.kept = torch.ones(size // SAMPLES, dtype=torch.uint8)
            return [self.kept] * len(ids)

    collate = seven if way == "a number" else None
    made = DataLoader(
        Made(),
        SAMPLES,
        False,
        num_workers=WORKERS,
        collate_fn=collate,
        pin_memory="pinned" in way,
        persistent_workers=True,
    )
    return millrace.transport(made) if way.startswith("millrace") else made


def seven(samples: Any) -> int:
    return 7


def collate(size: int, batches: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    one = torch.ones(size // SAMPLES, dtype=torch.uint8)
    out = torch.empty((SAMPLES, size // SAMPLES), dtype=torch.uint8)
    torch.stack([one] * SAMPLES, 0, out=out)
    before = cpu()
    for _ in range(batches):
        torch.stack([one] * SAMPLES, 0, out=out)
    return {"cpu_s_per_gib": (cpu() - before) / (batches * size) * 2**30, "held_up_ms": 0.0}


def measure(way: str, size: int, batches: int) -> dict[str, float]:
    """The second and third epoch of three, so that nothing is touched for the first time: as in a long run."""
    if way == "collate":
        return collate(size, batches)
    made = loader(way, size, batches)
    for _ in made:
        pass
    workers = made._iterator._workers
    before = cpu(workers)
    held_up = []
    for _ in range(2):
        iterator = iter(made)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            held_up.append(time.perf_counter() - asked)
            if batch is None:
                break
            time.sleep(0.002 * (size >> 20) ** 0.5 + size / 2e9)  # the batch after the next is ready by then
    total = 2 * batches * size / 2**30
    return {"cpu_s_per_gib": (cpu(workers) - before) / total, "held_up_ms": statistics.median(held_up) * 1e3}


def run(way: str, size: int, batches: int) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "bench.batches", "--one", way, str(size), str(batches)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What batches cost on their way to the loop.")
    parser.add_argument("--quick", action="store_true", help="a third of the batches")
    parser.add_argument("--one", nargs=3, metavar=("WAY", "SIZE", "BATCHES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        way, size, batches = arguments.one
        print(json.dumps(measure(way, int(size), int(batches))))
        return
    print(f"{'batch':>8}  {'way':<17} {'CPU-s/GiB':>9} {'held up, ms':>11}")
    for mib in SIZES_MIB:
        batches = max(6, (1 if arguments.quick else 3) * 1024 // mib)
        for way in WAYS:
            found = run(way, mib << 20, batches)
            print(f"{mib:>4} MiB  {way:<17} {found['cpu_s_per_gib']:>9.2f} {found['held_up_ms']:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
