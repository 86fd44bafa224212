"""Every tracked path is below one that the README's table "The tree" names, and every path that it names is there.

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


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = [path for path in listed.split("\0") if path and (ROOT / path).exists()]
    found = problems((ROOT / "README.md").read_text(), tracked)
    print("\n".join(found) or f"{len(tracked)} paths, all of them below those of the README's table")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
