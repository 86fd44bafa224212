"""Tables and a picture of out/bench/results.json.

.venv/bin/python -m bench.report [RESULTS] [--write]

--write puts them into docs/performance.md, between its marks, and draws docs/performance.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- made by bench/report.py -->", "<!-- end of what bench/report.py made -->"
MIB = 1 << 20

Row = dict[str, Any]
Table = list[list[str]]


def figure(value: float) -> str:
    """Three digits that say something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def form(row: Row) -> str:
    loop = "one process" if not row["workers"] else f"{row['workers']} workers"
    return f"{row['style']}, {loop}" if row["style"] else loop


def cell_table(cell: dict[str, Any]) -> Table:
    small = cell["size"] < MIB
    table = [["system", "form", "CPU us an object" if small else "CPU s/GiB", "x floor", "objects/s", "MiB/s"]]
    table[0] += ["memory MiB", "objects read"]
    for row in cell["rows"]:
        if "error" in row:
            table.append([row["system"], form(row), "failed: " + row["error"]])
        elif "cpu_us" in row:
            memory = (row["memory_private"] + row["memory_shared"]) / MIB
            cpu = row["cpu_us"] if small else row["cpu_s_per_gib"]
            line = [row["system"], form(row), figure(cpu), f"{row['ratio']:.2f}", figure(row["objects_per_s"])]
            table.append(
                [*line, figure(row["objects_per_s"] * cell["size"] / MIB), figure(memory), str(row["objects"])]
            )
    return table


def listing_table(listing: dict[str, Any]) -> Table:
    table = [["system", "CPU us an object", "objects/s", "memory before MiB", "at most MiB"]]
    for row in listing["rows"]:
        if "error" in row:
            table.append([row["system"], "failed: " + row["error"]])
            continue
        memory = [figure(row[key] / MIB) for key in ("memory_before", "memory")]
        table.append([row["system"], figure(row["cpu_us"]), figure(row["objects_per_s"]), *memory])
    return table


def cell_title(cell: dict[str, Any]) -> str:
    latency = f"{cell['latency_ms']} ms of latency" if cell["latency_ms"] else "no latency"
    return f"{cell['label']} objects, {latency}"


def tables(results: dict[str, Any]) -> list[tuple[str, Table]]:
    found = [(cell_title(cell), cell_table(cell)) for cell in results["cells"]]
    if results.get("listing"):
        found.insert(0, (f"Listing of {results['listing']['objects']:,} objects", listing_table(results["listing"])))
    return found


def plain(table: Table) -> str:
    columns = len(table[0])
    widths = [max(len(line[at]) for line in table if len(line) == columns) for at in range(columns)]
    lines = []
    for line in table:
        cells = [
            text.ljust(width) if at < 2 else text.rjust(width) for at, (text, width) in enumerate(zip(line, widths))
        ]
        lines.append("  ".join(cells if len(line) == columns else [*cells[:-1], line[-1]]).rstrip())
    return "\n".join(lines)


def terminal(results: dict[str, Any]) -> str:
    return "\n".join(f"\n{title}\n{plain(table)}" for title, table in tables(results))


def markdown(table: Table) -> str:
    columns = len(table[0])
    padded = [[text.replace("|", "\\|") for text in line] + [""] * (columns - len(line)) for line in table]
    lines = ["| " + " | ".join(line) + " |" for line in padded]
    rule = "|---|---|" + "---:|" * (columns - 2)
    return "\n".join([lines[0], rule, *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of a run of bench/run.py.")
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "out" / "bench" / "results.json")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md and its picture")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    print(terminal(results))


if __name__ == "__main__":
    main()
