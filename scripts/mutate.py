#!/usr/bin/env python3
"""Mutates a module, a place at a time, and runs its tests over each mutant: what no test notices is listed.

    scripts/mutate.py [--sample 100] [--seed 1] [MODULE...]    the modules below unless told

The mutants are universalmutator's (https://github.com/agroce/universalmutator), installed into a folder outside of the
tree. They are kept in build/mutants/ until the module changes, since making them takes minutes. A mutant that does not
compile, or that compiles to the same code, is not counted. --sample 0 tries all of them.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import marshal
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "build" / "release"
WANTED = "universalmutator==1.14.1"
LIMIT_S = 120  # a mutant that runs longer is killed, in both meanings

# Module -> the C tests of build/release/tests, or the pytest files.
MODULES = {
    "shm/base/size.c": ["test_size"],
    "shm/index/plan.c": ["test_plan"],
    "python/millrace/_progress.py": ["tests/python/test_progress.py"],
}


def mutator() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "millrace" / WANTED.replace("==", "-")
    program = home / "bin" / "mutate"
    if not program.exists():
        print(f"mutate: installing {WANTED} into {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WANTED]
        subprocess.run(pip, check=True)
    return program


def mutants(module: str) -> list[Path]:
    """In the order of their numbers."""
    source = ROOT / module
    folder = ROOT / "build" / "mutants" / f"{source.name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        print(f"mutate: making the mutants of {module} (minutes)", file=sys.stderr)
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        command = [str(mutator()), str(source), "--noCheck", "--mutantDir", str(making)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=making)
        making.rename(folder)
    return sorted(folder.glob(f"*.mutant.*{source.suffix}"), key=lambda path: int(path.name.split(".")[-2]))


def succeeds(command: list[str] | str, folder: Path, **more: str) -> bool:
    try:
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=folder,
            env=dict(os.environ, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def last_command(target: str) -> str:
    out = subprocess.run(
        ["ninja", "-C", RELEASE, "-t", "commands", target], capture_output=True, text=True, check=True
    ).stdout
    return out.splitlines()[-1]


class CModule:
    """Compiles one file, and links it before the library that has the original."""

    def __init__(self, module: str, tests: list[str], work: Path) -> None:
        self.work = work
        folder, name = Path(module).parent, Path(module).name
        library = "mr_" + folder.name
        target = f"{folder}/CMakeFiles/{library}.dir/{name}.o"
        words = shlex.split(last_command(target))
        words[words.index("-o") + 1] = str(work / "mutant.o")
        words[words.index("-c") + 1] = str(work / name)
        words[words.index("-MF") + 1] = str(work / "mutant.d")
        self.compile, self.source = [*words, "-w", f"-I{ROOT / folder}"], work / name
        self.links = {
            test: last_command(f"tests/{test}").replace(
                f" -o tests/{test} ", f" -o {work / test} {work / 'mutant.o'} ", 1
            )
            for test in tests
        }
        self.original = ROOT / module
        self.same = self.build(self.original)

    def build(self, mutant: Path) -> bytes | None:
        shutil.copy(mutant, self.source)
        if not succeeds(self.compile, RELEASE):
            return None
        return (self.work / "mutant.o").read_bytes()

    def survives(self, mutant: Path) -> bool | None:
        """None: it is no mutant."""
        code = self.build(mutant)
        if mutant != self.original and (code is None or code == self.same):
            return None
        return all(
            succeeds(link, RELEASE) and succeeds([str(self.work / test)], self.work)
            for test, link in self.links.items()
        )


class PythonModule:
    """A package of links to the built one, but for one file."""

    def __init__(self, module: str, tests: list[str], work: Path) -> None:
        self.original, self.work, self.tests = ROOT / module, work, tests
        built, package = RELEASE / "python" / "millrace", work / "python" / "millrace"
        package.mkdir(parents=True)
        (work / "bin").symlink_to(RELEASE / "bin")
        for path in built.iterdir():
            if path.name not in (Path(module).name, "__pycache__"):
                (package / path.name).symlink_to(path.resolve())
        self.source = package / Path(module).name
        self.same = self.code(self.original)

    def code(self, mutant: Path) -> bytes | None:
        """Without docstrings."""
        try:
            return marshal.dumps(compile(mutant.read_text(), "module", "exec", optimize=2))
        except (SyntaxError, ValueError):
            return None

    def survives(self, mutant: Path) -> bool | None:
        code = self.code(mutant)
        if mutant != self.original and (code is None or code == self.same):
            return None
        shutil.copy(mutant, self.source)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *self.tests]
        return succeeds(command, ROOT, MILLRACE_BUILD=str(self.work), PYTHONDONTWRITEBYTECODE="1")


def changed(module: str, mutant: Path) -> str:
    before, after = (ROOT / module).read_text().splitlines(), mutant.read_text().splitlines()
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    place = lines[0].split()[1].lstrip("-").split(",")[0]
    return f"{module}:{place}: " + " | ".join(line[0] + " " + line[1:].strip() for line in lines[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    for module in options.modules or MODULES:
        if module not in MODULES:
            raise SystemExit(f"mutate: {module} is not in the table; there are {', '.join(MODULES)}")
        every = mutants(module)
        chosen = every
        if options.sample and options.sample < len(every):
            chosen = sorted(random.Random(options.seed).sample(every, options.sample), key=every.index)
        killed, survivors = 0, []
        with tempfile.TemporaryDirectory() as work:
            kind = CModule if module.endswith(".c") else PythonModule
            tested = kind(module, MODULES[module], Path(work))
            if tested.survives(ROOT / module) is False:
                raise SystemExit(f"mutate: {module} does not pass its tests as it is")
            for mutant in chosen:
                survives = tested.survives(mutant)
                killed += survives is False
                if survives:
                    survivors.append(mutant)
        tried = killed + len(survivors)
        print(f"{module}: {killed} of {tried} mutants killed ({len(chosen)} drawn of {len(every)})", flush=True)
        for mutant in survivors:
            print(f"  {changed(module, mutant)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
