"""The listing's part of the benchmark: each system lists one bucket of many small objects, in a new process a round."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from bench.process import Failed, Process, memory_watched
from bench.systems import BIN, BUILD, System, peers_folder

BUCKET = "bench-names"
LIMIT_S = 120


def systems(folder: Path) -> list[System]:
    config = folder / "listing.toml"
    config.write_text('[memory]\narena_bytes = "16MiB"\n')
    peers = peers_folder()
    reader = ["-m", "bench.readers.list_reader", "--bucket", BUCKET, "--client"]
    clients = [str(peers / "clients" / "bin" / "python"), *reader]
    return [
        System(
            "millrace",
            "",
            0,
            [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable, *reader, "millrace"],
            0,
            {"PYTHONPATH": str(BUILD / "python")},
        ),
        System("dataflux", "", 0, [str(peers / "dataflux" / "bin" / "python"), *reader, "dataflux"], 0),
        System("google-cloud-storage", "", 0, [*clients, "google"], 0),
        System("gcsfs", "", 0, [*clients, "gcsfs"], 0),
        System("obstore", "", 0, [*clients, "obstore"], 0),
    ]


def measure(url: str, count: int, rounds: int, folder: Path, wanted: list[str]) -> dict[str, Any]:
    chosen = [system for system in systems(folder) if not wanted or system.name in wanted]
    cpu: dict[str, list[float]] = {system.name: [] for system in chosen}
    wall: dict[str, list[float]] = {system.name: [] for system in chosen}
    memory: dict[str, tuple[int, int]] = {}
    errors: dict[str, str] = {}
    for number in range(rounds + 1):
        for system in chosen:
            if system.name in errors:
                continue
            try:
                cpu_s, wall_s, held = one(system, url, count, folder, watch=number == 0)
            except Failed as error:
                errors[system.name] = str(error)
                continue
            if number == 0:
                memory[system.name] = held
            else:
                cpu[system.name].append(cpu_s)
                wall[system.name].append(wall_s)
    rows: list[dict[str, Any]] = []
    for system in chosen:
        row: dict[str, Any] = {"system": system.name}
        if system.name in errors:
            row["error"] = errors[system.name]
        else:
            seconds = statistics.median(cpu[system.name])
            row["cpu_us"] = seconds / count * 1e6
            row["objects_per_s"] = count / statistics.median(wall[system.name])
            row["memory_before"], row["memory"] = memory[system.name]
        rows.append(row)
    return {"objects": count, "rows": rows}


def one(system: System, url: str, count: int, folder: Path, watch: bool) -> tuple[float, float, tuple[int, int]]:
    """CPU and wall seconds, and the memory before and at most."""
    process = Process(system, url, folder / f"list-{system.name}.log")
    try:
        process.answer(LIMIT_S)
        before = process.family.cpu_s()
        held = (0, 0)
        if watch:
            empty = process.family.memory().total
            with memory_watched(process.family) as memory:
                found = process.command({}, LIMIT_S)
            held = (empty, memory.total)
        else:
            found = process.command({}, LIMIT_S)
        after = process.family.settled_cpu_s(2.0)
        if found["objects"] != count:
            raise Failed(f"listed {found['objects']} of {count} objects")
        return after - before, found["wall_s"], held
    finally:
        process.end()
