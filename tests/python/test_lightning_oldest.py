"""The tests of test_lightning.py with the oldest torch and Lightning, which scripts/torch-oldest installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CALLERS_CACHE, ROOT

OLDEST = CALLERS_CACHE / "millrace" / "torch-2.3.1" / "bin" / "python"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="torch 2.3.1 is not there for this Python")
def test_lightning_2_0_beside_torch_2_3_1() -> None:
    assert OLDEST.exists(), f"{OLDEST} is missing: run scripts/setup nightly"
    versions = "import torch, pytorch_lightning as pl; print(torch.__version__.split('+')[0], pl.__version__[:4])"
    shown = subprocess.run([OLDEST, "-c", versions], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["2.3.1", "2.0."]
    command: list[str | Path] = [
        OLDEST,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        Path(__file__).with_name("test_lightning.py"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    missing = [
        sum(reason in line for line in skipped) for reason in ("FSDPStrategy needs Lightning 2.1", "no loader's")
    ]
    assert len(skipped) == 3 and missing == [2, 1], done.stdout
