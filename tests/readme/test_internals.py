"""docs/internals.md: each function of its tables is defined in the file that is named beside it."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "internals.md"
ROW = re.compile(r"^\| `([^`]+\.(?:c|py))` \| ([^|]+) \|", re.M)


def is_defined(name: str, file: str, text: str) -> bool:
    if file.endswith(".py"):
        return all(re.search(rf"^\s*(def|class) {part}\b", text, re.M) for part in name.split("."))
    return re.search(rf"^\w.*\b{name}\(", text, re.M) is not None


def test_functions_are_where_the_page_says() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 50
    wrong = []
    for file, functions in rows:
        path = ROOT / file
        text = path.read_text() if path.is_file() else ""
        wrong += [
            f"{name} in {file}" for name in re.findall(r"`([^`]+)`", functions) if not is_defined(name, file, text)
        ]
    assert not wrong, wrong
