"""The memory orders of lane.c and wake.c, checked: every program of programs.py, and every order made weaker.

    python3 -m tests.litmus.run             the table; the exit status is 1 if one of them is not as it must be
    python3 -m tests.litmus.run --only W0   the programs whose name contains the word

A mutant is one operation of the source with its order made relaxed, or one fence left out. Each must be caught by a
program, or stand in programs.SPARE with the reason why nothing needs that order. An operation in SPARE that a program
does catch is an error too: the reason would be wrong.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.litmus import programs, rc11, source


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    chosen = parser.parse_args().only
    began = time.process_time()
    code = source.read()
    failed = 0
    needed: dict[source.Place, list[str]] = {}
    for name, make in programs.PROGRAMS.items():
        if chosen not in name:
            continue
        used: set[source.Place] = set()
        problem = rc11.check(make(source.Orders(code, used=used)))
        print(f"{name:32} {problem or 'holds'}")
        failed += bool(problem)
        for place in sorted(used):
            if code.orders[place] != rc11.RELAXED:
                needed.setdefault(place, [])
                found = rc11.check(make(source.Orders(code, weak=place)))
                if found:
                    needed[place].append(f"{name}: {found}")
    print()
    for place, order in code.orders.items():
        if order in (rc11.RELAXED, rc11.PLAIN) or (chosen and place not in needed):
            continue
        spare = programs.SPARE.get(place.text)
        caught = needed.get(place)
        verdict = "; ".join(caught) if caught else f"spare: {spare}" if spare else "NOT CAUGHT"
        if caught and spare:
            verdict = f"WRONGLY SPARE: {verdict}"
        failed += bool(caught) == bool(spare)
        print(f"{place.text:44} {order:8} {verdict}")
    unknown = set(programs.SPARE) - {place.text for place in code.orders}
    if unknown and not chosen:
        print(f"in SPARE, and not in the source: {', '.join(sorted(unknown))}")
        failed += 1
    print(
        f"\n{len(programs.PROGRAMS)} programs, {sum(map(bool, needed.values()))} mutants caught, "
        f"{len(programs.SPARE)} spare, {failed} wrong, {time.process_time() - began:.1f} s"
    )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
