"""`make demo`, with one epoch: it learns, resumes with the same samples, draws its picture, and cleans up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serve import DEADLINE_S, children, wait_for

DEMO = [sys.executable, str(ROOT / "scripts" / "demo.py")]


@pytest.mark.timeout(600)  # 45 s alone, 220 s in a slow CI
@pytest.mark.parametrize(
    ("store", "filled", "state"),
    [
        ("gs", "6,296 objects", "{out}/state.pt"),
        pytest.param(
            "s3", "6,296 samples in 21 tar shards", "s3://icons/checkpoints/state.pt", marks=pytest.mark.nightly
        ),
    ],
)
def test_the_demo_learns_and_resumes(store: str, filled: str, state: str, tmp_path: Path) -> None:
    """One epoch, of 99 steps, stopped in its middle."""
    out = tmp_path / "out"
    command = [*DEMO, "--store", store, "--epochs", "1", "--stop-after", "51", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{filled} at http://" in done.stdout
    assert f"stopped in epoch 1 after step 51; state in {state.format(out=out)}\n" in done.stdout
    same = re.findall(r"rank (\d): the ([\d,]+) samples after the resume are the same, in the same order", done.stdout)
    assert sorted(rank for rank, _ in same) == ["0", "1"]
    assert sum(int(count.replace(",", "")) for _, count in same) == 6296 - 51 * 64
    score = json.loads((out / "score.json").read_text())
    assert score["held_out_accuracy"] > score["largest_class"] + 0.1
    assert (out / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "store").exists()


def test_the_demo_names_the_stores_it_knows() -> None:
    done = subprocess.run([*DEMO, "--store", "gcs"], capture_output=True, text=True)
    assert done.returncode == 2 and "invalid choice: 'gcs' (choose from" in done.stderr


@pytest.mark.timeout(600)  # more than its waits together
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_cleans_up_when_it_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([*DEMO, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:  # beside busy loops it makes its objects for longer than other waits last
        wait_for(lambda: _trains(process.pid) or process.poll() is not None, "it never trains", 2 * DEADLINE_S)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 128 + number
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(DEADLINE_S)
    assert not (out / "store").exists()


def _trains(pid: int) -> bool:
    """Whether its `millrace run` has started torchrun."""
    runs = [child for child, words in children(pid).items() if words[1:2] == ["run"]]
    return any("torchrun" in word for run in runs for words in children(run).values() for word in words)
