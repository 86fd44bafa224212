"""The picture of checkpoints in docs/performance.md: blocked time, CPU and memory of each system, for one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from bench.checkpoint.systems import COPY

SAVE, LOAD = "#1b6ca8", "#f0a030"
GIB = 1 << 30


def chosen(results: dict[str, Any]) -> dict[str, Any]:
    """The largest size without limits that most systems have done."""
    cells = [cell for cell in results["cells"] if not cell["rate"]]
    if not cells:
        raise SystemExit("a run without the server without limits has nothing for the picture")
    done = [sum("load" in row for row in cell["rows"]) for cell in cells]
    found: dict[str, Any] = [cell for cell, count in zip(cells, done) if count == max(done)][-1]
    return found


def panel(axes: Any, heading: str, rows: Sequence[tuple[str, float | None, float | None]]) -> None:
    most = max((value for row in rows for value in row[1:] if value is not None), default=1.0)
    for at, (_, save, load) in enumerate(rows[::-1]):
        pairs = [(save, SAVE), (load, LOAD)]
        shown = [(value, colour) for value, colour in pairs if value is not None]
        for number, (value, colour) in enumerate(shown):
            shift = 0.0 if len(shown) == 1 else (0.19, -0.19)[number]
            axes.barh(at + shift, value, height=0.36, color=colour)
            text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
            axes.text(max(value, 0) + most * 0.015, at + shift, text, va="center", size=8)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows][::-1], size=9)
    for label in axes.get_yticklabels():
        if label.get_text().startswith("millrace"):
            label.set_fontweight("bold")
    axes.set_xlim(0, most * 1.15)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(heading, size=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(results: dict[str, Any], path: Path) -> None:
    cell = chosen(results)
    size = cell["bytes"] / GIB
    rows = [row for row in cell["rows"] if "save" in row]

    def value(row: dict[str, Any], part: str, what: str, scale: float) -> float | None:
        return row[part][what] / scale if part in row else None

    blocked = [(row["system"], value(row, "save", "blocked_s", size), None) for row in rows]
    times = [(row["system"], value(row, "save", "total_s", size), value(row, "load", "total_s", size)) for row in rows]
    cpu = [
        (row["system"], value(row, "save", "cpu_s_per_gib", 1), value(row, "load", "cpu_s_per_gib", 1)) for row in rows
    ]
    over = [
        (row["system"], value(row, "save", "memory_over", GIB), value(row, "load", "memory_over", GIB))
        for row in rows
        if row["system"] != COPY
    ]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 0.9 + 0.68 * len(rows)))
    panel(axes[0][0], "Training blocked by a save, s a GiB", blocked)
    panel(axes[0][1], "Until confirmed, or loaded, s a GiB", times)
    panel(axes[1][0], "CPU, s a GiB", cpu)
    panel(axes[1][1], "Memory over the state dict, GiB", over)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (SAVE, LOAD)]
    figure.legend(handles, ["save", "load"], loc="upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(
        f"A checkpoint of {cell['label']} to and from one store on the same machine", x=0.01, ha="left", size=11
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "millrace", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=90)
    pyplot.close(figure)
