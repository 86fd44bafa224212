"""Runs the code of a page, block by block, in one namespace: python blocks.py FILE.md|FILE.ipynb WORDS...

WORDS are NAME=VALUE, for placeholders that the page has in its text (<NAME>, YOUR_NAME) and for names that it leaves to
its reader. After each block stands how it ended. A block that fails does not keep the next ones from running: the page
may leave out a name on purpose, and then it fails the same with the reference.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any


def blocks(path: Path) -> list[str]:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    found = re.findall(r"^( *)``` *python\n(.*?)^ *```", path.read_text(), re.M | re.S)
    return [textwrap.dedent(body) for _, body in found]


def display(value: Any) -> None:
    """A notebook shows a picture; here stands of which size."""
    print(getattr(value, "size", value) if not isinstance(value, (str, bytes)) else value)


def main() -> None:
    replaced = dict(word.split("=", 1) for word in sys.argv[2:])
    namespace: dict[str, Any] = {"__name__": "__main__", "display": display}
    placeholders = {name for name in replaced if name.startswith("YOUR_") or not name.isidentifier()}
    namespace.update({name: value for name, value in replaced.items() if name not in placeholders})
    for number, text in enumerate(blocks(Path(sys.argv[1]))):
        if text.lstrip().startswith("!"):
            continue  # a shell's line: pip install
        for name in placeholders:
            text = text.replace(name, replaced[name])
        try:
            exec(compile(text, f"block {number}", "exec"), namespace)
            print(f"-- block {number}: ran")
        except Exception as error:
            print(f"-- block {number}: raises {type(error).__name__}")
            print(f"block {number}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
