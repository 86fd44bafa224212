"""Fails on a call between modules of supervisor/ that goes against their order, lowest first, in supervisor/README.md,
and on files of a folder that call each other in a circle.

    python3 scripts/check_order.py

A module is NAME.c (or .cpp) with NAME.h; it may call functions of the rows before its own, never of those after it. A
callback that a higher module has registered is no call: it records, and mr_supervisor_settle goes on from there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HEADING = "## The order of the modules"
# Comments, strings, and characters, one of which may be a quote.
OTHER = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)


def order(readme: Path) -> list[str]:
    """The module names of the table under HEADING, in its order."""
    text = readme.read_text()
    if HEADING not in text:
        raise SystemExit(f"{readme}: there is no section '{HEADING}'")
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `(\w+)\.c(?:pp)?`", section, re.MULTILINE)


def code(path: Path) -> str:
    """Without comments and strings, which may name functions."""
    return OTHER.sub(lambda m: "\n" * m.group().count("\n") or "0", path.read_text())


def declared(header: Path) -> set[str]:
    return set(re.findall(r"\b(mr_\w+)\(", code(header))) if header.exists() else set()


def check(folder: Path) -> list[str]:
    names = order(folder / "README.md")
    rank = {name: i for i, name in enumerate(names)}
    sources = {path.stem: path for path in sorted(folder.glob("*.c*")) if path.suffix in (".c", ".cpp")}
    problems = [f"{folder}/README.md: {name} has no row in the order" for name in sources if name not in rank]
    problems += [f"{folder}/README.md: {name} has a row and no source" for name in names if name not in sources]
    home = {function: name for name in names for function in declared(folder / f"{name}.h")}
    for name, path in sources.items():
        for number, line in enumerate(code(path).split("\n"), 1):
            for function in re.findall(r"\b(mr_\w+)\b", line):
                other = home.get(function)
                if other and rank[other] > rank.get(name, len(names)):
                    problems.append(f"{path}:{number}: {name} uses {function} of {other}, which comes after it")
    return problems


def defined(text: str) -> set[str]:
    """What a C file defines for other files: functions and objects that are not static."""
    begins = r"^(?!static|typedef|extern|return|else)[A-Za-z_][\w \*]*?\b"
    functions = re.findall(begins + r"(\w+)\((?=[^;]*?\n?\{)", text, re.M)
    objects = re.findall(begins + r"(\w+)(?:\[\w*\])? = ", text, re.M)
    return {*functions, *objects}


def calls(folder: Path) -> dict[str, set[str]]:
    """Of each C file of the folder: the others whose functions and objects it uses."""
    texts = {path.name: code(path) for path in sorted(folder.glob("*.c"))}
    home = {name: file for file, text in texts.items() for name in defined(text)}
    own = {file: set(re.findall(r"^static [^;({=]*?\b(\w+)\(", text, re.M)) for file, text in texts.items()}
    words = {file: set(re.findall(r"\b\w+\b", text)) - own[file] for file, text in texts.items()}
    return {file: {home[word] for word in used if word in home} - {file} for file, used in words.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Files that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            file = ahead.pop()
            if file not in seen:
                seen.add(file)
                ahead += graph[file]
        return seen

    reach = {file: reached(file) for file in graph}
    found = {tuple(sorted(other for other in graph if file in reach[other] and other in reach[file])) for file in graph}
    return sorted([*circle] for circle in found if circle)


def main() -> int:
    problems = check(Path("supervisor"))
    folders = sorted({path.parent for path in Path().glob("[a-z]*/**/*.c")} - {Path("supervisor")})
    for folder in folders:
        if folder.parts[0] not in ("build", "tests", "bench", "out"):
            problems += [f"{folder}: a circle of {', '.join(circle)}" for circle in circles(calls(folder))]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
