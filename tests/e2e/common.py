"""What the end-to-end tests share: the icons as a bucket, ranks that look, and what they saw."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serve import Supervisor

BUCKET = "icons"
RUN_TIMEOUT_S = 180


def icon_files() -> dict[str, Path]:
    """Object name -> file, of every real PNG of Debian's oxygen-icon-theme."""
    listed = subprocess.run(["dpkg", "-L", "oxygen-icon-theme"], capture_output=True, text=True, check=True).stdout
    root = Path("/usr/share/icons/oxygen/base")
    files = [Path(line) for line in listed.splitlines() if line.endswith(".png")]
    return {str(p.relative_to(root)): p for p in files if p.is_relative_to(root) and p.is_file() and not p.is_symlink()}


def make_bucket(root: Path, files: dict[str, Path]) -> dict[str, str]:
    """Puts the files below root/BUCKET as hard copies; returns name -> sha256."""
    digests = {}
    for name, file in files.items():
        data = file.read_bytes()
        target = root / BUCKET / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


@dataclass
class Seen:
    """What one rank was given."""

    epochs: list[list[list[tuple[str, str]]]] = field(default_factory=list)  # epoch -> step -> samples
    ends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def samples(self) -> list[tuple[str, str]]:
        return [sample for epoch in self.epochs for step in epoch for sample in step]


def read_seen(path: Path) -> Seen:
    seen = Seen()
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "end" in record:
            seen.ends.append(record)
            continue
        while len(seen.epochs) <= record["epoch"]:
            seen.epochs.append([])
        seen.epochs[record["epoch"]].append([(name, digest) for name, digest in record["samples"]])
    return seen


# The ranks are forked from a process that has imported torch, which takes each of them two seconds by itself.
RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["torch", "torch.utils.data", "numpy"])


@dataclass
class Rank:
    """A process that runs rank.py's main()."""

    out: Path
    errors: Path
    process: Any

    def runs(self) -> bool:
        return self.process.exitcode is None


def be_rank(out: str, options: str, errors: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with Path(errors).open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.argv[1:] = [out, options]
    from tests.e2e import rank

    rank.main()


def start_ranks(supervisor: Supervisor, tmp_path: Path, world: int, options: dict[str, Any]) -> list[Rank]:
    ranks = []
    for number in range(world):
        out = tmp_path / f"rank-{world}-{number}-{time.monotonic_ns()}.jsonl"
        errors = out.with_suffix(".log")
        environment = {**supervisor.environment, "RANK": str(number), "WORLD_SIZE": str(world)}
        text = json.dumps({"uri": f"gs://{BUCKET}/", **options})
        process = RANKS.Process(target=be_rank, args=(str(out), text, str(errors), environment))
        process.start()
        ranks.append(Rank(out, errors, process))
    return ranks


def finish_ranks(ranks: list[Rank]) -> list[Seen]:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        for rank in ranks:
            rank.process.join(max(1.0, deadline - time.monotonic()))
            assert rank.process.exitcode == 0, rank.errors.read_text() if rank.errors.exists() else "no output"
    finally:
        for rank in ranks:
            if rank.runs():
                rank.process.kill()
            rank.process.join()
    return [read_seen(rank.out) for rank in ranks]


def run_ranks(supervisor: Supervisor, tmp_path: Path, world: int, **options: Any) -> list[Seen]:
    return finish_ranks(start_ranks(supervisor, tmp_path, world, options))


def last_error_line(text: str) -> str:
    lines = [line for line in text.splitlines() if re.search(r"Error|error|Gone", line)]
    return lines[-1] if lines else text[-500:]
