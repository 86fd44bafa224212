"""The checkpoint benchmark's programs: they run, at a size that takes no time, and their pages come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.checkpoint import cost, report
from bench.checkpoint.systems import FILE, LATER, OURS
from tests.conftest import ROOT, free_port

GOOGLE = "google-cloud-storage"


def run(millrace_bin: Path, *arguments: str) -> str:
    environment = {**os.environ, "MILLRACE_BUILD": str(millrace_bin.parents[1])}
    command = [sys.executable, "-m", *arguments]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_saves_and_loads_are_measured(millrace_bin: Path, tmp_path: Path) -> None:
    """Each saver compares what it loads, so that a row without an error is a proof."""
    output = tmp_path / "results.json"
    options = ["--bytes", "3000000", "--rounds", "0", "--without-limits", "--without-nodes", "--without-peers"]
    systems = ["--without-floors", "--system", OURS, "--system", GOOGLE]
    run(millrace_bin, "bench.checkpoint.run", *options, *systems, "--output", str(output))
    results = json.loads(output.read_text())
    (cell,) = results["cells"]
    assert [row["system"] for row in cell["rows"]] == [OURS, GOOGLE]
    assert not [row for row in cell["rows"] if "error" in row]
    for row in cell["rows"]:
        for part in ("save", "load"):
            assert 0 < row[part]["blocked_s"] <= row[part]["total_s"]
            assert row[part]["cpu_s_per_gib"] > 0
    assert GOOGLE in run(millrace_bin, "bench.checkpoint.report", str(output), "--budgets", str(tmp_path / "none"))


def test_one_node_of_a_cluster(millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pod of deploy/checkpoint-benchmark.yaml; it compares what it loads."""
    settings = {"COORDINATOR_ADDRESS": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": 1, "LAYER_SIZE": 10}
    settings.update(PADDING_SIZE=30, SAMPLE_COUNT=2, CKPT_DIR_PATH=tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    told = json.loads(run(millrace_bin, "bench.checkpoint.nodes"))
    assert (told["world"], told["storage"], told["bytes"], told["samples"]) == (1, "millrace", 1_200_000, 2)
    assert (tmp_path / "millrace" / "sample-1" / ".metadata").exists()
    assert 0 < told["save"]["blocked_s"] <= told["save"]["total_s"]


@pytest.mark.nightly
def test_budgets_are_printed(millrace_bin: Path, tmp_path: Path) -> None:
    output = tmp_path / "budgets.json"
    sizes = ["--small", str(4 << 20), "--large", str(24 << 20), "--rounds", "1"]
    text = run(millrace_bin, "bench.checkpoint.budgets", *sizes, "--output", str(output))
    table = json.loads(output.read_text())["table"]
    assert [line[3] in ("met", "missed") for line in table[1:]] == [True] * 9
    assert all(line[0] in text for line in table)


def figures(seconds: float, over: int) -> dict[str, float]:
    found = {"first_blocked_s": seconds, "blocked_s": seconds / 4, "total_s": seconds, "memory_over": over}
    return {**found, "cpu_s_per_gib": seconds}


def made_up() -> dict[str, Any]:
    """Results in which a system takes a second a GiB without limits and 10 with them, and holds half of it."""
    gib = 1 << 30
    cells = []
    for size, rate, each in ((1 * gib, "", 1), (2 * gib, "", 1), (2 * gib, "100/1000", 10)):
        rows = [
            {"system": name, "save": figures(each * size / gib, over), "load": figures(each * size / gib, over)}
            for name, over in ((FILE, 0), (LATER, 1000), ("dataflux", size // 2))
        ]
        for row in rows:
            row["save"]["cpu_s_per_gib"] = row["load"]["cpu_s_per_gib"] = 0.5  # type: ignore[index]
        rows.append({"system": "broken", "error": "Error: no | such bucket"})
        cell = {"bytes": size, "label": f"{size // gib} GiB", "server": rate or "no limits", "rate": rate, "rows": rows}
        cells.append({**cell, "latency_ms": 0, "rounds": 1})
    machine = {"cpu": "a processor", "cores": 2, "memory_bytes": 4 * gib, "kernel": "6.1", "python": "3.11"}
    return {"date": "today", "commit": "abc", "command": "x", "machine": machine, "cells": cells, "nodes": []}


def test_cost_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made_up()
    theirs = cost.cost(results, "dataflux", "save")
    assert theirs is not None
    assert (theirs.pace, theirs.cpu, theirs.over_each) == (1.0, 0.5, 0.5)
    assert theirs.streams == pytest.approx(2048 / 20 / 100)
    assert theirs.rate(4.0) == pytest.approx(0.1024)  # what one connection gives
    assert theirs.memory(100) == pytest.approx(50)
    ours = cost.cost(results, LATER, "save")
    assert ours is not None
    assert ours.over_each == 0
    assert cost.blocked(LATER, 2.0, ours, 1.0) == pytest.approx(0.25 * 2e9 / (1 << 30))  # a copy: it fits
    assert cost.blocked(LATER, 20.0, ours, 1.0) > 100
    page = tmp_path / "cost.md"
    page.write_text(f"# x\n{cost.BEGIN}\nold\n{cost.END}\ntail\n")
    monkeypatch.setattr(cost, "PAGE", page)
    cost.write(results)
    text = page.read_text()
    assert "548 nodes" in text and "old" not in text and text.endswith("tail\n")


def test_tables_and_picture(tmp_path: Path) -> None:
    results = made_up()
    results["budgets"] = [["what", "budget", "measured", ""], ["save", "0.80", "0.40", "met"]]
    text = report.page(results)
    assert "| save | 0.80 | 0.40 | met |" in text
    failure = "failed: Error: no \\| such bucket"
    assert failure not in text
    assert failure in report.rest(results)  # 1 GiB: not the size that the page shows
    results["cells"][0]["label"] = report.SHOWN
    assert failure in report.page(results)
    picture = tmp_path / "picture.svg"
    from bench.checkpoint import picture as drawing  # matplotlib takes each of pytest's processes a second

    drawing.draw(results, picture)
    assert "millrace" in picture.read_text()
