"""Interpreters and trees of the compatibility run: the reference as control, and the same programs after the sed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BIN, BUILD, CALLERS_CACHE

HERE = Path(__file__).resolve().parent
REFERENCE = "gcs-torch-dataflux==1.4.0"
# What its programs import beside it and .venv. torchvision names one version of torch, and works with others.
LIGHT = ["absl-py", "gcsfs", "pyarrow", "scipy", "transformers"]
LIGHT_ALONE = ["torchvision"]

# The whole move, as a user would make it (docs/migrating.md).
SED = [
    (re.compile(r"dataflux_pytorch"), "millrace.dataflux"),
    (re.compile(r"^([ \t]*)((?:import|from) dataflux_core\b)", re.M), r"\1import millrace.dataflux.install\n\1\2"),
]
SEDDED = {".py", ".ipynb", ".md", ".sh"}


@dataclass(frozen=True)
class Side:
    """One of the two that are compared: its interpreter, its copy of the programs and what they may import."""

    name: str
    python: Path
    tree: Path
    checkout: Path  # as it is, with the reference's library
    path: tuple[Path, ...]

    def environment(self, work: Path, url: str) -> dict[str, str]:
        kept = {"LANG", "LC_ALL", "TERM", "MILLRACE_TEST_SESSION", "ASAN_OPTIONS", "TMPDIR"}
        folders = [HERE / "observe", HERE / "stubs", self.tree, *self.path]
        return {
            **{name: value for name, value in os.environ.items() if name in kept},
            "PATH": f"{BIN}{os.pathsep}{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(work / "home"),
            "XDG_CACHE_HOME": str(work / "cache"),
            "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
            "CLOUDSDK_CONFIG": str(work / "home"),
            "STORAGE_EMULATOR_HOST": url,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "TQDM_DISABLE": "1",
            "MR_OBSERVE": str(work / "observed"),
        }


def packages() -> tuple[Path, Path]:
    """The interpreter with the light packages, and the folder with the reference: made once, outside of the tree.

    torch, Lightning and google-cloud-storage are those of .venv, by a .pth file: pip sees them as installed.
    """
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CALLERS_CACHE / "millrace" / f"reference-{tag}"
    python = folder / "venv" / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {REFERENCE} and {', '.join(LIGHT + LIGHT_ALONE)} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        site = folder / "venv" / "lib" / f"python{tag}" / "site-packages"
        (site / "millrace_venv.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *LIGHT], check=True)
        subprocess.run([*pip, "--no-deps", *LIGHT_ALONE], check=True)
        subprocess.run([*pip, "--no-deps", "--target", folder / "reference", REFERENCE], check=True)
        # Its packages `dataflux_pytorch` and `demo` come from the checkout; of the wheel there is need of the rest.
        for name in ("dataflux_pytorch", "demo"):
            shutil.rmtree(folder / "reference" / name)
        (folder / "complete").touch()
    return python, folder / "reference"


def moved(text: str) -> str:
    for pattern, replacement in SED:
        text = pattern.sub(replacement, text)
    return text


def copy_tree(checkout: Path, target: Path, after_sed: bool) -> Path:
    """A copy of the checkout's programs to run in; the checkout stays as it is."""
    shutil.copytree(checkout, target, ignore=shutil.ignore_patterns(".git", "*.png"))
    shutil.copytree(HERE / "variations", target / "variations")
    if not after_sed:
        return target
    for path in target.rglob("*"):
        if path.suffix in SEDDED and path.is_file():
            with contextlib.suppress(UnicodeDecodeError):
                path.write_text(moved(path.read_text()))
    # Its library is uninstalled: what the programs find must be millrace's. Programs and unit tests stay.
    library = target / "dataflux_pytorch"
    for path in [*library.glob("*.py"), library / "lightning", library / "multipart_upload"]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
    return target


def sides(checkout: Path, work: Path, plain: bool) -> tuple[Side, Side]:
    """(the control, millrace). `plain`: with the running interpreter alone, and what the checkout itself has."""
    python, reference = (Path(sys.executable), None) if plain else packages()
    control = copy_tree(checkout, work / "control", after_sed=False)
    ours = copy_tree(checkout, work / "millrace", after_sed=True)
    return (
        Side("reference", python, control, control, (reference,) if reference else ()),
        Side("millrace", python, ours, control, (BUILD / "python",)),
    )
