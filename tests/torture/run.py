"""Every call that can fail, failing: each program, each kind, N = 1, 2, 3, ... until the Nth call never comes.

python -m tests.torture.run [--scene NAME]... [--kind KIND]... [--stride K] [--ever] [--from N] [--to N] [-v]

Prints a table by scene and kind: how many calls failed, one a run, and how many of those runs went wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture import scenes
from tests.torture.scenes import SCENES, Place, Result, Scene, a_place, attempt, kinds_of


@dataclass
class Column:
    """One scene, one kind."""

    runs: int = 0
    reached: int = 0
    absorbed: int = 0  # the run succeeded all the same
    theirs: int = 0  # crashed in a library that is not ours
    problems: list[tuple[int, Result]] = field(default_factory=list)


def torture(scene: Scene, place: Place, kind: str, options: argparse.Namespace) -> Column:
    column = Column()
    n = options.first
    while n <= options.last:
        result = attempt(scene, place, kind, n, options.ever)
        if options.verbose or result.problem or result.seconds > options.slow_s:
            say(scene, kind, n, result)
        if result.problem:
            column.problems.append((n, result))
        if result.hit is None:
            break
        column.runs += 1
        column.reached = n
        column.absorbed += result.ended.status == 0
        column.theirs += result.theirs
        n += options.stride
    return column


def say(scene: Scene, kind: str, n: int, result: Result) -> None:
    what = f"FAILED: {result.problem}" if result.problem else f"status {result.ended.status}"
    print(f"{scene.name}, {kind} {n}: {what}, {result.seconds:.1f} s, at {result.hit}", flush=True)
    for line in result.ended.err.strip().splitlines()[-8:]:
        print(f"    | {line[:300]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", action="append", help="only these")
    parser.add_argument("--kind", action="append", help="only these")
    parser.add_argument("--stride", type=int, default=1, help="every Kth call")
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--to", type=int, default=1_000_000, dest="last")
    parser.add_argument("--ever", action="store_true", help="all calls from the Nth on fail")
    parser.add_argument("--slow-s", type=float, default=8.0, help="runs that took longer are shown")
    parser.add_argument("--table", type=Path, help="writes the table here too")
    parser.add_argument("-v", "--verbose", action="store_true", help="every run")
    options = parser.parse_args()
    began, rows, wrong, runs = time.monotonic(), [], 0, 0
    with a_place() as place:
        for scene in SCENES:
            if options.scene and not {scene.name, scene.name.replace(" ", "-")} & set(options.scene):
                continue
            cells = []
            for kind in kinds_of(scene):
                if options.kind and kind not in options.kind:
                    continue
                column = torture(scene, place, kind, options)
                runs += column.runs
                wrong += len(column.problems)
                if column.runs:
                    bad = f" (**{len(column.problems)}** wrong)" if column.problems else ""
                    bad += f" ({column.theirs} in libcurl)" if column.theirs else ""
                    cells.append(f"{kind} {column.reached}{bad}")
                elif column.problems:
                    cells.append(f"{kind} 0 (**wrong without a failure**)")
            rows.append(f"| {scene.name} | `{scene.program}` | {', '.join(cells)} |")
            print(f"{time.monotonic() - began:.0f} s {rows[-1]}", flush=True)
    table = "\n".join(["| scene | program | calls that failed, by kind |", "|---|---|---|", *rows])
    total = f"{runs} runs with a failed call, {wrong} of them wrong, {time.monotonic() - began:.0f} s"
    print(f"\n{table}\n\n{total}")
    if options.table:
        options.table.write_text(f"{table}\n\n{total}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    assert scenes.LIBRARY.exists(), f"{scenes.LIBRARY} is not built"
    sys.exit(main())
