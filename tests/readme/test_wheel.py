"""`pip install .`: the wheel carries the programs, the extension, the man page and the completions, and `millrace` on
PATH finds its worker."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT, StartDevstore

pytestmark = pytest.mark.nightly  # it builds everything once more


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    with (ROOT / "build" / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of this file may run side by side, and have one build folder
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", str(folder)]
            + ["--config-settings", f"build-dir={ROOT / 'build' / 'wheel'}", str(ROOT)],
            check=True,
        )
    (wheel,) = folder.glob("millrace-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return folder / "venv" / "bin"


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """Without the paths by which tests find the build folder."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PATH")} | {"PATH": "/usr/bin:/bin"}


@pytest.mark.timeout(600)
def test_wheel_reads_a_bucket(
    installed: Path, clean_environment: dict[str, str], devstore: StartDevstore, tmp_path: Path
) -> None:
    bucket = tmp_path / "store" / "bucket"
    bucket.mkdir(parents=True)
    for name in "abc":
        (bucket / name).write_bytes(name.encode() * 10)
    environment = clean_environment | {"STORAGE_EMULATOR_HOST": devstore("--root", bucket.parent).url}

    shown = subprocess.run(
        [installed / "millrace", "ls", "gs://bucket/"], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["gs://bucket/a", "gs://bucket/b", "gs://bucket/c"]

    code = "import millrace\nfor batch in millrace.IterableDataset('gs://bucket/').batches(2):\n"
    code += "    print(*(f'{lease.name}={bytes(lease).decode()}' for lease in batch))"
    code += "\nfrom importlib.metadata import entry_points\n"
    code += "assert {e.name for e in entry_points(group='fsspec.specs')} >= {'millrace+gs', 'millrace+s3'}"
    read = subprocess.run(
        [installed / "python", "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert read.returncode == 0, read.stderr
    assert read.stdout.split() == ["a=aaaaaaaaaa", "b=bbbbbbbbbb", "c=cccccccccc"]


@pytest.mark.timeout(600)
def test_wheel_has_the_man_page_and_the_completions(installed: Path, clean_environment: dict[str, str]) -> None:
    for file, arguments in (
        ("man/man1/millrace.1", ["man"]),
        ("bash-completion/completions/millrace", ["completion", "bash"]),
        ("zsh/site-functions/_millrace", ["completion", "zsh"]),
    ):
        printed = subprocess.run([installed / "millrace", *arguments], env=clean_environment, capture_output=True)
        assert printed.returncode == 0
        assert (installed.parent / "share" / file).read_bytes() == printed.stdout
