"""docs/commands.md: each example is run, and prints what the page shows (numbers may differ)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import BIN, ROOT, StartDevstore

PAGE = ROOT / "docs" / "commands.md"
MACHINE = ("memory ", "shared memory", "huge pages", "open files", "run folder", "processors")
ENDS = ("All is well.", "Nothing fails.", "Something must")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return [text for name, text in found if name == language]


def examples() -> list[tuple[str, str]]:
    """Command and output of each "$ " line."""
    found = []
    for text in blocks("console"):
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def normal(output: str) -> list[str]:
    """Without numbers, units, and what depends on the machine."""
    lines = []
    for line in output.splitlines():
        if line[6:].startswith(MACHINE) or line.startswith(ENDS) or not line.strip():
            continue
        line = re.sub(r"limited by .*", "limited by", line)
        line = re.sub(r"[^\s(]*\d[^\s),;:]*( (B|KiB|MiB|GiB)\b)?", "N", line)
        lines.append(" ".join(line.split()))
    return lines


def make_store(root: Path) -> None:
    bucket = root / "my-bucket"
    (bucket / "train").mkdir(parents=True)
    (bucket / "labels").mkdir()
    for i in range(400):
        (bucket / "train" / f"{i:04}.jpg").write_bytes(bytes([i % 251]) * (2000 + 50 * i))
    (bucket / "labels" / "train.csv").write_text("".join(f"{i:04}.jpg,{i % 10}\n" for i in range(400)))


def test_the_examples(devstore: StartDevstore, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.toml").write_text(blocks("toml")[0])
    server = devstore("--root", tmp_path / "store", "--memory", "--location", "US-EAST1")
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": server.url, "PATH": f"{BIN}:{os.environ['PATH']}"}
    shown = examples()
    assert len(shown) >= 18
    for command, output in shown:
        # The page's reader gives the FIFO a second; a busy machine may need longer.
        command = command.replace("sleep 1;", "until [ -p train_0 ]; do sleep 0.05; done;")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=here,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
        )
        assert normal(done.stdout) == normal(output), f"$ {command}\n{done.stdout}"


def test_every_command_is_on_the_page(millrace_bin: Path) -> None:
    shown = subprocess.run([millrace_bin, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^  millrace (\w+)", shown, re.M)
    text = PAGE.read_text()
    for verb in verbs:
        assert f"`millrace {verb}" in text, verb
