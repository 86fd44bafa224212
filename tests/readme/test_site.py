"""The site of the pages (`make docs`): each page has its place, and links are those of the pages."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import docs
from tests.conftest import ROOT


def test_each_page_has_its_place() -> None:
    text = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    placed = re.findall(r": (\S+\.md)$", text.split("\nnav:\n")[1], re.M)
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(placed) == set()
    assert [page for page in placed if not (ROOT / page).is_file()] == []
    assert len(placed) == len(set(placed))


def test_names_of_the_api_are_there() -> None:
    named = re.findall(r"^::: millrace\.(\S+)$", (ROOT / "docs" / "site" / "reference.md").read_text(), re.M)
    assert len(named) > 20
    for name in named:
        module, _, last = name.rpartition(".")
        whole = ROOT / "python" / "millrace" / f"{name.replace('.', '/')}.py"
        file = ROOT / "python" / "millrace" / f"{module.replace('.', '/')}.py"
        stub = file.with_suffix(".pyi")
        source = file if file.is_file() else stub
        assert whole.is_file() or re.search(rf"^(class|def) {last}\b", source.read_text(), re.M), name


def test_links_to_folders_lead_to_their_readmes() -> None:
    text = (
        "[a](../shm/ring/) [b](../shm/ring/lane.h) `[c](../shm/)` [d](x.md#y) [e](../shm#f)\n```\n[g](../shm/)\n```\n"
    )
    expected = text.replace("(../shm/ring/)", "(../shm/ring/README.md)").replace("(../shm#f)", "(../shm/README.md#f)")
    assert docs.with_readmes(text, ROOT / "docs") == expected
    assert docs.linked("[b](../shm/ring/lane.h) [h](https://x/y.md) [i](../../etc)", ROOT / "docs") == {
        ROOT / "shm" / "ring" / "lane.h"
    }


def test_pages_are_copied_with_what_they_link(tmp_path: Path) -> None:
    docs.stage(tmp_path)
    assert (tmp_path / "docs" / "trace.png").is_file()
    assert (tmp_path / "README.md").read_text() != ""
    slug = docs.github_slugs()
    assert slug("`millrace.open`: files & streams", "-") == "millraceopen-files--streams"
