"""Tables and a picture of out/bench/results.json.

.venv/bin/python -m bench.report [RESULTS] [--write]

--write puts them into docs/performance.md, between its marks, those of larger objects into bench/results.md, and draws
docs/performance.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
REST = ROOT / "bench" / "results.md"
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
    table = [["system", "form", "CPU us an object" if small else "CPU s/GiB", "x floor"]]
    table[0] += ["objects/s" if small else "MiB/s", "memory MiB"]
    for row in cell["rows"]:
        if "error" in row:
            table.append([row["system"], form(row), "failed: " + row["error"]])
        elif "cpu_us" in row:
            memory = (row["memory_private"] + row["memory_shared"]) / MIB
            cpu = row["cpu_us"] if small else row["cpu_s_per_gib"]
            rate = row["objects_per_s"] if small else row["objects_per_s"] * cell["size"] / MIB
            table.append([row["system"], form(row), figure(cpu), f"{row['ratio']:.2f}", figure(rate), figure(memory)])
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


def budget_lines(results: dict[str, Any]) -> Table:
    """The budgets of the design that a run can show, beside what it has measured."""
    cells = {(cell["size"], cell["latency_ms"]): cell for cell in results["cells"]}

    def of(size: int, latency: int, system: str, style: str, workers: int, what: str) -> float | None:
        for row in cells.get((size, latency), {"rows": []})["rows"]:
            if (row["system"], row["style"], row["workers"]) == (system, style, workers):
                value = row.get(what)
                return float(value) if value is not None else None
        return None

    small, large = 100 << 10, 150 << 20
    table = [["what", "budget", "measured", ""]]

    def add(what: str, budget: float | None, measured: float | None, unit: str) -> None:
        if budget is not None and measured is not None:
            met = "met" if measured <= budget else "missed"
            table.append([what, f"{budget:.2f} {unit}", f"{measured:.2f} {unit}", met])

    add("100 KiB, plain, CPU", 1.15, of(small, 0, "millrace", "iterable", 0, "ratio"), "x floor")
    add("100 KiB, composed, CPU", 1.0, of(small, 0, "millrace, composed", "iterable", 0, "ratio"), "x floor")
    add("150 MiB, CPU", 1.15, of(large, 0, "millrace", "iterable", 0, "ratio"), "x floor")
    plain_us = of(small, 0, "millrace", "iterable", 0, "cpu_us")
    moved_us = of(small, 0, "torch, samples in memory", "map", 2, "cpu_us")
    if plain_us is not None and moved_us is not None:
        loader_us = of(small, 0, "millrace", "iterable", 2, "cpu_us")
        add("100 KiB, 2 workers: torch's transport + the plain row + 10 us", moved_us + plain_us + 10, loader_us, "us")
    local_us = of(small, 0, "torch, local files", "map", 2, "cpu_us")
    add("100 KiB, 2 workers: less than local files", local_us, of(small, 0, "millrace", "iterable", 2, "cpu_us"), "us")
    for style in ("iterable", "map"):
        quick = of(small, 0, "millrace", style, 0, "objects_per_s")
        late = of(small, 20, "millrace", style, 0, "objects_per_s")
        if quick and late:
            add(f"100 KiB, {style}, wall time with 20 ms of latency", 1.3, quick / late, "x without")
    late = of(small, 20, "millrace", "iterable", 0, "objects_per_s")
    mapped = of(small, 20, "millrace", "map", 0, "objects_per_s")
    if late and mapped:
        add("100 KiB, 20 ms, wall time of map-style", 1.3, late / mapped, "x iterable")
    for row in (results.get("listing") or {"rows": []})["rows"]:
        if row["system"] == "millrace" and "cpu_us" in row:
            add("listing, CPU an object", 1.0, row["cpu_us"], "us")
    ready = results.get("ready")
    if ready:
        add("next() of a sample that is there, p50", 2.0, ready["p50_us"], "us")
        add("next() of a sample that is there, p99", 50.0, ready["p99_us"], "us")
    return table


def memory_table(results: dict[str, Any]) -> Table:
    """What docs/memory.md adds up to, beside what was measured, in MiB; one process, without torch."""
    table = [["objects", "shared by the formula", "measured", "receive buffers", "private, measured"]]
    for cell in results["cells"]:
        for row in cell["rows"]:
            formula = row.get("formula")
            is_plain = row["system"] == "millrace" and row["style"] == "iterable" and row["workers"] == 0
            if formula and is_plain and "memory_private" in row:
                parts = [formula["arena"] + formula["lane"], row["memory_shared"]]
                parts += [formula["buffers"], row["memory_private"]]
                table.append([cell_title(cell), *(f"{part / MIB:.1f}" for part in parts)])
    return table


def page(results: dict[str, Any]) -> str:
    """What stands in docs/performance.md between the marks."""
    machine = results["machine"]
    lines = [
        f"Measured on {results['date']} at {results['commit']}: {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}, Python {machine['python']}. "
        f"`{results['command']}`: medians of {results['rounds']} rounds of up to {results['seconds']:g} s, "
        f"{results.get('minutes', 0):.0f} minutes in all. {results.get('note', '')}".rstrip(),
        "",
        f"![CPU time against a bare libcurl loop]({PICTURE.name})",
        "",
        "### Budgets",
        "",
        markdown(budget_lines(results)),
        "",
        "### Memory of millrace",
        "",
        "In MiB. Shared is arena, index and lane; private are receive buffers of connections in use, Python, the "
        "supervisor and the workers.",
        "",
        markdown(memory_table(results)),
    ]
    return "\n".join(lines + sections(results, "###", larger=False))


def sections(results: dict[str, Any], level: str, larger: bool) -> list[str]:
    """The tables of larger objects, or the others."""
    lines = []
    for title, table in tables(results):
        if larger != title.startswith(("Listing", "100 KiB")):
            lines += ["", f"{level} {title}", "", markdown(table)]
    return lines


def rest(results: dict[str, Any]) -> str:
    """bench/results.md, whole."""
    lines = [
        "# Larger objects",
        "",
        BEGIN,
        "",
        f"Of the run at {results['commit']} that [performance]"
        "(../docs/performance.md) describes, the tables that it leaves out.",
    ]
    return "\n".join(lines + sections(results, "##", larger=True)) + "\n"


def write_page(results: dict[str, Any]) -> None:
    text = PAGE.read_text()
    head, _, after = text.partition(BEGIN)
    _, found, tail = after.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has no lines {BEGIN!r} and {END!r}")
    PAGE.write_text(f"{head}{BEGIN}\n\n{page(results)}\n\n{END}{tail}")
    REST.write_text(rest(results))


def show(results: dict[str, Any]) -> None:
    print(terminal(results))
    print(f"\nBudgets\n{plain(budget_lines(results))}\n\nMemory of millrace, MiB\n{plain(memory_table(results))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of a run of bench/run.py.")
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "out" / "bench" / "results.json")
    parser.add_argument(
        "--write", action="store_true", help="into docs/performance.md, its picture and bench/results.md"
    )
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    show(results)
    if options.write:
        from bench import picture

        write_page(results)
        picture.draw(results, PICTURE)


if __name__ == "__main__":
    main()
