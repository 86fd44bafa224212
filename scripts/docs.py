"""`make docs`: the pages of docs/ and the READMEs as a site with search and the Python API, in out/docs/html.

    scripts/docs                  makes an environment with docs/site/requirements.txt, and runs this in it

The pages are copied as they are, with the files that they link, so that links hold; a link to a folder becomes one
to its README. mkdocs runs with --strict: a link that leads nowhere is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "docs"
SITE = ROOT / "docs" / "site"
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.M | re.S)


def github_slugs() -> Callable[[str, str], str]:
    """Anchors of headings as GitHub makes them, which the pages link."""

    def slug(text: str, separator: str) -> str:
        return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)

    return slug


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def with_readmes(text: str, folder: Path) -> str:
    """Links to folders lead to their READMEs; what stands in code is left as it is."""

    def link(found: re.Match[str]) -> str:
        target = folder / found[2]
        readme = target / "README.md"
        if target.is_dir():
            return f"{found[1]}{found[2].rstrip('/')}/README.md{found[3] or ''})" if readme.is_file() else found[0]
        return found[0]

    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(CODE.split(text)))


def linked(text: str, folder: Path) -> set[Path]:
    """Files that a page links, below the root."""
    targets = {(folder / found[2]).resolve() for found in LINK.finditer(text)}
    return {target for target in targets if target.is_file() and target.is_relative_to(ROOT)}


def stage(pages: Path) -> None:
    shutil.rmtree(pages, ignore_errors=True)
    files: set[Path] = set()
    for name in tracked():
        page = ROOT / name
        if page.suffix != ".md":
            continue
        text = page.read_text()
        files |= {file for file in linked(text, page.parent) if file.suffix != ".md"}
        copy = pages / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(with_readmes(text, page.parent))
    for file in files:
        copy = pages / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def main() -> int:
    stage(OUT / "pages")
    shutil.copyfile(SITE / "wide.css", OUT / "pages" / "docs" / "site" / "wide.css")
    shutil.copyfile(SITE / "mkdocs.yml", OUT / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(OUT / "mkdocs.yml")]
    env = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PYTHONPATH": str(ROOT),
    }  # mkdocs.yml names a function of this file
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    (OUT / "html" / "404.html").unlink()  # a server's, by absolute paths
    print(f"docs: {OUT / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
