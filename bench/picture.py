"""The picture of docs/performance.md: CPU time against the bare libcurl loop, a panel a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

ORDER = [
    "millrace, composed",
    "millrace",
    "torch, local files",
    "torch, samples in memory",
    "gcsfs",
    "obstore",
    "dataflux, composed",
    "dataflux",
    "google-cloud-storage",
]
ONE, TWO = "#1b6ca8", "#f0a030"
OURS = "bold"
TICKS = [0.5, 1, 2, 4, 8, 16, 32, 64]


def bars(cell: dict[str, Any]) -> list[tuple[str, float | None, float | None]]:
    """(system, ratio in one process, ratio with 2 workers), of the iterable form where there are two."""
    found = []
    for system in ORDER:
        ratios: dict[int, float] = {}
        for row in cell["rows"]:
            if row["system"] == system and "ratio" in row:
                ratios.setdefault(row["workers"], row["ratio"])  # the iterable row comes first
        if ratios:
            found.append((system, ratios.get(0), ratios.get(2)))
    return found


def panel(axes: Any, cell: dict[str, Any]) -> None:
    rows = bars(cell)[::-1]
    for at, (_, one, two) in enumerate(rows):
        for value, shift, colour in ((one, 0.19, ONE), (two, -0.19, TWO)):
            if value is not None:
                axes.barh(at + shift, value, height=0.36, color=colour, left=0)
                axes.text(
                    value * 1.06, at + shift, f"{value:.2g}" if value < 10 else f"{value:.0f}", va="center", size=8
                )
    axes.set_yticks(range(len(rows)), [system for system, _, _ in rows], size=9)
    for label in axes.get_yticklabels():
        if label.get_text().startswith("millrace"):
            label.set_fontweight(OURS)
    axes.axvline(1, color="#333333", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    values = [value for row in rows for value in row[1:] if value is not None]
    axes.set_xlim(min([0.5, *values]) * 0.8, max([2.0, *values]) * 1.8)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(f"{cell['label']} objects", size=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(results: dict[str, Any], path: Path) -> None:
    cells = [cell for cell in results["cells"] if not cell["latency_ms"]]
    if not cells:
        raise SystemExit("a run without latency 0 has nothing for the picture")
    columns = min(2, len(cells))
    lines = (len(cells) + 1) // 2
    figure, axes = pyplot.subplots(lines, columns, figsize=(4.9 * columns, 0.5 + 3.4 * lines), squeeze=False)
    flat = list(axes.flat)
    for place, cell in zip(flat, cells):
        panel(place, cell)
    for place in flat[len(cells) :]:
        place.set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (ONE, TWO)]
    figure.legend(
        handles, ["one process", "DataLoader, 2 workers"], loc="upper right", ncols=2, frameon=False, fontsize=9
    )
    figure.suptitle("CPU time of the reading side, as a multiple of a bare libcurl loop", x=0.01, ha="left", size=11)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "millrace", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=90)
    pyplot.close(figure)
