"""What the README and the documentation show: the Python runs, the commands exist, the links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT, StartDevstore

PAGES = sorted(
    [
        *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "configs/README.md", "deploy/grafana/README.md")),
        *(ROOT / "docs").glob("*.md"),
    ]
)

# What the README's snippet takes for granted: a model and a training step.
AROUND = """
import torch
model = torch.nn.Linear(1, 1)
seen = []
def step(batch):
    seen.extend(int(pixel) for pixel in batch[:, 0, 0, 1])
{snippet}
assert sorted(seen) == list(range(200)), len(seen)
state = torch.load(millrace.checkpoint.reader("gs://bucket/state.pt"))["loader"]
print("state", state["epoch"], state["cursor"])
"""


def code_blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [block for name, block in found if name == language]


def test_the_readme_s_python_runs(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "bucket" / "train"
    folder.mkdir(parents=True)
    for i in range(200):  # of different sizes, and each of its own colour
        Image.new("RGB", (8 + i % 50, 20), (255, i, 0)).save(folder / f"{i}.png")
    snippet = code_blocks(ROOT / "README.md", "python")[0]
    (tmp_path / "train.py").write_text(AROUND.format(snippet=snippet))
    (tmp_path / "train.toml").write_text('[memory]\narena_bytes = "32MiB"\n')
    environment = os.environ | {"STORAGE_EMULATOR_HOST": devstore("--root", tmp_path / "store").url}
    command = [str(millrace_bin), "run", "-c", "train.toml", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    # 200 samples are 7 batches of 32 and less; the last state was taken when the loop had them all.
    assert done.stdout.split("\n")[-2] in ("state 0 200", "state 1 0")


def test_commands_in_the_pages_exist(millrace_bin: Path) -> None:
    shown = subprocess.run([millrace_bin, "--help"], capture_output=True, text=True).stdout
    for page in PAGES:
        text = "\n".join(code_blocks(page, "")) + "\n".join(re.findall(r"`(millrace [^`]*)`", page.read_text()))
        for verb in set(re.findall(r"^\s*millrace ([a-z]+)\b", text, re.M)):
            assert re.search(rf"\b{verb}\b", shown), f"{page.name} names `millrace {verb}`, which --help does not"


def test_links_in_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_configurations_are_valid(millrace_bin: Path) -> None:
    files = [*sorted((ROOT / "configs").glob("*.toml")), ROOT / "deploy" / "train.toml"]
    assert len(files) >= 4
    for file in files:
        done = subprocess.run([millrace_bin, "check", "-c", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_configuration_page_is_what_the_program_prints(millrace_bin: Path) -> None:
    shown = subprocess.run([millrace_bin, "check", "--reference"], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "configuration.md").read_text() == shown, "run `make format`"
