"""The compatibility run: every program of the reference's repository, after the sed, beside the reference itself.

    MR_REFERENCE=CHECKOUT tests/reference/run [--store devstore|fake-gcs-server] [--only TEXT] [--rows FILE]

Prints the table of docs/migrating.md. The exit status is 1 when a row is DIFFERENT.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT, SESSION_VARIABLE
from tests.reference import unit_tests
from tests.reference.compare import ORDER, SAME, Verdict, compare
from tests.reference.environment import Side, sides
from tests.reference.execute import Result, execute
from tests.reference.programs import CANNOT, PROGRAMS, Program
from tests.reference.stores import STORES

HEAD = "| program of the reference | {stores} |\n|---|{lines}|"


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/reference/run", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="both, unless one is named")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="the programs whose name has one of these texts"
    )
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep what the programs wrote, in this folder")
    parser.add_argument(
        "--rows",
        metavar="FILE",
        type=Path,
        help="keep the rows here; a row that is there and ok is not run again: a run that was interrupted goes on",
    )
    parser.add_argument("--no-unit-tests", action="store_true", help="leave out the reference's own unit tests")
    parser.add_argument(
        "--plain", action="store_true", help="with the running interpreter alone: no package is installed for it"
    )
    return parser.parse_args(words)


def checkout() -> Path:
    named = os.environ.get("MR_REFERENCE")
    if not named or not Path(named).is_dir():
        sys.exit(
            "tests/reference/run: MR_REFERENCE does not name a folder. Set it to a checkout of the reference:\n"
            "git clone --recurse-submodules https://github.com/GoogleCloudPlatform/dataflux-pytorch"
        )
    return Path(named).resolve()


def make_data(program: Program, python: Path, work: Path) -> Path:
    """A folder with the objects of the bucket, for this program."""
    folder = work / ("data-" + "-".join(program.data) if program.data else "data")
    if not folder.exists():
        folder.mkdir()
        command = [str(python), "-m", "tests.reference.data", str(folder), *program.data]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


def run_program(program: Program, pair: tuple[Side, Side], kinds: list[str], work: Path) -> list[Verdict]:
    """A verdict for each store. The control runs in the development store: the other one does not have what it asks
    for at its start (testIamPermissions), nor the multipart uploads by which it saves."""
    control, ours = pair
    folder = make_data(program, control.python, work)
    trees = (str(control.tree), str(ours.tree))
    number = sum(1 for path in work.iterdir() if path.name.startswith("run-"))
    place = work / f"run-{number:02}"
    expected: Result = execute(program, control, "devstore", folder, place / "control")
    verdicts = []
    for kind in kinds:
        found = execute(program, ours, kind, folder, place / kind)
        verdicts.append(compare(program, expected, found, trees))
    return verdicts


def cell(verdict: Verdict) -> str:
    text = verdict.text.replace("|", "\\|").replace("\n", " ")
    if verdict.kind in (SAME, ORDER):
        return f"{verdict.kind}: {text}" if text else verdict.kind
    return f"**{verdict.kind}**: {text[:300]}" if not verdict.ok else f"{verdict.kind}: {text[:300]}"


def row(program: Program, verdicts: list[Verdict]) -> str:
    cells = [cell(verdict) for verdict in verdicts]
    if len(set(cells)) == 1:
        cells = [cells[0], *['"' for _ in cells[1:]]]
    return f"| `{program.file}`{', ' + program.variant if program.variant else ''} | {' | '.join(cells)} |"


def main(words: list[str]) -> int:
    chosen = arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that programs, stores and copies go too
    kinds = chosen.store or list(STORES)
    tree = checkout()
    work = Path(tempfile.mkdtemp(prefix="millrace-reference-"))
    different = 0
    try:
        pair = sides(tree, work, chosen.plain)
        programs = [
            p
            for p in PROGRAMS
            if (pair[0].tree / p.file).exists() and any(text in p.name for text in chosen.only or [""])
        ]
        print(HEAD.format(stores=" | ".join(kinds), lines="|".join("---" for _ in kinds)), flush=True)
        rows: dict[str, str] = json.loads(chosen.rows.read_text()) if chosen.rows and chosen.rows.exists() else {}
        for program in programs:
            key = f"{program.name} in {', '.join(kinds)}"
            if key in rows:
                print(rows[key], flush=True)
                continue
            verdicts = run_program(program, pair, kinds, work)
            different += sum(not verdict.ok for verdict in verdicts)
            print(row(program, verdicts), flush=True)
            if chosen.rows and all(verdict.ok for verdict in verdicts):
                rows[key] = row(program, verdicts)
                chosen.rows.write_text(json.dumps(rows, indent=1))
            for verdict in verdicts:
                if verdict.details:
                    print(verdict.details, file=sys.stderr, flush=True)
        if not chosen.only:
            print("\n| not run here | why |\n|---|---|")
            for file, why in CANNOT.items():
                if (tree / file).exists():
                    print(f"| `{file}` | {why} |")
        if not chosen.no_unit_tests:
            different += unit_tests.run(pair, work)
    finally:
        if chosen.keep:
            shutil.copytree(work, chosen.keep, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(work)
    return 1 if different else 0


if __name__ == "__main__":
    assert SESSION_VARIABLE in os.environ
    sys.exit(main(sys.argv[1:]))
