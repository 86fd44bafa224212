"""clang-tidy over every C file that differs from what has passed: its own text, a header it includes, a flag, a check.

    python3 scripts/tidy.py BUILD [--deep]      BUILD: a folder of Ninja's with compile_commands.json, built

What passed is kept in BUILD/tidy/passed.json, so a new clone checks every file. One process a core; the exit status is
1 when a file has a finding. The analyzer follows so many steps of each function that most are followed to their end;
with --deep (`make nightly`) ten times as many, which takes ten times as long.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Steps of the analyzer a function; its own default is 225,000.
SHALLOW = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")]


def entries(build: Path) -> dict[str, dict[str, str]]:
    """The way each C file of the tree is compiled; of the kill harness's mutants, a dozen of lane.c, one."""
    found: dict[str, dict[str, str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        if file.suffix != ".c" or not file.is_relative_to(ROOT) or file.is_relative_to(build):
            continue
        name = str(file.relative_to(ROOT))
        if name not in found or "-DMR_MUTANT=" not in entry["command"]:
            found[name] = entry
    return found


def headers(build: Path) -> dict[str, list[Path]]:
    """The files of the tree that each object file was made of, as Ninja recorded them."""
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[Path]] = {}
    for block in said.split("\n\n"):
        output, *lines = block.splitlines() or [""]
        files = [Path(os.path.realpath(build / line.strip())) for line in lines]
        found[output.split(":")[0]] = sorted({file for file in files if file.is_relative_to(ROOT)})
    return found


def digest(entry: dict[str, str], files: list[Path], version: str) -> str:
    text = hashlib.sha256((version + entry["command"]).encode())
    for file in [Path(entry["file"]), ROOT / ".clang-tidy", *files]:
        text.update(file.read_bytes() if file.exists() else b"gone")
    return text.hexdigest()


def check(folder: Path, options: list[str], file: str) -> str:
    """What clang-tidy finds, or nothing."""
    command = ["clang-tidy", "-p", str(folder), "--quiet", *options, file]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return "" if done.returncode == 0 else done.stdout or done.stderr


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--deep"]):
        print("usage: python3 scripts/tidy.py BUILD [--deep]", file=sys.stderr)
        return 2
    build = Path(sys.argv[1]).resolve()
    options = [] if sys.argv[2:] else SHALLOW
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    compiled, included = entries(build), headers(build)
    (folder / "compile_commands.json").write_text(json.dumps(list(compiled.values())))
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    digests = {}
    for name, entry in compiled.items():
        output = re.search(r" -o (\S+)", entry["command"])
        digests[name] = digest(entry, included.get(output.group(1) if output else "", []), version + str(options))
    kept = folder / "passed.json"
    passed = json.loads(kept.read_text()) if kept.exists() else {}
    todo = [name for name in sorted(compiled) if passed.get(name) != digests[name]]
    failed = 0
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for name, found in zip(todo, pool.map(lambda name: check(folder, options, name), todo)):
                if found:
                    failed += 1
                    print(found, end="" if found.endswith("\n") else "\n")
                else:
                    passed[name] = digests[name]
    finally:
        kept.write_text(json.dumps({name: passed[name] for name in compiled if name in passed}))
    print(f"{len(compiled)} files, {len(compiled) - len(todo)} as they passed before, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
