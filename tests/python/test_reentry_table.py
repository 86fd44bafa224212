"""docs/reentrancy.md, the table of what may be called in the middle of what: seen, and compared with the page.

PYTHONPATH=build/release/python .venv/bin/python -m tests.python.test_reentry_table    rewrites the page
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import millrace
from millrace import _ring
from tests.conftest import ROOT
from tests.python.conftest import Folder
from tests.python.reentry_program import BLOCK, BUFFER, DEALLOC, MEMBERS, WAITS
from tests.serve import start_supervisor

PAGE = ROOT / "docs/reentrancy.md"
CONFIG = """
[memory]
arena_bytes = "32MiB"
[fetch]
workers = 2
[checkpoint]
workers = 1
part_bytes = "5MiB"
arena_bytes = "60MiB"
"""
WAYS = {
    "handler": "a signal handler",
    "finaliser": "a finaliser",
    "thread": "another thread",
    "handler's child": "a child that a handler forks",
    "thread's child": "a child that another thread forks",
}
# What may come of a call. Anything else (a crash, a hang, another exception) fails without a look at the page.
OUTCOMES = ("works", "waits its turn", "waits, ValueError", "waits, RuntimeError")
ERRORS = ("RuntimeError", "ValueError", "TypeError")

Row = tuple[str, str, str, str, str, bool, str]


def see(program: Path, folder: Path) -> list[Row]:
    """Runs reentry_program.py over a supervisor of its own: its lines."""
    objects = folder / "objects"
    objects.mkdir()
    for i in range(8):
        (objects / f"object-{i}").write_bytes(bytes([i]) * 100)
    large = folder / "large"
    large.write_bytes(random.Random(1).randbytes(12 * BLOCK))
    started = start_supervisor(program, folder, "http://127.0.0.1:9", CONFIG)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.python.reentry_program"]
            + [str(started.socket), str(folder), f"file://{objects}/", str(large)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"},  # fork() beside threads, from 3.12 on
        )
    finally:
        started.process.send_signal(signal.SIGCONT)
        assert started.stop() == 0, started.log.read_text()
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout[-4000:]
    rows: list[Row] = [tuple(json.loads(line)) for line in lines if line.startswith("[")]
    wrong = [row for row in rows if not row[3] and row[6] not in ("begins", "ends")]
    assert not wrong, (wrong, [line for line in lines if not line.startswith("[")][-60:])
    return [row for row, after in zip(rows, rows[1:] + rows[:1]) if row[3] and row[6] != "hangs"]


def table(rows: list[Row], own: bool) -> list[str]:
    """A line for each set of members of a type of which the same came in every way."""
    seen: dict[tuple[str, str], dict[str, list[str]]] = {}
    for _, _, way, kind, member, is_own, outcome in rows:
        if is_own == own:
            cell = seen.setdefault((kind, member), {}).setdefault(way.removesuffix(", close"), [])
            if outcome not in cell:
                cell.append(outcome)
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (kind, member), cells in seen.items():
        columns = tuple(" or ".join(sorted(cells.get(way, []), key=order)) or "-" for way in WAYS)
        merged.setdefault((kind, columns), []).append(member)
    lines = ["| object | called | " + " | ".join(WAYS.values()) + " |", "|---" * (2 + len(WAYS)) + "|"]
    for (kind, columns), members in merged.items():
        names = ", ".join(member if member.startswith("(") else f"`{member}`" for member in members)
        lines.append(f"| `{kind}` | {names} | " + " | ".join(columns) + " |")
    return lines


def order(outcome: str) -> int:
    return (*OUTCOMES, *ERRORS).index(outcome)


def page(rows: list[Row]) -> str:
    waits = textwrap.fill(", ".join(f"`{wait.kind}.{wait.name}`" for wait in WAITS) + ".", 118)
    return "\n".join(
        [
            TEXT.replace("WAITS", waits).replace("CALLS", f"{len(rows):,}"),
            "## The object whose method waits",
            "",
            *table(rows, True),
            "",
            "## Any other object",
            "",
            *table(rows, False),
            "",
        ]
    )


TEXT = """# Re-entrancy

What happens when a method is called in the middle of another one: by a signal handler, by a finaliser that the garbage
collector runs, by a second thread, or in a child that is forked there. Nothing crashes and nothing waits for itself; a
call that cannot be answered raises an exception, and the method in whose middle it came ends as if it had not come.

- **A handler or a finaliser** cannot use the object in whose call it came: RuntimeError, and the object is unchanged.
  So a handler that shall end a save sets a flag, or raises: an exception that leaves the handler ends the call.
- **Another thread** waits its turn at a connection and at a checkpoint's reader. A data set's lane and a checkpoint's
  writer are for one thread at a time: RuntimeError.
- **A forked child** has nothing of what its parent has opened: ValueError, at every object that speaks to the
  supervisor or to shared memory, and nothing that the child does or drops touches the parent's. `close`, and the end
  of an object, do nothing there. What was read before (sizes, names, a listing) stays readable. A method in which a
  handler has forked ends in the child with ValueError, and in the parent as if nothing had been ("(goes on)" below).
- **A connection** cannot be closed while lanes or writers of it are open: RuntimeError.

The objects are those of `millrace._ring`: `Lease` and `Index` are what users see, `Lane` is under a data set's
iterator, `Writer` under `checkpoint.writer()`, `RangeReader` under `checkpoint.reader()`, `Client` is a process's
connection. `capsule` is what `Lease.__dlpack__` gives. "(its end)" is the end of the last reference, "(buffer)" a
`memoryview`.

This page is written by `tests/python/test_reentry_table.py` from what it sees, CALLS calls; it fails where a
type has a member that is not called here. The methods in whose middle they come:

WAITS

In those that wait for the supervisor's answer (`Client`, and every `close`) handlers run afterwards. Between two such
waits, whatever allocates may run a finaliser: the same file has the tests of that.

The free-threaded build of CPython (3.13t and later) is refused at import: nothing here has been written for it.
"""


# ---- the table ----


def test_every_member_is_in_the_table() -> None:
    """A new type or method of the extension needs its row in MEMBERS."""
    types = {name: kind for name, kind in vars(_ring).items() if isinstance(kind, type)}
    assert issubclass(types.pop("Failure"), tuple)  # the interpreter's own
    assert set(MEMBERS) == {*types, "capsule"}
    of_the_interpreter = {"__doc__", "__module__", "__buffer__", "__release_buffer__", "__weakref__"}
    for name, kind in types.items():
        called = set(MEMBERS[name]) - {DEALLOC, BUFFER}
        assert called == set(vars(kind)) - of_the_interpreter - ({"__new__"} - called), name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tells waits by numbers of system calls")
def test_the_page_says_what_is_seen(millrace_bin: Path, tmp_path: Path) -> None:
    rows = see(millrace_bin, tmp_path)
    assert not [row for row in rows if row[6] not in (*OUTCOMES, *ERRORS)]
    assert PAGE.read_text() == page(rows), "python -m tests.python.test_reentry_table, and read the difference"


# ---- in the middle of what does not wait: allocations, and what arguments run ----


@pytest.fixture
def lease(socket: str, hundred: Folder) -> Iterator[Any]:
    """Of private memory, which is freed when the Lease is released."""
    batches = iter(millrace.IterableDataset(hundred.uri, writable=True).batches(1))
    found = next(batches)
    yield found.pop()


def test_a_lease_that_is_released_while_dlpack_reads_its_arguments(lease: Any, hundred: Folder) -> None:
    class Copies:
        def __bool__(self) -> bool:
            lease.release()
            return True

    name = lease.name
    capsule = lease.__dlpack__(copy=Copies())
    assert torch.utils.dlpack.from_dlpack(capsule).numpy().tobytes() == hundred.contents[name]


@pytest.mark.parametrize("method", ["copy", "__reduce__"])
def test_a_lease_that_a_finaliser_releases_while_it_is_copied(lease: Any, hundred: Folder, method: str) -> None:
    """The collector runs at the call's first allocation of a tuple (from 3.12 on, only after the call)."""

    class Cycle:
        pass

    name, call = lease.name, getattr(lease, method)
    cycle = Cycle()
    cycle.itself = cycle  # type: ignore[attr-defined]
    released = weakref.finalize(cycle, lease.release)
    del cycle
    gc.disable()
    try:
        held = [(i, i) for i in range(10_000)]  # none is left that could be given out again without an allocation
        gc.enable()
        got = call()
    finally:
        gc.enable()
    del held
    gc.collect()
    assert not released.alive
    assert (bytes(got) if method == "copy" else got[1][0]) == hundred.contents[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        PAGE.write_text(page(see(ROOT / "build/release/bin/millrace", Path(found))))
