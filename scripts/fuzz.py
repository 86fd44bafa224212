#!/usr/bin/env python3
"""`make fuzz`: every fuzz target with libFuzzer for some seconds, then the coverage of the files that it is for.

    scripts/fuzz.py [--seconds 60] [--uncovered] [TARGET...]    all targets unless told

The programs are built by clang with AddressSanitizer and UndefinedBehaviorSanitizer (the preset `fuzz`). What they find
interesting is kept in build/fuzz/corpus/ for the next run; an input that fails goes to build/fuzz/found/, and the exit
status is 1. --seconds 0 only measures what is kept. --uncovered names the lines that nothing has reached.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
FIXED_ROUNDS = 3000  # of the driver's damaged seeds, which the coverage counts too
HANG_S = 25  # one input, under sanitizers and beside other work


@dataclass
class File:
    """What was reached of one source file."""

    lines: int
    uncovered: list[int] = field(default_factory=list)

    @property
    def covered(self) -> int:
        return self.lines - len(self.uncovered)

    @property
    def percent(self) -> float:
        return 100 * self.covered / max(self.lines, 1)


def build() -> dict[str, list[str]]:
    """Target -> the files that it is for."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name, command in (
        ("configure", ["cmake", "--preset", "fuzz"]),
        ("build", ["cmake", "--build", str(BUILD), "--target", "fuzzers"]),
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"fuzz: cannot {name}:\n{done.stdout}{done.stderr}")
    lines = (BUILD / "tests" / "fuzz_targets.txt").read_text().splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines)}


def run(name: str, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = BUILD / "tests" / f"libfuzzer_{name}"
    environment = dict(os.environ, LLVM_PROFILE_FILE=str(profile), UBSAN_OPTIONS="print_stacktrace=1")
    return subprocess.run(
        [program, f"-timeout={HANG_S}", "-rss_limit_mb=4096", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=BUILD,
    )


def fuzz(name: str, seconds: int) -> tuple[int, bool]:
    """Executions, and whether it went well."""
    corpus = BUILD / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    found = BUILD / "found"
    found.mkdir(exist_ok=True)
    subprocess.run([BUILD / "tests" / f"fuzz_{name}", "--seeds", corpus], check=True, env=no_profile())
    if seconds == 0:
        return 0, True
    done = run(
        name,
        Path(os.devnull),
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        f"-artifact_prefix={found}/{name}-",
        str(corpus),
    )
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    if done.returncode != 0:
        print(f"\n{name}: failed\n{done.stderr[-6000:]}", flush=True)
    return int(executed.group(1)) if executed else 0, done.returncode == 0


def no_profile() -> dict[str, str]:
    return dict(os.environ, LLVM_PROFILE_FILE=os.devnull)


def tool(name: str) -> str:
    """llvm-cov of the same version as clang, which the profile's format depends on."""
    version = subprocess.run(["clang", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    own = f"/usr/lib/llvm-{version.split('.')[0]}/bin/{name}"
    return own if os.access(own, os.X_OK) else name


def coverage(name: str, files: list[str]) -> dict[str, File]:
    data = BUILD / f"{name}.profdata"
    done = run(name, BUILD / f"{name}-corpus.profraw", "-runs=0", str(BUILD / "corpus" / name))
    if done.returncode != 0:
        raise SystemExit(f"fuzz: {name} fails over its corpus:\n{done.stderr[-4000:]}")
    environment = dict(os.environ, LLVM_PROFILE_FILE=str(BUILD / f"{name}-%m.profraw"))  # of both processes
    subprocess.run([BUILD / "tests" / f"fuzz_{name}", str(FIXED_ROUNDS)], check=True, env=environment)
    raws = list(BUILD.glob(f"{name}-*.profraw"))
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", *raws, "-o", data], check=True)
    for raw in raws:
        raw.unlink()
    lcov = subprocess.run(
        [
            tool("llvm-cov"),
            "export",
            "-format=lcov",
            f"-instr-profile={data}",
            BUILD / "tests" / f"libfuzzer_{name}",
            "-object",
            BUILD / "tests" / f"fuzz_{name}",
            *(ROOT / file for file in files),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    result: dict[str, File] = {}
    for record in lcov.split("end_of_record"):
        source = re.search(r"^SF:(.+)$", record, re.M)
        if not source:
            continue
        lines = re.findall(r"^DA:(\d+),(\d+)", record, re.M)
        uncovered = [int(line) for line, count in lines if count == "0"]
        result[str(Path(source.group(1)).relative_to(ROOT))] = File(len(lines), uncovered)
    return result


def ranges(lines: list[int]) -> str:
    parts: list[list[int]] = []
    for line in lines:
        if parts and parts[-1][1] == line - 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--uncovered", action="store_true")
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    targets = build()
    unknown = set(options.targets) - set(targets)
    if unknown:
        raise SystemExit(f"fuzz: no target {', '.join(sorted(unknown))}; there are {', '.join(targets)}")
    print("| target | executions | file | lines | reached |\n|---|---:|---|---:|---:|", flush=True)
    failed = []
    for name, files in targets.items():
        if options.targets and name not in options.targets:
            continue
        executed, well = fuzz(name, options.seconds)
        if not well:
            failed.append(name)
        for path, file in coverage(name, files).items():
            print(f"| {name} | {executed:,} | {path} | {file.lines} | {file.percent:.1f} % |", flush=True)
            if options.uncovered and file.uncovered:
                print(f"  {path}: {ranges(file.uncovered)}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in build/fuzz/found/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
