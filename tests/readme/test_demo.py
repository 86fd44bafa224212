"""`make demo`, with fewer epochs: it learns, resumes with the same samples, draws its picture, and cleans up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serve import DEADLINE_S, wait_for

DEMO = [sys.executable, str(ROOT / "scripts" / "demo.py")]


@pytest.mark.parametrize(
    ("store", "filled", "state", "epochs"),
    [
        ("gs", "6,296 objects", "{out}/state.pt", 2),
        ("s3", "6,296 samples in 21 tar shards", "s3://icons/checkpoints/state.pt", 1),
    ],
)
def test_the_demo_learns_and_resumes(store: str, filled: str, state: str, epochs: int, tmp_path: Path) -> None:
    """Stopped in its last epoch, of 99 steps."""
    out = tmp_path / "out"
    stop = 99 * (epochs - 1) + 51
    command = [*DEMO, "--store", store, "--epochs", str(epochs), "--stop-after", str(stop), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{filled} at http://" in done.stdout
    assert f"stopped in epoch {epochs} after step 51; state in {state.format(out=out)}\n" in done.stdout
    same = re.findall(r"rank (\d): the ([\d,]+) samples after the resume are the same, in the same order", done.stdout)
    assert sorted(rank for rank, _ in same) == ["0", "1"]
    assert sum(int(count.replace(",", "")) for _, count in same) == 6296 - 51 * 64
    score = json.loads((out / "score.json").read_text())
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), accuracy", done.stdout)]
    assert losses == sorted(losses, reverse=True) and len(losses) == epochs
    assert score["held_out_accuracy"] > score["largest_class"] + 0.1
    assert (out / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "store").exists()


def test_the_demo_names_the_stores_it_knows() -> None:
    done = subprocess.run([*DEMO, "--store", "gcs"], capture_output=True, text=True)
    assert done.returncode == 2 and "invalid choice: 'gcs' (choose from" in done.stderr


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
    listed = subprocess.run(["ps", "-ww", "-eo", "ppid,pid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    runs = {row[1] for row in rows if row[0] == str(pid) and "millrace run" in row[2]}
    return any(row[0] in runs and "torchrun" in row[2] for row in rows)
