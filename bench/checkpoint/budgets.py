"""The budgets of checkpoints, measured in one run on this machine: one table, met or missed. Under 3 minutes.

    .venv/bin/python -m bench.checkpoint.budgets [--output FILE]

- blocked: a save of 1 GiB that fits the checkpoint arena, by close(wait=False), against a torch.save that is discarded
  plus 1.2 times a memcpy, taken in turns; with a store that takes what the cores leave it, and with one that has
  limits, as a real one has. Cold is the first save of a job, whose arena is new; warm are the others.
- CPU: user and system time of trainer, supervisor and workers, of the synchronous save and load of the same state dict.
- memory: the most that they hold together while 4 GiB are saved, then loaded, with 256 MiB for parts, less what the
  idle processes held (Python, torch's code) before there was a state dict.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.checkpoint.run import FAST, GIB, RESULTS, SLOW, Part, Saver, start_all, started
from bench.checkpoint.systems import ARENA, COPY, NULL, Catalogue, Client
from bench.report import Table, plain
from bench.run import commit, say
from bench.systems import MIB

OUTPUT = RESULTS.with_name("checkpoint-budgets.json")
SAVE_CPU, LOAD_CPU, COPIES, OVER = 0.8, 1.2, 1.2, 1.1


def turns(savers: list[Saver], size: int, rounds: int) -> dict[str, tuple[Part, Part]]:
    """All of them, one after the other, in each round; the first is cold. Nobody looks at the memory."""
    parts = {saver.client.name: (Part(), Part()) for saver in savers}
    for number in range(rounds + 1):
        for saver in savers:
            saver.turn(f"{saver.client.name.replace(' ', '-')}-{number}.pt", size, *parts[saver.client.name], False)
    return parts


def add(table: Table, what: str, budget: float, measured: float, unit: str) -> None:
    table.append([what, f"{budget:.2f} {unit}", f"{measured:.2f} {unit}", "met" if measured <= budget else "missed"])


def blocked(table: Table, parts: dict[str, tuple[Part, Part]], scale: float, where: str) -> None:
    """scale: GiB of the state dict."""
    null, copy, ours = (parts[name][0].blocked_s for name in (NULL, COPY, "fits"))
    limits = [nothing + COPIES * once for nothing, once in zip(null, copy)]
    warm, limit = statistics.median(ours[1:] or ours), statistics.median(limits[1:] or limits)
    floors = [statistics.median(floor[1:] or floor) for floor in (null, copy)]
    pieces = f"(discarded {floors[0]:.2f} s, memcpy {floors[1]:.2f} s)"
    add(table, f"{scale:g} GiB that fit, {where}: blocked, warm {pieces}", limit, warm, "s")
    add(table, f"{scale:g} GiB that fit, {where}: blocked, cold", limits[0], ours[0], "s")


def cpu(table: Table, part: Part, size: int, budget: float, what: str) -> None:
    add(table, what, budget, statistics.median(part.cpu_s[1:] or part.cpu_s) / size * GIB, "CPU-s/GiB")


def most_memory(saver: Saver, size: int) -> tuple[int, int]:
    """Bytes that the whole family held at most, in a save and in a load, over what it held before."""
    save, load = Part(), Part()
    saver.turn("large.pt", size, save, load, True)
    return save.over + size, load.over + size


def that_fits(catalogue: Catalogue, size: int) -> Client:
    """One writer has the whole arena, and its 16 parts have room for the state dict with what torch puts around it."""
    part = max(5 * MIB, -(-size * 17 // 16 // 16 // MIB) * MIB)
    return catalogue.millrace("fits", 16 * part, True, f"workers = 1\npart_bytes = {part}\n")


def measure(small: int, large: int, rounds: int, folder: Path) -> Table:
    arena = min(ARENA, max(large // 16, 10 * MIB))
    catalogue = Catalogue(folder, None)
    clients = [client for client in catalogue.clients() if client.name in (NULL, COPY)]
    clients += [that_fits(catalogue, small), catalogue.millrace("waits", arena), catalogue.millrace("bounded", arena)]
    table: Table = [["what", "budget", "measured", ""]]
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        url = stack.enter_context(started(FAST))
        savers = start_all(clients, url, folder, stack, errors)
        if errors:
            raise SystemExit(f"bench: {errors}")
        parts = turns(savers[:-1], small, rounds)
        say(f"{small / GIB:g} GiB, {rounds + 1} rounds: done")
        blocked(table, parts, small / GIB, "store on the same cores")
        cpu(table, parts["waits"][0], small, SAVE_CPU, "save, close()")
        cpu(table, parts["fits"][0], small, SAVE_CPU, "save, close(wait=False)")
        cpu(table, parts["waits"][1], small, LOAD_CPU, "load")
        for saver in savers[:-1]:
            saver.process.end()
        save, load = most_memory(savers[-1], large)
        what = f"{large / GIB:g} GiB, {arena / MIB:.0f} MiB for parts: memory,"
        add(table, f"{what} save", (large + arena) * OVER / GIB, save / GIB, "GiB")
        add(table, f"{what} and 256 MiB for reading, load", (large + arena + ARENA) * OVER / GIB, load / GIB, "GiB")
    with ExitStack() as stack:
        url = stack.enter_context(started(SLOW))
        savers = start_all(clients[:-2], url, folder, stack, errors)
        blocked(table, turns(savers, small, rounds), small / GIB, "store with limits")
    return table


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    parser = argparse.ArgumentParser(description="The budgets of checkpoints.")
    parser.add_argument("--small", type=int, default=GIB, help="bytes of the state dict that fits; 1 GiB")
    parser.add_argument("--large", type=int, default=4 * GIB, help="bytes of the one that does not; 4 GiB")
    parser.add_argument("--rounds", type=int, default=5, help="beside the first, which is cold")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    begun = time.monotonic()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output.parent) as scratch:
        table = measure(options.small, options.large, options.rounds, Path(scratch))
    found: dict[str, Any] = {"commit": commit(), "seconds": time.monotonic() - begun, "table": table}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(plain(table))


if __name__ == "__main__":
    main()
