"""`import millrace` is enough: DataLoader and the submodules are imported when they are first used, and not before."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SUBMODULES = ("awsio", "checkpoint", "dataflux", "dcp", "fs", "lightning", "s3torchconnector")
LIGHT = ("checkpoint", "dataflux")  # work without torch and numpy
USE = "import sys, millrace; assert millrace.{name} is sys.modules['millrace.{name}']"
HEAVY = ("torch", "numpy", "lightning", "pytorch_lightning", "google.cloud.storage")


def run(code: str) -> str:
    """What a fresh interpreter prints, in which nothing is imported yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """The modules that the code has loaded."""
    return set(json.loads(run(f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))")))


@pytest.mark.parametrize("code", ["import millrace", "import millrace; dir(millrace); millrace.IterableDataset"])
def test_nothing_heavy_is_imported(code: str) -> None:
    loaded = loaded_by(code)
    assert not loaded & set(HEAVY)
    assert not loaded & {f"millrace.{name}" for name in SUBMODULES}


@pytest.mark.parametrize("name", LIGHT)
def test_a_submodule_that_works_without_torch(name: str) -> None:
    assert not loaded_by(USE.format(name=name)) & {"torch", "numpy"}


def test_a_submodule_is_imported_when_it_is_first_used() -> None:
    """Each in a process of its own, which has what takes long to import from its parent."""
    run(
        "import os, torch, lightning\n"
        f"for code in {[USE.format(name=name) for name in SUBMODULES]}:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        exec(code)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0, code\n"
    )


def test_what_a_submodule_has_is_reached_through_the_package(tmp_path: Path) -> None:
    target = tmp_path / "state"
    run(
        "import millrace\n"
        f"with millrace.checkpoint.writer({str(target)!r}) as file:\n"
        "    file.write(b'hello')\n"
        f"assert millrace.checkpoint.reader({str(target)!r}).read() == b'hello'\n"
        "assert callable(millrace.dcp.StorageWriter) and millrace.dataflux.dataflux_checkpoint\n"
    )
    assert target.read_bytes() == b"hello"


def test_dir_names_the_submodules_and_an_unknown_name_is_an_attribute_error() -> None:
    import millrace

    assert {*SUBMODULES, *millrace.__all__} <= set(dir(millrace))
    assert not {*SUBMODULES} & set(millrace.__all__)
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'nothing'"):
        millrace.nothing  # noqa: B018
    assert not hasattr(millrace, "_nothing")


def test_star_imports_what_all_names() -> None:
    loaded = loaded_by("from millrace import *; DataLoader, MapDataset")
    assert "torch" in loaded
    assert not loaded & {"millrace.dcp", "millrace.lightning"}


def test_type_checkers_see_what_is_imported_late() -> None:
    """__getattr__ alone would make all of it Any: each name stands under TYPE_CHECKING too."""
    import millrace

    assert millrace.__file__
    (block,) = (
        node
        for node in ast.parse(Path(millrace.__file__).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    names = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert names == {*SUBMODULES, "DataLoader", "File", "TextFile", "batch_empty", "open", "transport"}


def test_the_free_threaded_build_is_refused() -> None:
    """Its extension would be another file; so the package says it before it looks for one."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.abiflags = 't'; import millrace"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "ImportError: millrace does not work with the free-threaded build of CPython" in done.stderr
    assert "Use the ordinary build, python3." in done.stderr
