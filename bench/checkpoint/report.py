"""Tables and a picture of out/bench/checkpoint.json.

.venv/bin/python -m bench.checkpoint.report [RESULTS] [--write]

--write puts them into docs/performance.md, between their marks, draws docs/checkpoints.svg, and computes
docs/checkpoint-cost.md (bench/checkpoint/cost.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.checkpoint.run import RESULTS
from bench.checkpoint.systems import FILE
from bench.report import MIB, PAGE, ROOT, Row, Table, figure, markdown, plain

PICTURE = ROOT / "docs" / "checkpoints.svg"
REST = ROOT / "bench" / "checkpoint" / "results.md"
SHOWN = "298 MB"  # the size whose tables are on the page
BEGIN, END = "<!-- made by bench/checkpoint/report.py -->", "<!-- end of what bench/checkpoint/report.py made -->"


def memory(value: float) -> str:
    return f"{value / MIB:,.0f}"


def row_of(cell: dict[str, Any], system: str) -> Row:
    return next((row for row in cell["rows"] if row["system"] == system), {})


def ratio(value: float, floor: float | None) -> str:
    return f"{value / floor:.2f}" if floor else ""


def cell_table(cell: dict[str, Any]) -> Table:
    table = [["system", "", "save: blocked s", "total s", "x local file", "CPU s/GiB", "memory over MiB"]]
    table[0] += ["load: s", "x local file", "CPU s/GiB", "memory over MiB"]
    floor = row_of(cell, FILE)
    for row in cell["rows"]:
        line = [row["system"], "failed: " + row["error"] if "error" in row else ""]
        for part in ("save", "load"):
            found = row.get(part)
            if not found:
                line += [""] * (5 if part == "save" else 4)
                continue
            times = [figure(found["blocked_s"]), figure(found["total_s"])]
            line += times if part == "save" else times[1:]
            line += [ratio(found["total_s"], floor.get(part, {}).get("total_s")), figure(found["cpu_s_per_gib"])]
            line.append(memory(found["memory_over"]))
        table.append(line)
    return table


def nodes_table(nodes: dict[str, Any]) -> Table:
    table = [["system", "", "save: blocked s", "total s", "CPU s/GiB", "memory over MiB"]]
    table[0] += ["load: s", "CPU s/GiB", "memory over MiB"]
    for row in nodes["rows"]:
        if "error" in row:
            table.append([row["system"], "failed: " + row["error"], *[""] * 7])
            continue
        save, load = row["save"], row["load"]
        line = [row["system"], "", figure(save["blocked_s"]), figure(save["total_s"]), figure(save["cpu_s_per_gib"])]
        line += [memory(save["memory_over"]), figure(load["total_s"]), figure(load["cpu_s_per_gib"])]
        table.append([*line, memory(load["memory_over"])])
    return table


def title(cell: dict[str, Any]) -> str:
    return f"{cell['label']}, {cell['server']}"


def nodes_title(nodes: dict[str, Any]) -> str:
    told: Row = next((row for row in nodes["rows"] if "world" in row), {})
    if not told:
        return f"Many nodes, {nodes['server']}"
    tensors = f"{told['tensors']:,} tensors of {told['rows'] * 4000 / 1e6:g} MB"
    return f"{told['world']} nodes (simulated), {told['bytes'] / 1e6:,.0f} MB in {tensors}, {nodes['server']}"


def tables(results: dict[str, Any], shown: bool) -> list[tuple[str, Table]]:
    """Those on the page, of the size SHOWN and of many nodes, or the others."""
    found = [(title(cell), cell_table(cell)) for cell in results["cells"] if (cell["label"] == SHOWN) == shown]
    nodes = results["nodes"] if shown else []
    return found + [(nodes_title(each), nodes_table(each)) for each in nodes if each["rows"]]


def without_empty(table: Table) -> Table:
    """Without the columns in which nothing stands."""
    kept = [at for at in range(len(table[0])) if at == 0 or any(line[at] for line in table[1:])]
    return [[line[at] for at in kept] for line in table]


def sections(results: dict[str, Any], shown: bool) -> list[str]:
    return [
        line
        for heading, table in tables(results, shown)
        for line in ("", f"### {heading}", "", markdown(without_empty(table)))
    ]


def page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    rounds = ", ".join(f"{1 + cell['rounds']} for {cell['label']}" for cell in results["cells"])
    lines = [
        f"Measured on {results['date']} at {results['commit']}: {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}, Python {machine['python']}. "
        f"`{results['command']}`: {results.get('minutes', 0):.0f} minutes; rounds: {rounds}. "
        f"{results.get('note', '')}".rstrip(),
        "",
        f"![Blocked time, CPU and memory of a checkpoint]({PICTURE.name})",
    ]
    if results.get("budgets"):
        lines += ["", "### Budgets of checkpoints", "", markdown(results["budgets"])]
    lines += sections(results, shown=True)
    lines += ["", "The same for other sizes: [bench/checkpoint/results.md](../bench/checkpoint/results.md)."]
    return "\n".join(lines)


def rest(results: dict[str, Any]) -> str:
    """bench/checkpoint/results.md, whole."""
    lines = [
        "# Checkpoints of other sizes",
        "",
        "Made by `bench/checkpoint/report.py --write`, from the same run as the tables of "
        "[docs/performance.md](../../docs/performance.md#checkpoints), which says what is measured, and how.",
    ]
    return "\n".join(lines + sections(results, shown=False)) + "\n"


def write_page(text: str, path: Path) -> None:
    head, _, rest = path.read_text().partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{path} has no lines {BEGIN!r} and {END!r}")
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")


def show(results: dict[str, Any]) -> None:
    for heading, table in [*tables(results, shown=False), *tables(results, shown=True)]:
        print(f"\n{heading}\n{plain(without_empty(table))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of a run of bench/checkpoint/run.py.")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--budgets", type=Path, default=RESULTS.with_name("checkpoint-budgets.json"))
    parser.add_argument(
        "--write", action="store_true", help="into docs/performance.md, its picture, results.md and the cost page"
    )
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    if options.budgets.exists():
        results["budgets"] = json.loads(options.budgets.read_text())["table"]
    show(results)
    if options.write:
        from bench.checkpoint import cost, picture

        write_page(page(results), PAGE)
        REST.write_text(rest(results))
        picture.draw(results, PICTURE)
        cost.write(results)


if __name__ == "__main__":
    main()
