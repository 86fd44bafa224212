"""FSDP on the CPU: save, kill, resume, and the same losses as a run that was not killed.

    MR_REFERENCE=CHECKOUT tests/reference/run-fsdp [--saver NAME] [--ranks N] [--state NAME] [--mode NAME]

Savers and resumers: `millrace`, millrace.dataflux.lightning's strategy; `file`, the reference's own strategies.py after
the sed, over millrace; `reference`, that file over the reference itself. A row is one killed run, which each of the
three then resumes. The exit status is 1 where a cell is not ok, unless the reference does no better: it cannot resume
that checkpoint of its own either.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT
from tests.reference import stores
from tests.reference.environment import Side, sides
from tests.reference.main import checkout
from tests.reference.programs import BUCKET

PROGRAM = ROOT / "tests" / "python" / "fsdp_kill_program.py"
FILE = "demo.lightning.checkpoint.multinode.strategies:DatafluxFSDPStrategy"
MILLRACE, REFERENCE = "millrace", "reference"
CLASSES = {
    MILLRACE: "millrace.dataflux.lightning.strategies:DatafluxFSDPStrategy",
    "file": FILE,
    REFERENCE: FILE,
}
STATES = {"ShardedTensor": [], "DTensor": ["dtensor"], "plain": ["full"]}
MODES = {"sync": [], "async": ["async"]}
STEPS, KILLED = 8, 6
LIMIT_S = 900.0  # of one launch: none is a measurement
CONFIG = '[memory]\narena_bytes = "16MiB"\n[checkpoint]\narena_bytes = "80MiB"\n'


class Runs:
    """Launches of one world and kind of state, in one bucket."""

    def __init__(self, pair: tuple[Side, Side], url: str, work: Path, ranks: int, state: str) -> None:
        self.control, self.ours = pair
        self.url, self.work, self.ranks, self.state = url, work, ranks, state
        self.said = ""

    def launch(self, who: str, folder: str, *more: str) -> tuple[int, list[str]]:
        """The exit status, and "STEP LOSS" of each step."""
        side = self.control if who == REFERENCE else self.ours
        for name in ("home", "observed"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        (self.work / "millrace.toml").write_text(CONFIG)
        launcher = [str(side.python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        words = [CLASSES[who], f"gs://{BUCKET}/{folder}", str(STEPS), *STATES[self.state], *more]
        environment = side.environment(self.work, self.url)
        environment["MILLRACE_CONFIG"] = str(self.work / "millrace.toml")
        del environment["MR_OBSERVE"]
        done = subprocess.run(
            [*launcher, str(PROGRAM), *words],
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        self.said = done.stderr
        return done.returncode, [line[2:] for line in done.stdout.splitlines() if line.startswith("| ")]

    def error(self) -> str:
        """The first error of a rank, in a cell."""
        found = re.search(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception)\b.*)$", self.said, re.M)
        return (found[1] if found else self.said[-200:]).replace("|", "/").replace("\n", " ")[:160]


def last_whole(saved: Path, folder: str) -> tuple[int, str] | None:
    """The step and name of the newest checkpoint of a run that is whole."""
    steps = {}
    for file in (saved / BUCKET / folder).glob("*/.metadata"):
        if (file.parent / "meta.pt").exists():
            steps[int(file.parent.name.partition("step=")[2].partition(".")[0])] = file.parent.name
    return max(steps.items()) if steps else None


def resume_cells(runs: Runs, whole: list[str], folder: str, at: tuple[int, str]) -> list[str]:
    step, name = at
    cells = []
    for who in CLASSES:
        resumed = f"resume=gs://{BUCKET}/{folder}/{name}"
        status, losses = runs.launch(who, f"{folder}-resumed-{who}", resumed)
        if status != 0:
            cells.append(f"fails: {runs.error()}")
        elif losses != whole[step:]:
            cells.append(f"DIFFERENT: {losses}, expected {whole[step:]}")
        else:
            cells.append("ok")
    return cells


def row(runs: Runs, whole: list[str], saver: str, mode: str, work: Path) -> tuple[list[str], bool]:
    """The cells of one killed run, and whether they may stand."""
    folder = f"{saver}-{mode}"
    status, before = runs.launch(saver, folder, *MODES[mode], f"kill={KILLED}")
    if status == 0 or before != whole[: KILLED - 1]:
        return [f"its own run fails: {runs.error()}", "", "", ""], saver == REFERENCE
    saved = work / f"saved-{folder}"
    stores.left(runs.url, work / "data", saved)
    at = last_whole(saved, folder)
    shutil.rmtree(saved)
    if at is None:
        return [f"saves nothing whole: {runs.error()}", "", "", ""], saver == REFERENCE
    cells = resume_cells(runs, whole, folder, at)
    by = dict(zip(CLASSES, cells))
    fine = all(cell == "ok" for who, cell in by.items() if who != REFERENCE)
    return [f"step {at[0]}", *cells], fine or (saver == REFERENCE and by[REFERENCE] != "ok")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/reference/run-fsdp", description=__doc__)
    parser.add_argument("--saver", choices=CLASSES, action="append")
    parser.add_argument("--ranks", type=int, action="append", help="2 and 4, unless one is named")
    parser.add_argument("--state", choices=STATES, action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    chosen = parser.parse_args(words)
    tree, bad = checkout(), 0
    with tempfile.TemporaryDirectory(prefix="millrace-fsdp-") as folder:
        work = Path(folder)
        (work / "data").mkdir()
        pair = sides(tree, work, plain=False)
        print(
            f"| saved by | ranks | state | mode | last whole | {' | '.join(f'resumed by {who}' for who in CLASSES)} |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for ranks in chosen.ranks or (2, 4):
            for state in chosen.state or STATES:
                place = work / f"{ranks}-{state}"
                place.mkdir()
                with stores.store("devstore", work / "data", place) as url:
                    runs = Runs(pair, url, place, ranks, state)
                    status, whole = runs.launch(MILLRACE, "whole")
                    if status != 0 or len(whole) != STEPS:
                        sys.exit(f"a run that is not killed fails: {runs.said[-3000:]}")
                    for saver in chosen.saver or CLASSES:
                        for mode in chosen.mode or MODES:
                            cells, fine = row(runs, whole, saver, mode, work)
                            bad += not fine
                            print(f"| {saver} | {ranks} | {state} | {mode} | {' | '.join(cells)} |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    assert "MILLRACE_TEST_SESSION" in os.environ
    sys.exit(main(sys.argv[1:]))
