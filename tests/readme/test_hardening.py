"""What docs/security.md says of the programs' hardening, read from the programs that the build made."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import BIN, BUILD

FILES = [BIN / "millrace", BIN / "millrace-worker", *sorted((BUILD / "python" / "millrace").glob("_ring*.so"))]


def readelf(*options: str, file: Path) -> str:
    return subprocess.run(["readelf", "-W", *options, str(file)], capture_output=True, text=True, check=True).stdout


def test_each_is_there() -> None:
    assert len(FILES) == 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.split(".")[0])
def test_hardened(file: Path) -> None:
    assert re.search(r"Type: +DYN", readelf("-h", file=file)), "at an address of the kernel's choice"
    segments = readelf("-l", file=file)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK .* RW +0x", segments), "no code on the stack"
    assert not re.search(r"LOAD .* RWE ", segments), "nothing can be written and run"
    dynamic = readelf("-d", file=file)
    assert "BIND_NOW" in dynamic, "with RELRO: what it calls cannot be replaced later"
    assert "RUNPATH" not in dynamic and "RPATH" not in dynamic, "libraries come from the system's folders alone"
    imported = readelf("--dyn-syms", file=file)
    assert "__stack_chk_fail" in imported
    assert re.search(r"__\w+_chk\b", imported), "_FORTIFY_SOURCE: calls that know the size of what they write to"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="control-flow enforcement (CET) is x86-64's")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.split(".")[0])
def test_indirect_calls_land_on_marks(file: Path) -> None:
    """The mark on the whole file also needs crt1.o's, which Debian's does not have: of our own functions, then."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, text=True).stdout
    names = r"main|PyInit__ring" if file.suffix == ".so" else r"main"
    first = re.search(rf"<(?:{names})>:\n +\S+:\t(\w+)", listing)
    if first is None:  # stripped: no names, so count
        assert listing.count("endbr64") > 100
    else:
        assert first.group(1) == "endbr64"
