"""`millrace bench`: over its own supervisor and a running one, for people and programs, and what stops it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve import DEADLINE_S, OBJECTS, StartServe, wait_for

Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bench(millrace_bin: Path, runtime: Path) -> Bench:
    def run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(millrace_bin), "bench", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **env})

    return run


def test_its_own_supervisor(bench: Bench, config: Path, runtime: Path) -> None:
    done = bench("-c", config, "--steps", "120", "--batch-size", "4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"train: {OBJECTS} objects, 18.6 KiB, the largest 1.9 KiB; batches of 4, this process reads"
    assert [line.split()[:2] for line in lines if line.startswith(("data ", "cached "))] == [
        ["data", "1-100"],
        ["data", "101-120"],
        ["cached", "1-100"],
        ["cached", "101-120"],
    ]
    assert "does not wait for data here" in done.stdout
    assert list((runtime / "millrace").glob("run-*")) == []  # its supervisor has gone


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_json(bench: Bench, config: Path, folder: Path, workers: int) -> None:
    extra = ["--workers", str(workers)] if workers else []
    done = bench("-c", config, "--json", "--steps", "30", "--batch-size", "5", *extra)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["dataset"], report["objects"], report["batch_size"], report["workers"]) == ("train", 20, 5, workers)
    assert [block["kind"] for block in report["blocks"]] == ["data", "cached"]
    for block in report["blocks"]:
        assert block["steps"] == 30
        assert block["step_mean_s"] > 0 and block["step_variance_s2"] >= 0 and 0 <= block["waiting_ratio"] <= 1
    # 30 steps of 5 samples: more than seven epochs of 20 objects, each sample counted.
    data = report["data"]
    assert round(data["samples_per_s"] * data["step_mean_s"] * 30) == 150
    assert data["cpu_s"]["reader"] > 0 and set(data["cpu_s"]) == {"reader", "download", "supervisor"}


def test_a_running_supervisor(bench: Bench, serve: StartServe, config: Path, folder: Path) -> None:
    one = serve(config)
    one.wait_ready()
    done = bench("--steps", "5", "--batch-size", "99", MILLRACE_SOCKET=str(one.socket))
    assert done.returncode == 0, done.stderr
    assert "batches of 20" in done.stdout
    by_uri = bench("--steps", "5", "--dataset", f"file://{folder}/00", "--socket", one.socket)
    assert by_uri.returncode == 0, by_uri.stderr
    assert "/00: 10 objects" in by_uri.stdout
    wait_for(lambda: one.stat()["lanes"] == [], "its lane stays")
    several = bench("--steps", "5", "--socket", one.socket)
    assert several.returncode == 2
    assert "several data sets" in several.stderr


def test_what_stops_it(bench: Bench, config: Path, tmp_path: Path) -> None:
    unknown = bench("-c", config, "--dataset", "valid", "--steps", "5")
    assert unknown.returncode != 0
    assert "valid" in unknown.stderr
    missing = bench("-c", config, "--dataset", f"file://{tmp_path}/nothing", "--steps", "5")
    assert missing.returncode == 1
    assert "no objects" in missing.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_a_vanished_object(bench: Bench, serve: StartServe, config: Path, folder: Path, workers: int) -> None:
    one = serve(config)
    one.wait_ready()
    (folder / "007").unlink()
    extra = ["--workers", str(workers)] if workers else []
    done = bench("--steps", "9", "--batch-size", "5", "--socket", one.socket, *extra)
    assert done.returncode == 1
    assert "007" in done.stderr


def test_an_empty_socket_is_none(bench: Bench, folder: Path) -> None:
    """Within its own supervisor `bench` finds that one, and starts no other."""
    done = bench("--socket", "", "--dataset", f"file://{folder}/", "--steps", "5")
    assert done.returncode == 0, done.stderr


def test_json_of_a_name_that_is_not_utf8(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    (tmp_path / os.fsdecode(b"caf\xe9") / "a").write_bytes(b"a")
    done = bench("--json", "--steps", "5", "--dataset", os.fsdecode(b"file://%s/caf\xe9/" % os.fsencode(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dataset"].startswith(f"file://{tmp_path}/caf")
