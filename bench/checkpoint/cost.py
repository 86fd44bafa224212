"""docs/checkpoint-cost.md: what a checkpoint of 4, 35 and 548 nodes would take, computed from a measured run.

    .venv/bin/python -m bench.checkpoint.cost [RESULTS]       (bench.checkpoint.report --write does it too)

Measured are, of each system: CPU a GiB, seconds a GiB where the store is no limit, how many connections' worth of bytes
it moves where each connection is slow, and memory as a constant and a multiple of the state dict. Given are a node's
bandwidth and that of one connection.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.checkpoint.run import RESULTS
from bench.checkpoint.systems import COPY, FILE, LATER, NULL
from bench.report import ROOT, Row, Table, figure, markdown

PAGE = ROOT / "docs" / "checkpoint-cost.md"
BEGIN, END = "<!-- made by bench/checkpoint/cost.py -->", "<!-- end of what bench/checkpoint/cost.py made -->"
GIB, MIB, GB = 1 << 30, 1 << 20, 1e9
NODES = [(4, 73.02), (35, 743.20), (548, 11023.88)]  # and GB in all: the cases that the reference published
BANDWIDTHS = [1.0, 4.0]  # GB/s of a node; 4 is 32 Gbit/s
CONNECTION = 0.1  # GB/s
ARENA = 4 * GIB  # of millrace, for parts: its default on a node with 64 GiB or more


@dataclass(frozen=True)
class Cost:
    """One direction of one system."""

    pace: float  # s a GiB that the client itself takes
    copy: float  # s a GiB until training goes on, where that is before the end
    cpu: float  # s a GiB
    streams: float  # connections' worth
    over: float  # bytes of memory beside the state dict,
    over_each: float  # and those for each of its bytes

    def rate(self, bandwidth: float) -> float:
        """GB/s of one node."""
        return min(bandwidth, CONNECTION * self.streams, GIB / GB / self.pace)

    def memory(self, size: float) -> float:
        return self.over + self.over_each * size


def cell_rows(results: dict[str, Any], limited: bool) -> list[tuple[dict[str, Any], dict[str, Row]]]:
    """Cells by size, and their rows by system."""
    cells = sorted((c for c in results["cells"] if bool(c["rate"]) == limited), key=lambda c: int(c["bytes"]))
    return [(cell, {row["system"]: row for row in cell["rows"]}) for cell in cells]


def cost(results: dict[str, Any], system: str, part: str) -> Cost | None:
    fast = [(cell, rows[system][part]) for cell, rows in cell_rows(results, False) if part in rows.get(system, {})]
    slow = [(cell, rows[system][part]) for cell, rows in cell_rows(results, True) if part in rows.get(system, {})]
    if not fast or not slow:
        return None
    # In the smallest cell memory that stays, such as shared memory of the other direction, may not be there yet.
    (few, first), (many, last), (limited, late) = fast[1 if len(fast) > 2 else 0], fast[-1], slow[-1]
    size = many["bytes"] / GIB
    each = 0.0
    if many["bytes"] > few["bytes"]:
        each = (last["memory_over"] - first["memory_over"]) / (many["bytes"] - few["bytes"])
    each = each if each > 0.1 else 0.0  # of what does not grow, the noise
    most = max(last["memory_over"], first["memory_over"])
    return Cost(
        pace=last["total_s"] / size,
        copy=first["blocked_s"] / few["bytes"] * GIB,
        cpu=last["cpu_s_per_gib"],
        streams=limited["bytes"] / late["total_s"] / (float(limited["rate"].split("/")[0]) * MIB),
        over=max(0.0, last["memory_over"] - each * many["bytes"]) if each else most,
        over_each=each,
    )


def seconds(size_gb: float, of: Cost, bandwidth: float) -> float:
    return size_gb / of.rate(bandwidth)


def blocked(system: str, size_gb: float, of: Cost, bandwidth: float) -> float:
    """A synchronous save blocks to its end. Of an asynchronous one that takes memory in proportion the copy is what
    blocks; of millrace's the copy, and then what does not fit the arena until it is on its way."""
    if system == LATER:
        left = max(0.0, size_gb - ARENA / GB)
        return max(of.copy * size_gb * GB / GIB, left / of.rate(bandwidth))
    if "asynchronous" in system:
        return of.copy * size_gb * GB / GIB
    return seconds(size_gb, of, bandwidth)


def systems(results: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for cell in results["cells"]:
        found += [row["system"] for row in cell["rows"] if row["system"] not in (*found, COPY, NULL, FILE)]
    return found


def measured_table(results: dict[str, Any]) -> Table:
    table = [
        ["system", "", "s/GiB of its own", "CPU s/GiB", "connections' worth", "memory over, MiB", "and of each byte"]
    ]
    for system in systems(results):
        for part in ("save", "load"):
            of = cost(results, system, part)
            if of:
                line = [system, part, figure(of.pace), figure(of.cpu), f"{of.streams:.1f}", f"{of.over / MIB:,.0f}"]
                table.append([*line, f"{of.over_each:.2f}"])
    return table


def nodes_table(results: dict[str, Any], nodes: int, total_gb: float) -> Table:
    share = total_gb / nodes
    table = [["system", "bandwidth GB/s", "blocked s", "save s", "load s", "CPU-s a node: save", "load"]]
    table[0] += ["memory over the state dict, GB a node: save", "load"]
    for system in systems(results):
        save, load = cost(results, system, "save"), cost(results, system, "load")
        if not save or not load:
            continue
        for bandwidth in BANDWIDTHS:
            line = [system, f"{bandwidth:g}", figure(blocked(system, share, save, bandwidth))]
            line += [figure(seconds(share, save, bandwidth)), figure(seconds(share, load, bandwidth))]
            line += [figure(of.cpu * share * GB / GIB) for of in (save, load)]
            held = [of.memory(share * GB) / GB for of in (save, load)]
            if system == LATER:
                held[0] = max(held[0], ARENA / GB)
            table.append([*line, *(figure(value) for value in held)])
    return table


def page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"Computed from the run of {results['date']} at {results['commit']} on {machine['cores']} cores of "
        f"{machine['cpu']}.",
        "",
        "## Measured",
        "",
        markdown(measured_table(results)),
    ]
    for nodes, total_gb in NODES:
        lines += ["", f"## {nodes} nodes, {total_gb:,.0f} GB: {total_gb / nodes:.2f} GB a node", ""]
        lines.append(markdown(nodes_table(results, nodes, total_gb)))
    return "\n".join(lines)


def write(results: dict[str, Any]) -> None:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has no lines {BEGIN!r} and {END!r}")
    PAGE.write_text(f"{head}{BEGIN}\n\n{page(results)}\n\n{END}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Computes docs/checkpoint-cost.md.")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    write(json.loads(parser.parse_args().results.read_text()))


if __name__ == "__main__":
    main()
