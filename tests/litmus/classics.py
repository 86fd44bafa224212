"""The litmus tests of the literature, with what RC11 says of each: they check the checker.

python3 -m tests.litmus.classics                the table; 1 if rc11.py says otherwise
python3 -m tests.litmus.classics --herd herd7   asks herd7 too, with its rc11.cat, and compares; then the programs of
                                                aarch64/, with its aarch64.cat (README.md says where herd7 is had)
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tests.litmus.rc11 import Op, Program, Thread, check

ORDERS = {"rlx": "relaxed", "acq": "acquire", "rel": "release", "ar": "acq_rel", "sc": "seq_cst"}

# Threads of "W x 1 rlx", "R x rlx", "A x 1 rlx" (fetch_add), "F sc", split by ";". Then the values that the threads'
# reads and adds give, in order, or "x=1 y=1": the last values. Then whether RC11 allows it.
TESTS: list[tuple[str, list[str], str, bool]] = [
    ("SB", ["W x 1 rlx; R y rlx", "W y 1 rlx; R x rlx"], "0 0", True),
    ("SB+ra", ["W x 1 rel; R y acq", "W y 1 rel; R x acq"], "0 0", True),
    ("SB+sc", ["W x 1 sc; R y sc", "W y 1 sc; R x sc"], "0 0", False),
    ("SB+fences", ["W x 1 rlx; F sc; R y rlx", "W y 1 rlx; F sc; R x rlx"], "0 0", False),
    ("SB+one-fence", ["W x 1 rlx; F sc; R y rlx", "W y 1 sc; R x rlx"], "0 0", True),
    ("SB+fence+sc", ["W x 1 rlx; F sc; R y sc", "W y 1 sc; R x sc"], "0 0", False),
    ("SB+rmw-sc+fence", ["A x 1 sc; R y rlx", "W y 1 rlx; F sc; R x rlx"], "0 0 0", True),
    ("MP", ["W x 1 rlx; W y 1 rlx", "R y rlx; R x rlx"], "1 0", True),
    ("MP+ra", ["W x 1 rlx; W y 1 rel", "R y acq; R x rlx"], "1 0", False),
    ("MP+rel", ["W x 1 rlx; W y 1 rel", "R y rlx; R x rlx"], "1 0", True),
    ("MP+acq", ["W x 1 rlx; W y 1 rlx", "R y acq; R x rlx"], "1 0", True),
    ("MP+fences", ["W x 1 rlx; F rel; W y 1 rlx", "R y rlx; F acq; R x rlx"], "1 0", False),
    ("MP+rmw-between", ["W x 1 rlx; W y 1 rel", "A y 1 rlx", "R y acq; R x rlx"], "1 2 0", False),
    ("MP+store-between", ["W x 1 rlx; W y 1 rel", "R y rlx; W y 2 rlx", "R y acq; R x rlx"], "1 2 0", True),
    ("LB", ["R x rlx; W y 1 rlx", "R y rlx; W x 1 rlx"], "1 1", False),
    ("CoRR", ["W x 1 rlx", "R x rlx; R x rlx"], "1 0", False),
    ("CoRW", ["R x rlx; W x 1 rlx", "W x 2 rlx"], "1", False),
    ("S+ra", ["W x 2 rlx; W y 1 rel", "R y acq; W x 1 rlx"], "1 x=2", False),
    ("S+rlx", ["W x 2 rlx; W y 1 rlx", "R y rlx; W x 1 rlx"], "1 x=2", True),
    ("2+2W", ["W x 1 rlx; W y 2 rlx", "W y 1 rlx; W x 2 rlx"], "x=1 y=1", True),
    ("2+2W+fences", ["W x 1 rlx; F sc; W y 2 rlx", "W y 1 rlx; F sc; W x 2 rlx"], "x=1 y=1", False),
    ("R+fences", ["W x 1 rlx; F sc; W y 1 rlx", "W y 2 rlx; F sc; R x rlx"], "0 y=2", False),
    ("R+sc-one", ["W x 1 sc; W y 1 sc", "W y 2 sc; R x rlx"], "0 y=2", True),
    ("WRC+ra", ["W x 1 rlx", "R x rlx; W y 1 rel", "R y acq; R x rlx"], "1 1 0", False),
    ("WRC+rlx", ["W x 1 rlx", "R x rlx; W y 1 rlx", "R y rlx; R x rlx"], "1 1 0", True),
    ("ISA2+ra", ["W x 1 rlx; W y 1 rel", "R y acq; W z 1 rel", "R z acq; R x rlx"], "1 1 0", False),
    ("RWC+fences", ["W x 1 rlx", "R x rlx; F sc; R y rlx", "W y 1 rlx; F sc; R x rlx"], "1 0 0", False),
    ("IRIW+acq", ["W x 1 rel", "W y 1 rel", "R x acq; R y acq", "R y acq; R x acq"], "1 0 1 0", True),
    ("IRIW+sc", ["W x 1 sc", "W y 1 sc", "R x sc; R y sc", "R y sc; R x sc"], "1 0 1 0", False),
    ("IRIW+fences", ["W x 1 rlx", "W y 1 rlx", "R x rlx; F sc; R y rlx", "R y rlx; F sc; R x rlx"], "1 0 1 0", False),
    ("two adds", ["A x 1 rlx", "A x 1 rlx"], "0 0", False),
]


def operations(thread: str) -> list[list[str]]:
    return [words.split() for words in thread.split(";")]


def run(thread: str) -> Callable[[], Thread]:
    def call() -> Thread:
        got = []
        for kind, *words in operations(thread):
            order = ORDERS[words[-1]]
            if kind == "F":
                yield Op("fence", "", order)
            elif kind == "R":
                got.append((yield Op("load", words[0], order)))
            else:
                value = yield Op("store" if kind == "W" else "add", words[0], order, int(words[1]))
                got += [value] if kind == "A" else []
        return got

    return call


def split(wanted: str) -> tuple[list[int], dict[str, int]]:
    words = wanted.split()
    last = dict(word.split("=") for word in words if "=" in word)
    return [int(word) for word in words if "=" not in word], {name: int(value) for name, value in last.items()}


def is_allowed(threads: list[str], wanted: str) -> bool:
    reads, last = split(wanted)

    def seen(values: dict[str, int], results: tuple[Any, ...]) -> bool:
        return [value for result in results for value in result] == reads and all(
            values[name] == value for name, value in last.items()
        )

    return check(Program("", tuple(run(thread) for thread in threads), dict.fromkeys("xyz", 0), seen)) == "wrong result"


def as_herd(name: str, threads: list[str], wanted: str) -> str:
    reads, last = split(wanted)
    names = sorted({words[0] for thread in threads for kind, *words in operations(thread) if kind != "F"})
    lines = [f"C {name}", "{ " + " ".join(f"{name} = 0;" for name in names) + " }"]
    wanted_parts = [f"{place}={value}" for place, value in last.items()]
    left = iter(reads)
    for number, thread in enumerate(threads):
        lines.append(f"P{number} ({', '.join(f'atomic_int* {name}' for name in names)}) {{")
        for place, (kind, *words) in enumerate(operations(thread)):
            order = f"memory_order_{ORDERS[words[-1]]}"
            if kind == "F":
                lines.append(f"  atomic_thread_fence({order});")
            elif kind == "W":
                lines.append(f"  atomic_store_explicit({words[0]}, {words[1]}, {order});")
            else:
                call = "load" if kind == "R" else "fetch_add"
                value = "" if kind == "R" else f"{words[1]}, "
                lines.append(f"  int r{place} = atomic_{call}_explicit({words[0]}, {value}{order});")
                wanted_parts.append(f"{number}:r{place}={next(left)}")
        lines.append("}")
    lines.append("exists (" + " /\\ ".join(wanted_parts) + ")")
    return "\n".join(lines) + "\n"


def herd_allows(herd: list[str], text: str, *model: str) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".litmus") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([*herd, *model, file.name], capture_output=True, text=True, check=True)
    found = re.search(r"^Observation \S+ (\w+)", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return found[1] != "Never"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--herd", default="")
    herd = shlex.split(parser.parse_args().herd)
    wrong = 0
    for name, threads, wanted, allowed in TESTS:
        found = is_allowed(threads, wanted)
        asked = (
            herd_allows(herd, as_herd(name.replace(" ", "-"), threads, wanted), "-model", "rc11.cat") if herd else found
        )
        is_wrong = not allowed == found == asked
        words = "" if not herd else f"   herd7: {'allowed' if asked else 'forbidden'}"
        print(f"{name:20} {'allowed' if found else 'forbidden':10}{words}{'   WRONG' if is_wrong else ''}")
        wrong += is_wrong
    files = sorted((pathlib.Path(__file__).resolve().parent / "aarch64").glob("*.litmus")) if herd else []
    for file in files:
        text = file.read_text()
        wanted = text.split('"')[1].split(":")[0]
        seen = "sometimes" if herd_allows(herd, text) else "never"
        print(f"aarch64 {file.stem:20} herd7: {seen}{'' if seen == wanted else '   WRONG'}")
        wrong += seen != wanted
    print(f"{len(TESTS) + len(files)} tests, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
