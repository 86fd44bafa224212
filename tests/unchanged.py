"""Tests that the tree alone decides and that take many seconds of CPU: pytest's marker `costly`.

With --skip-unchanged (scripts/test gives it) such a test is skipped while everything is as it was when it passed: every
file of the tree, the programs and modules that were built, the installed packages, the kernel. A stamp for each lies in
the build folder, so that a new clone runs all; tests/unchanged.sh does the same for checks of ctest.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build" / "release"))


def _inputs() -> Iterator[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    yield from (ROOT / os.fsdecode(name) for name in sorted(set(names.split(b"\0"))) if name)
    for folder in ("bin", "python", "lib"):
        yield from sorted(path for path in (BUILD / folder).rglob("*") if path.suffix != ".pyc")


@functools.lru_cache(maxsize=1)
def digest() -> str:
    """Of all that decides whether a costly test passes."""
    text = hashlib.sha256(f"{sys.version} {platform.platform()}".encode())
    text.update("\n".join(sorted(p.name for p in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))).encode())
    for path in _inputs():
        text.update(os.fsencode(path) + b"\0")
        if path.is_file():
            text.update(hashlib.sha256(path.read_bytes()).digest())
    return text.hexdigest()


def _stamp(item: pytest.Item) -> Path:
    return BUILD / "tests" / "costly" / (hashlib.sha256(item.nodeid.encode()).hexdigest()[:32] + ".passed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("skip_unchanged") and item.get_closest_marker("costly"):
        stamp = _stamp(item)
        if stamp.exists() and stamp.read_text() == digest():
            passed = time.strftime("%F %T", time.localtime(stamp.stat().st_mtime))
            pytest.skip(f"unchanged since it passed on {passed}")


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """The stamp goes when it begins, and comes back when it has passed."""
    if not item.get_closest_marker("costly"):
        return
    stamp = _stamp(item)
    if call.when == "setup" and not call.excinfo:
        stamp.unlink(missing_ok=True)
    if call.when == "call" and not call.excinfo:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest())
    if call.when == "teardown" and call.excinfo:
        stamp.unlink(missing_ok=True)
