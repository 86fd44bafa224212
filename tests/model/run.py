#!/usr/bin/env python3
"""Check the spin models of the ring protocol, and that each of their mutants is caught.

    tests/model/run.py --first             what `make test` runs: the first check of each model
    tests/model/run.py --quick             the set that ctest's `models` runs (`make nightly`; about two minutes)
    tests/model/run.py                     larger sizes too (some minutes)
    tests/model/run.py --only barrier      the checks whose name contains the word
    tests/model/run.py --trace NAME        one mutant's counterexample, step by step
    tests/model/run.py --list              the table

A correct model must be searched completely and without an error; a mutant must have one, of the kind that the table
names (so that no mutant is "caught" by an accident). The exit status is 1 if that is not so. Needs spin and gcc.
"""

import argparse
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = {"spin": "-V", "gcc": "--version"}

# What pan says about an error. A stuck search is a hang or a leak: some process waits for what never comes.
STUCK = "invalid end state"
ASSERT = "assertion violated"
LIVELOCK = "non-progress cycle"


@dataclasses.dataclass(frozen=True)
class Check:
    """One search: a model with its flags, and what must come of it."""

    name: str
    model: str
    flags: str = ""
    error: str = ""  # "": correct; else the kind of the mutant's error
    depth: int = 100_000  # bound of the depth-first search; a correct model that reaches it fails
    liveness: bool = False  # look for non-progress cycles under weak fairness, instead of for hangs and assertions
    full: bool = False  # not in the quick set
    dfs: bool = False  # a mutant whose error lies too deep for the breadth-first search (its trace is not the shortest)


LIFE = "-DKILL_PRODUCER -DKILL_OWNER -DFAILURES"
# Two producers with a reserve and nothing else, and blocks of one ticket.
TWO = "-DPRODUCERS=2 -DEXTENTS=0"

CHECKS = [
    # lane_life: close, death of owner and producer, reuse, take-back, stale descriptors
    Check("lane_life", "lane_life", f"-DLANES=1 {LIFE} -DKILLS=1 -DTAKE_BACKS=1"),
    Check("lane_life-poison", "lane_life", "-DLANES=1 -DPOISON=1 -DTAKE_BACKS=1 -DFAILURES"),
    Check("lane_life-two-producers", "lane_life", "-DLANES=1 -DPRODUCERS=2 -DEXTENTS=1 -DTICKETS=3"),
    Check("lane_life-lingering", "lane_life", "-DW=1 -DLINGER -DTICKETS=1 -DKILLS=1 -DKILL_PRODUCER"),
    Check("lane_life.no-second-look", "lane_life", "-DLANES=1 -DNO_SECOND_LOOK", STUCK),
    Check("lane_life.reuse-segment", "lane_life", "-DREUSE_SEGMENT", STUCK),
    Check("lane_life.desc-before-held", "lane_life", "-DLANES=1 -DTAKE_BACKS=1 -DDESC_BEFORE_HELD", ASSERT),
    Check(
        "lane_life.request-before-claim", "lane_life", "-DLANES=1 -DW=1 -DPRODUCERS=2 -DREQUEST_BEFORE_CLAIM", ASSERT
    ),
    Check(
        "lane_life.failed-with-extent", "lane_life", "-DLANES=1 -DTAKE_BACKS=1 -DFAILURES -DFAILED_WITH_EXTENT", ASSERT
    ),
    Check("lane_life.poison-unmarked", "lane_life", "-DLANES=1 -DTAKE_BACKS=1 -DPOISON=1 -DPOISON_UNMARKED", ASSERT),
    Check(
        "lane_life.rebuild-skips-closed",
        "lane_life",
        "-DW=1 -DLINGER -DKILLS=1 -DKILL_PRODUCER -DREBUILD_SKIPS_CLOSED",
        ASSERT,
    ),
    Check("lane_life-two-lanes", "lane_life", "-DKILLS=1 -DKILL_OWNER", full=True),
    Check("lane_life-two-kills", "lane_life", f"-DLANES=1 -DTICKETS=3 {LIFE} -DTAKE_BACKS=1 -DKILLS=2", full=True),
    # division: the memory is divided anew
    Check("division", "division", ""),
    Check("division-any-time", "division", "-DANY_TIME"),
    Check("division-looks-twice", "division", "-DANY_TIME -DSERVE_OLD_LANES"),
    Check("division.keep-views", "division", "-DKEEP_VIEWS -DNO_LOOK", ASSERT),
    Check("division.board-only", "division", "-DBOARD_ONLY", ASSERT),
    Check("division.no-look", "division", "-DANY_TIME -DSERVE_OLD_LANES -DNO_LOOK", ASSERT),
    # batches: from a DataLoader worker to the loop; views on both ends, a worker's death
    Check("batches", "batches", "-DKILLS=2"),
    Check("batches-views-kept", "batches", "-DBATCHES=4 -DKEEP=4 -DKILLS=1"),
    Check("batches-worker-keeps", "batches", "-DSLOTS=3 -DWORKER_KEEPS"),
    Check("batches.release-early", "batches", "-DKILLS=0 -DRELEASE_EARLY", ASSERT),
    Check("batches.no-generation", "batches", "-DNO_GENERATION", ASSERT),
    Check("batches.reclaim-early", "batches", "-DRECLAIM_EARLY", ASSERT),
    Check("batches.keep-ready", "batches", "-DBATCHES=4 -DKILLS=2 -DKEEP_READY", STUCK),
    Check("batches.reuse-under-view", "batches", "-DSLOTS=3 -DWORKER_KEEPS -DREUSE_UNDER_VIEW", ASSERT),
    Check("batches.no-copy", "batches", "-DKEEP=2 -DNO_COPY", STUCK),
    Check("batches.no-relook", "batches", "-DKILLS=0 -DNO_RELOOK", STUCK),
    Check("batches.late-bytes", "batches", "-DLATE_BYTES", ASSERT),
    # cells: one request for tickets of two lanes
    Check("cells", "cells", ""),
    Check("cells-two-kills", "cells", "-DKILLS=2 -DTICKETS=3"),
    Check("cells.give-back-one", "cells", "-DGIVE_BACK_ONE", ASSERT),
    Check("cells.one-lane", "cells", "-DONE_LANE", ASSERT),
    # growth: pages that are made when they are needed
    Check("growth", "growth", ""),
    Check("growth-no-memory", "growth", "-DNO_MEMORY -DKILLS=2"),
    Check("growth.small-after-restart", "growth", "-DSMALL_AFTER_RESTART", ASSERT),
    Check("growth.trim-blindly", "growth", "-DTRIM_BLINDLY", ASSERT),
    Check("growth.forget-pages", "growth", "-DFORGET_PAGES", ASSERT),
    Check("growth.no-reserve", "growth", "-DNO_MEMORY -DNO_RESERVE", STUCK),
    # posting: kept views, copies, blocks, quota
    Check("posting", "posting", "-DN=8"),
    Check("posting-quota", "posting", "-DSHRINK"),
    Check("posting-blocks-of-two", "posting", "-DW=8 -DN=9"),
    Check("posting-quota-large", "posting", "-DN=10 -DSHRINK", full=True),
    Check("posting.no-skip", "posting", "-DNO_SKIP", STUCK),
    Check("posting.no-copy", "posting", "-DNO_COPY", STUCK),
    Check("posting.blocks-only", "posting", "-DPOST_BLOCK=2 -DBLOCKS_ONLY", STUCK),
    Check("posting.quota-blocks", "posting", "-DSHRINK -DQUOTA_BLOCKS", STUCK),
    # trace: the ring of spans
    Check("trace", "trace", "-DSLOTS=2 -DRECORDS=3 -DKILLS=2"),
    Check("trace-one-slot", "trace", "-DSLOTS=1 -DWRITERS=3 -DRECORDS=1"),
    Check("trace-late", "trace", "-DLATE"),
    Check("trace.publish-first", "trace", "-DPUBLISH_FIRST", ASSERT),
    Check("trace.no-room-check", "trace", "-DKILLS=0 -DNO_ROOM_CHECK", ASSERT),
    Check("trace.free-first", "trace", "-DRECORDS=3 -DFREE_FIRST", ASSERT),
    Check("trace.no-pass-over", "trace", "-DNO_PASS_OVER", STUCK),
    Check("trace.no-skip", "trace", "-DNO_SKIP", STUCK),
    Check("trace.store", "trace", "-DLATE -DSTORE -DKILLS=0", STUCK),
    # barrier: two ranks, the least memory, one producer and two
    Check("barrier", "barrier", "-DKILLS=1"),
    Check("barrier-jobs", "barrier", "-DJOB=2 -DBLOCK=2 -DKILLS=1"),
    Check("barrier-batches", "barrier", "-DW=4 -DBATCH=2"),
    Check("barrier-liveness", "barrier", "-DN=3", liveness=True),
    Check("barrier-two-producers", "barrier", f"{TWO} -DN=2 -DKILLS=1"),
    Check("barrier-stopped-thief", "barrier", f"{TWO} -DN=2 -DSTOP"),
    Check("barrier-stopped-thief-long", "barrier", f"{TWO} -DN=3 -DSTOP -DFRESH_PLANS"),
    Check("barrier-two-large", "barrier", "-DPRODUCERS=2 -DSTOP -DFRESH_PLANS", full=True),
    Check("barrier-two-batches", "barrier", f"{TWO} -DW=4 -DBATCH=2 -DN=3 -DFRESH_PLANS -DKILLS=1", full=True),
    Check("barrier.no-reserve", "barrier", "-DNO_RESERVE", STUCK),
    Check("barrier.no-take-back", "barrier", "-DNO_TAKE_BACK", STUCK),
    Check("barrier.no-copy", "barrier", "-DNO_COPY", STUCK),
    Check("barrier.no-give-back", "barrier", "-DJOB=2 -DBLOCK=2 -DNO_GIVE_BACK", STUCK),
    Check("barrier.take-back-wanted", "barrier", "-DN=3 -DTAKE_BACK_WANTED", LIVELOCK, liveness=True),
    Check("barrier.clear-want-first", "barrier", "-DN=3 -DCLEAR_WANT_FIRST", LIVELOCK, liveness=True),
    Check("barrier.want-flag", "barrier", f"{TWO} -DN=3 -DSTOP -DFRESH_PLANS -DWANT_FLAG", ASSERT),
    # wakeup: futex, eventfd, asleep
    Check("wakeup", "wakeup", ""),
    Check("wakeup-window", "wakeup", "-DW=2"),
    Check("wakeup-break", "wakeup", "-DN=1 -DBREAK"),
    Check("wakeup-producer-dies", "wakeup", "-DN=1 -DKILLS=1 -DKILL_PRODUCER"),
    Check("wakeup-owner-dies", "wakeup", "-DN=1 -DKILLS=1 -DKILL_OWNER"),
    Check("wakeup-liveness", "wakeup", "-DN=1", liveness=True),
    Check("wakeup-window-break", "wakeup", "-DW=2 -DEXTENTS=2 -DBREAK", full=True),
    Check("wakeup-liveness-long", "wakeup", "", liveness=True, full=True),
    Check("wakeup.futex-flag", "wakeup", "-DFUTEX_FLAG", STUCK),
    Check("wakeup.one-bit-seq", "wakeup", "-DLANES=1 -DW=2 -DEXTENTS=2 -DONE_BIT_SEQ", STUCK),
    Check("wakeup.pub-clears-want", "wakeup", "-DPUB_CLEARS_WANT", LIVELOCK, liveness=True),
    Check("wakeup.no-relook", "wakeup", "-DNO_RELOOK", STUCK),
    Check("wakeup.seq-read-late", "wakeup", "-DSEQ_READ_LATE", STUCK),
    Check("wakeup.no-rescan", "wakeup", "-DNO_RESCAN", STUCK),
    Check("wakeup.no-wake-on-want", "wakeup", "-DW=2 -DNO_WAKE_ON_WANT", STUCK),
    Check("wakeup.no-wake-on-release", "wakeup", "-DNO_WAKE_ON_RELEASE", STUCK),
    Check("wakeup.no-wake-on-close", "wakeup", "-DN=1 -DBREAK -DNO_WAKE_ON_CLOSE", STUCK),
    Check(
        "wakeup.no-supervisor-wake", "wakeup", "-DLANES=1 -DN=1 -DKILLS=1 -DKILL_PRODUCER -DNO_SUPERVISOR_WAKE", STUCK
    ),
    Check("wakeup.no-wake-after-owner", "wakeup", "-DN=1 -DKILLS=1 -DKILL_OWNER -DNO_SUPERVISOR_WAKE", STUCK),
    # recovery: of a dead producer's words, and its successor's start
    Check("recovery", "recovery", ""),
    Check("recovery-closing", "recovery", "-DTICKETS=2 -DEARLY_CLOSE"),
    Check("recovery-three-times", "recovery", "-DTICKETS=2 -DRESTARTS=2"),
    Check("recovery-two-producers", "recovery", "-DPRODUCERS=2 -DEXTENTS=1 -DTICKETS=2 -DRESTARTS=0"),
    Check("recovery-torn-descriptor", "recovery", "-DPRODUCERS=2 -DHOME_BLOCKS -DRESTARTS=0", full=True),
    Check("recovery-two-deaths", "recovery", "-DTICKETS=2 -DKILLS=2 -DRESTARTS=0", full=True),
    Check("recovery.reclaim-early", "recovery", "-DRESTARTS=0 -DRECLAIM_EARLY", ASSERT),
    Check("recovery.start-early", "recovery", "-DRESTARTS=0 -DSTART_EARLY", ASSERT),
    Check("recovery.split-attempt", "recovery", "-DTICKETS=1 -DSPLIT_ATTEMPT", ASSERT),
    Check(
        "recovery.no-recovery-sweep", "recovery", "-DTICKETS=2 -DRESTARTS=0 -DEARLY_CLOSE -DNO_RECOVERY_SWEEP", STUCK
    ),
    Check("recovery.rebuild-ready-only", "recovery", "-DRESTARTS=0 -DREBUILD_READY_ONLY", ASSERT),
    Check(
        "recovery.rebuild-no-reread",
        "recovery",
        "-DPRODUCERS=2 -DHOME_BLOCKS -DRESTARTS=0 -DREBUILD_NO_REREAD",
        ASSERT,
        dfs=True,
    ),
    # ckpt_parts: checkpoints on their way out: the promise, aborts, deaths of either end and of the supervisor
    Check("ckpt_parts", "ckpt_parts", "-DKILL_WORKER -DKILL_TRAINER"),
    Check("ckpt_parts-two-kills", "ckpt_parts", "-DKILL_WORKER -DKILL_TRAINER -DKILLS=2"),
    Check("ckpt_parts-user-aborts", "ckpt_parts", "-DKILL_WORKER -DUSER_ABORTS"),
    Check("ckpt_parts-upload-fails", "ckpt_parts", "-DKILL_WORKER -DUPLOAD_FAILS"),
    Check("ckpt_parts-supervisor-dies", "ckpt_parts", "-DKILL_TRAINER -DSUPERVISOR_DIES"),
    Check("ckpt_parts-both-die", "ckpt_parts", "-DKILL_WORKER -DSUPERVISOR_DIES"),
    Check("ckpt_parts-fits-the-slots", "ckpt_parts", "-DNPARTS=2 -DKILL_WORKER -DSUPERVISOR_DIES"),
    Check("ckpt_parts-given-back", "ckpt_parts", "-DKILL_WORKER -DNEIGHBOUR"),
    Check("ckpt_parts.plain-seal", "ckpt_parts", "-DKILL_WORKER -DSUPERVISOR_DIES -DPLAIN_SEAL", ASSERT),
    Check("ckpt_parts.late-record", "ckpt_parts", "-DKILL_WORKER -DLATE_RECORD", ASSERT),
    Check("ckpt_parts.lost-held", "ckpt_parts", "-DKILL_WORKER -DLOST_HELD", ASSERT),
    Check("ckpt_parts.no-second-look", "ckpt_parts", "-DUPLOAD_FAILS -DNO_SECOND_LOOK", ASSERT),
    Check("ckpt_parts.late-complete-sent", "ckpt_parts", "-DKILL_WORKER -DLATE_COMPLETE_SENT", ASSERT),
    Check("ckpt_parts.early-seal", "ckpt_parts", "-DKILL_TRAINER -DEARLY_SEAL", ASSERT),
    Check("ckpt_parts.seal-unadopted", "ckpt_parts", "-DNPARTS=2 -DSUPERVISOR_DIES -DSEAL_UNADOPTED", ASSERT),
    Check("ckpt_parts.seal-in-two-steps", "ckpt_parts", "-DKILL_WORKER -DSUPERVISOR_DIES -DSEAL_IN_TWO_STEPS", ASSERT),
    Check("ckpt_parts.stale-adopted", "ckpt_parts", "-DKILL_WORKER -DSUPERVISOR_DIES -DSTALE_ADOPTED", STUCK),
    Check("ckpt_parts.give-open", "ckpt_parts", "-DNEIGHBOUR -DGIVE_OPEN", ASSERT),
    # poison: an object that kills whoever fetches it
    Check("poison", "poison", "-DTICKETS=4 -DFLIGHT=3 -DKILLS=5"),
    Check("poison-liveness", "poison", "", liveness=True),
    Check("poison.no-solo", "poison", "-DNO_SOLO", ASSERT),
    Check("poison.count-sigkill", "poison", "-DCOUNT_SIGKILL", ASSERT),
    Check("poison.no-poison", "poison", "-DNO_POISON", LIVELOCK, liveness=True),
]


@dataclasses.dataclass
class Result:
    ok: bool
    verdict: str  # what the search found, in words
    states: int = 0
    steps: int = 0  # of the counterexample
    seconds: float = 0.0


def build(check: Check, folder: pathlib.Path) -> None:
    """Make folder/pan, the search program of one check."""
    spin = ["spin", "-a", *check.flags.split(), str(HERE / f"{check.model}.pml")]
    done = subprocess.run(spin, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "rror" in done.stdout:
        raise RuntimeError(f"spin: {done.stdout.strip()} {done.stderr.strip()}")
    # A mutant's search is short: compiling it with -O2 would take longer than it saves.
    options = ["-O0" if check.error else "-O2", "-w", "-DCOLLAPSE", "-DMEMLIM=8000"]
    if check.liveness:
        options += ["-DNP"]
    else:
        options += ["-DSAFETY"]
        if check.error and not check.dfs:
            options += ["-DBFS"]  # finds a shortest counterexample
    gcc = ["gcc", *options, "-o", "pan", "pan.c"]
    done = subprocess.run(gcc, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gcc: {done.stderr.strip()}")


def search(check: Check, folder: pathlib.Path, limit_s: float) -> Result:
    """Run folder/pan and judge what it says."""
    options = [f"-m{check.depth}"] + (["-l", "-f"] if check.liveness else [])
    try:
        out = subprocess.run(
            ["./pan", *options], cwd=folder, capture_output=True, text=True, check=False, timeout=limit_s
        ).stdout
    except subprocess.TimeoutExpired:
        return Result(False, f"not done after {limit_s:.0f} s")
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"^\s*([\d.e+]+) states, stored", out, re.MULTILINE)
    if not errors or not states:
        return Result(False, f"pan did not report: {out[-300:].strip()}")
    found = re.search(r"pan:\d+: (.*) \(at depth (\d+)\)", out)
    result = Result(False, "", states=int(float(states.group(1))))
    if found:
        result.verdict, result.steps = found.group(1).strip(), int(found.group(2))
    if check.error:
        result.ok = bool(found) and check.error in result.verdict
        if not found:
            result.verdict = "MUTANT NOT CAUGHT"
        elif not result.ok:
            result.verdict = f"expected '{check.error}', found '{result.verdict}'"
    elif found or errors.group(1) != "0":
        result.verdict = f"ERROR: {result.verdict}"
    elif re.search(r"depth too small|out of memory|Search not completed|memory limit|truncated", out):
        result.verdict = "INCOMPLETE: raise depth or memory"
    else:
        result.ok, result.verdict = True, "0 errors"
    return result


def trace(check: Check, folder: pathlib.Path) -> str:
    """The counterexample that search() left in folder, one line a step."""
    trail = folder / f"{check.model}.pml.trail"
    if not trail.exists():
        return "no counterexample"
    source = (HERE / f"{check.model}.pml").read_text()
    if "c_code" in source:  # only pan itself can replay these
        command = ["./pan", "-r", str(trail)]
    else:
        command = ["spin", "-t", "-p", "-g", "-k", str(trail), *check.flags.split(), str(HERE / f"{check.model}.pml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def run(check: Check, limit_s: float, show_trace: bool = False) -> Result:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mr-model-") as name:
        folder = pathlib.Path(name)
        try:
            build(check, folder)
            result = search(check, folder, limit_s)
        except RuntimeError as error:
            result = Result(False, str(error))
        if show_trace:
            print(trace(check, folder))
    result.seconds = time.monotonic() - started
    return result


def line(check: Check, result: Result) -> str:
    steps = f"{result.steps} steps" if check.error and result.steps else ""
    verdict = re.sub(r"assertion violated.*", "assertion violated", result.verdict) if result.ok else result.verdict
    return (
        f"{'ok  ' if result.ok else 'FAIL'} {check.name:<34} {result.states:>11,} states {result.seconds:>6.1f} s  "
        f"{verdict}{', ' if steps else ''}{steps}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="the first check of each model alone")
    parser.add_argument("--quick", action="store_true", help="leave out the large sizes")
    parser.add_argument("--only", metavar="WORD", default="", help="only checks whose name contains WORD")
    parser.add_argument("--trace", metavar="NAME", help="run one check and print its counterexample")
    parser.add_argument("--list", action="store_true", help="print the checks and run none")
    parser.add_argument("--limit-s", type=float, default=900.0, help="bound of one search (default %(default)s)")
    arguments = parser.parse_args()

    if arguments.trace:
        checks = [check for check in CHECKS if check.name == arguments.trace]
    else:
        checks = [c for c in CHECKS if arguments.only in c.name and not (arguments.quick and c.full)]
    if arguments.first:
        checks = list({check.model: check for check in reversed(checks)}.values())[::-1]
    if not checks:
        parser.error("no such check; --list names them")
    if arguments.list:
        for check in checks:
            print(f"{check.name:<34} {'mutant' if check.error else 'correct':<8} {check.model}.pml {check.flags}")
        return 0
    for tool in TOOLS:
        if not shutil.which(tool):
            print(f"{tool} is not installed: apt-get install {tool}", file=sys.stderr)
            return 2

    failed = 0
    started = time.monotonic()
    for check in checks:
        result = run(check, arguments.limit_s, show_trace=bool(arguments.trace))
        failed += not result.ok
        print(line(check, result), flush=True)
    mutants = sum(1 for check in checks if check.error)
    print(
        f"{len(checks) - mutants} correct models, {mutants} mutants, {failed} failed, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
