"""Measures millrace beside its field: one run, one server program, on this machine.

    make bench                      # all cells, under 15 minutes
    .venv/bin/python -m bench.run [--quick | --full] [--size 102400 ...] [--latency-ms 0 ...] [--system NAME ...]

All readers of a cell (a size, a latency) are started and wait; then each round lets them read one after the other, so
that what else the machine does meets all alike. The first round checks every object's crc32c and looks at the memory;
the others are measured. What is counted, and how, is in docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from bench import listing, ready, report
from bench.meter import Memory
from bench.process import Failed, Process, devstore, memory_watched
from bench.systems import BIN, FLOOR, ROOT, SHAPES, Catalogue, Cell, Shape, System

RESULTS = ROOT / "out" / "bench" / "results.json"
START_LIMIT_S = 180
CHECK_S = 0.5  # of the round that checks every byte
LEAST_S = 0.3


@dataclass
class Length:
    """How long a run takes."""

    minutes: float
    seconds: float  # of a reader in a round, at most
    rounds: int
    shapes: list[Shape]
    latencies: list[int]
    listed: int
    thorough: bool


@dataclass
class Figures:
    """What is known of one reader in one cell."""

    cpu_us: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    objects: int = 0
    checked: int = 0
    memory: Memory = field(default_factory=Memory)
    error: str | None = None


def made_up(shapes: list[Shape], latency_ms: int, listed: int) -> list[str]:
    """Flags of a development store with made-up objects."""
    flags = ["--latency-ms", str(latency_ms), "--synthetic", f"{listing.BUCKET}:{listed}:1024"]
    for shape in shapes:
        flags += ["--synthetic", f"{shape.bucket}:{shape.count}:{shape.size}"]
        flags += ["--synthetic", f"{shape.slow_bucket}:{shape.slow_count}:{shape.size}"]
    return flags


def get(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
        data: bytes = answer.read()
        return data


def expected_crcs(url: str, bucket: str) -> dict[str, int]:
    """crc32c of every object, from the store's listing."""
    import base64

    found: dict[str, int] = {}
    token = ""
    while True:
        query = "maxResults=5000&fields=nextPageToken,items(name,crc32c)" + (f"&pageToken={token}" if token else "")
        page = json.loads(get(f"{url}/storage/v1/b/{bucket}/o?{query}"))
        for item in page["items"]:
            found[item["name"]] = int.from_bytes(base64.b64decode(item["crc32c"]), "big")
        token = page.get("nextPageToken", "")
        if not token:
            return found


def make_files(url: str, shape: Shape, folder: Path) -> None:
    """The first objects as local files, in the page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(shape.files):
        name = f"obj-{number:09}"
        (folder / name).write_bytes(get(f"{url}/storage/v1/b/{shape.bucket}/o/{name}?alt=media"))


def verify(result: dict[str, Any], size: int, crcs: dict[str, int]) -> int:
    """Compares what a reader said with what the store says; the number of objects compared."""
    if result["bytes"] != result["objects"] * size:
        raise Failed(f"wrong data: {result['bytes']} bytes in {result['objects']} objects of {size}")
    known = set(crcs.values())
    for name, crc, length in result["checks"]:
        if length != size or (crc != crcs.get(name) if name is not None else crc not in known):
            raise Failed(f"wrong data: {name or 'an object'} has crc32c {crc:08x} and {length} bytes")
    return len(result["checks"])


def start(
    systems: list[System], url: str, folder: Path, figures: dict[str, Figures], stack: ExitStack
) -> list[Process]:
    """Those that are ready; the error of the others is in their figures. All end with the stack."""
    started = []
    for system in systems:
        reader = Process(system, url, folder / (system.key.replace("/", "-").replace(" ", "-") + ".log"))
        stack.callback(reader.end)
        started.append(reader)
    end = time.monotonic() + START_LIMIT_S
    ready = []
    for reader in started:
        try:
            reader.wait_ready(end)
            ready.append(reader)
        except Failed as error:
            figures[reader.system.key].error = str(error)
            reader.end()
    return ready


class Clock:
    """Deals the time that is left out to the cells that are left; a cell with twice the readers has two shares."""

    def __init__(self, minutes: float, shapes: list[Shape], latencies: list[int]) -> None:
        self.end = time.monotonic() + minutes * 60
        self.shares = sum(self.share(shape) for shape in shapes) * len(latencies)

    @staticmethod
    def share(shape: Shape) -> int:
        return 2 if shape.full else 1

    def cell_end(self, shape: Shape) -> float:
        now = time.monotonic()
        share = self.share(shape) / self.shares
        self.shares -= self.share(shape)
        return now + max(0.0, self.end - now) * share


class Bench:
    def __init__(
        self, length: Length, clock: Clock, catalogue: Callable[[str], Catalogue], wanted: list[str], folder: Path
    ) -> None:
        self.length, self.clock, self.catalogue, self.wanted, self.folder = length, clock, catalogue, wanted, folder

    def cell(self, cell: Cell, url: str) -> dict[str, Any]:
        begun, end = time.monotonic(), self.clock.cell_end(cell.shape)
        catalogue = self.catalogue(url)
        systems = catalogue.systems(cell, self.length.thorough)
        systems = [s for s in systems if s.name == FLOOR or not self.wanted or s.name in self.wanted]
        if any(s.name.startswith("torch") for s in systems) and not catalogue.files(cell.shape).exists():
            make_files(url, cell.shape, catalogue.files(cell.shape))
        crcs = {name: expected_crcs(url, name) for name in (cell.shape.bucket, cell.shape.slow_bucket)}
        figures = {system.key: Figures() for system in systems}
        with ExitStack() as stack:
            readers = start(systems, url, self.folder, figures, stack)
            seconds = min(CHECK_S, self.length.seconds)
            for number in range(self.length.rounds + 1):
                began = time.monotonic()
                for reader in list(readers):
                    result = figures[reader.system.key]
                    try:
                        bucket = cell.shape.slow_bucket if "dataflux" in reader.system.name else cell.shape.bucket
                        self._round(reader, result, cell, crcs[bucket], seconds, number == 0)
                    except Failed as error:
                        result.error = str(error)
                        readers.remove(reader)
                        reader.end()
                now = time.monotonic()
                fits = (end - now) / max(1, self.length.rounds - number)  # of all readers in each of the rounds left
                seconds += (fits - (now - began)) / max(1, len(readers))
                seconds = min(self.length.seconds, max(LEAST_S, seconds))
                say(f"{cell.label}: round {number} of {self.length.rounds}, the next ones of {seconds:.2f} s")
        say(f"{cell.label}: {time.monotonic() - begun:.0f} s")
        return {**summary(cell, systems, figures), "seconds": seconds}

    def _round(
        self, reader: Process, result: Figures, cell: Cell, crcs: dict[str, int], seconds: float, first: bool
    ) -> None:
        if first:
            with memory_watched(reader.family) as memory:
                found = reader.read(seconds, reader.system.skip, True)
            result.memory = memory
            result.checked += verify(found, cell.shape.size, crcs)
            reader.family.settled_cpu_s(2.0)
            return
        before = reader.family.cpu_s()
        found = reader.read(seconds, reader.system.skip, False)
        after = reader.family.settled_cpu_s(2.0)
        verify(found, cell.shape.size, {})
        result.cpu_us.append((after - before) / found["objects"] * 1e6)
        result.rate.append(found["timed_objects"] / found["wall_s"])
        result.objects += found["objects"]


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def summary(cell: Cell, systems: list[System], figures: dict[str, Figures]) -> dict[str, Any]:
    floor = figures[f"{FLOOR}//0"]
    rows = []
    for system in systems:
        of = figures[system.key]
        row: dict[str, Any] = {"system": system.name, "style": system.style, "workers": system.workers}
        if system.formula:
            row["formula"] = system.formula
        if of.error is not None:
            row["error"] = of.error
        if of.cpu_us:
            pairs = list(zip(of.cpu_us, floor.cpu_us))
            cpu = statistics.median(of.cpu_us)
            row.update(
                cpu_us=cpu,
                cpu_us_least=min(of.cpu_us),
                cpu_us_most=max(of.cpu_us),
                ratio=median([mine / least for mine, least in pairs]),
                cpu_s_per_gib=cpu / 1e6 / cell.shape.size * 2**30,
                objects_per_s=median(of.rate),
                objects=of.objects,
                checked=of.checked,
                memory_private=of.memory.private,
                memory_shared=of.memory.shared,
                processes=of.memory.processes,
            )
        rows.append(row)
    return {"size": cell.shape.size, "label": cell.shape.label, "latency_ms": cell.latency_ms, "rows": rows}


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def composes() -> bool:
    """Whether this millrace has composed downloads."""
    text = subprocess.run([str(BIN / "millrace"), "check", "--reference"], capture_output=True, text=True).stdout
    return "`compose`" in text


def machine() -> dict[str, Any]:
    model = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {
        "cpu": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return found.stdout.strip()


def arguments() -> tuple[argparse.Namespace, Length]:
    parser = argparse.ArgumentParser(description="Measures millrace beside its field.")
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--quick", action="store_true", help="100 KiB objects only, short rounds: under 3 minutes")
    lengths.add_argument("--full", action="store_true", help="map-style for all sizes, longer rounds: about 40 minutes")
    parser.add_argument("--size", type=int, action="append", help="bytes an object; may be repeated")
    parser.add_argument("--latency-ms", type=int, action="append", help="may be repeated")
    parser.add_argument("--system", action="append", default=[], help="only this one and the floor; may be repeated")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each reader in each round, at most")
    parser.add_argument("--minutes", type=float, help="rounds are made shorter where it would take longer")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else the machine did")
    parser.add_argument("--no-listing", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    length = Length(13.0, 1.0, 3, SHAPES, [0, 20], 500_000, False)
    if options.quick:
        length = Length(2.5, 0.7, 3, [shape for shape in SHAPES if shape.full], [0, 20], 100_000, False)
    if options.full:
        length = Length(45.0, 2.0, 5, SHAPES, [0, 20], 2_000_000, True)
    if options.size:
        length.shapes = [shape for shape in SHAPES if shape.size in options.size]
    length.latencies = options.latency_ms or length.latencies
    length.minutes = options.minutes or length.minutes
    length.rounds = options.rounds or length.rounds
    length.seconds = options.seconds or length.seconds
    return options, length


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))  # readers and servers end too
    options, length = arguments()
    begun = datetime.datetime.now(datetime.timezone.utc)
    results: dict[str, Any] = {
        "date": begun.strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python -m bench.run", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "seconds": length.seconds,
        "rounds": length.rounds,
        "note": options.note,
        "cells": [],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output.parent) as scratch:
        folder = Path(scratch)
        has_compose = composes()
        clock = Clock(length.minutes, length.shapes, length.latencies)
        bench = Bench(length, clock, lambda url: Catalogue(folder, url, has_compose), options.system, folder)
        for latency in length.latencies:
            with devstore(*made_up(length.shapes, latency, length.listed)) as url:
                if not latency and not options.no_listing:
                    results["listing"] = listing.measure(url, length.listed, length.rounds, folder, options.system)
                    results["ready"] = ready.measure(url, Cell(length.shapes[0], 0), folder)
                    say("listing done")
                for shape in length.shapes:
                    results["cells"].append(bench.cell(Cell(shape, latency), url))
                    options.output.write_text(json.dumps(results, indent=1) + "\n")
    results["minutes"] = (datetime.datetime.now(datetime.timezone.utc) - begun).total_seconds() / 60
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    report.show(results)


if __name__ == "__main__":
    main()
