"""Every tracked path is below one that the README's table "The tree" names, and every path that it names is there.
Every C module has a test that is found by its path, as tests/README.md says ("Where a test is"). Every source file is
named by the README of its folder, or of the nearest one above that has one.

python scripts/check_tree.py        (a part of `make check`)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def named(readme: str) -> set[str]:
    """The paths in the first column of the table, without the slash that ends a folder's."""
    section = re.search(r"^## The tree$(.*?)(?=^## |\Z)", readme, re.M | re.S)
    if section is None:
        return set()
    cells = re.findall(r"^\|([^|\n]*)\|", section[1], re.M)
    return {path.rstrip("/") for cell in cells for path in re.findall(r"`([^`]+)`", cell)}


def problems(readme: str, tracked: list[str]) -> list[str]:
    names = named(readme)
    parents = {str(part) for path in tracked for part in [Path(path), *Path(path).parents]}
    strays = sorted(path for path in tracked if not names & {path, *map(str, Path(path).parents)})
    return [f"{path}: not in the README's table of the tree" for path in strays] + [
        f"{name}: in the README's table of the tree, and git has no such path" for name in sorted(names - parents)
    ]


def tables(readme: str) -> list[dict[str, str]]:
    """The tables of the section "Where a test is": path -> path, of rooms and of modules."""
    section = readme.split("## Where a test is")[1].split("\n## ")[0]
    return [dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)`", part, re.M)) for part in section.split("|---|---|")[1:]]


def test_of(module: Path, tracked: set[str]) -> str | None:
    """The unit test of a C module: that of its name, or of the first of its words."""
    words = module.stem.split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    paths = [f"tests/unit/{module.parent}/test_{name}.c" for name in names]
    return next((path for path in paths if path in tracked), None)


def untested(readme: str, tracked: list[str]) -> list[str]:
    known = set(tracked)
    rooms, elsewhere = tables(readme)
    found = []
    for path in tracked:
        if not path.endswith(".c") or path.startswith(("tests/", "bench/")):
            continue
        by_room = any(path.startswith(room) for room in rooms)
        if path in elsewhere and test_of(Path(path), known):
            found.append(f"{path}: its test is found by its path, and tests/README.md has a row of it")
        elif not (path in elsewhere or by_room or test_of(Path(path), known)):
            found.append(f"{path}: no test is found by its path, and tests/README.md names none")
    names = {**rooms, **elsewhere}
    missing = [name for pair in names.items() for name in pair if not any(path.startswith(name) for path in tracked)]
    return found + [f"{name}: in tests/README.md, and git has no such path" for name in missing]


def is_named(path: str, readme: str) -> bool:
    """By its name, by its stem with any suffix ("`ring.{c,h}`"), or by a pattern ("`readers/*_reader.py`")."""
    file = Path(path)
    if re.search(rf"\b{re.escape(file.stem)}[.`]", readme):
        return True
    patterns = re.findall(r"`([^`\s]*\*[^`\s]*)`", readme)
    return any(file.match(pattern) for pattern in patterns)


def unnamed(tracked: list[str], readmes: dict[Path, str]) -> list[str]:
    """readmes: of each folder that has one, its text. Of tests, folders with a README of their own alone."""
    found = []
    for path in tracked:
        file = Path(path)
        if file.suffix not in (".c", ".h", ".cpp", ".py", ".pyi") or file.name == "__init__.py":
            continue
        nearest = next(folder for folder in file.parents if folder in readmes)
        if nearest == Path() or (nearest.parts[0] == "tests" and nearest != file.parent):
            continue
        if not is_named(path, readmes[nearest]):
            found.append(f"{path}: {nearest}/README.md does not name it")
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = [path for path in listed.split("\0") if path and (ROOT / path).exists()]
    found = problems((ROOT / "README.md").read_text(), tracked)
    found += untested((ROOT / "tests" / "README.md").read_text(), tracked)
    readmes = {Path(path).parent: (ROOT / path).read_text() for path in tracked if Path(path).name == "README.md"}
    found += unnamed(tracked, readmes)
    print("\n".join(found) or f"{len(tracked)} paths, each in the README that is nearest; each module has a test")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
