"""The simulated checkpoint of many nodes: who saves and loads it, one after the other, on one server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.checkpoint.systems import BUCKET
from bench.process import WITH_US
from bench.systems import BIN, BUILD, ROOT

LIMIT_S = 240


@dataclass(frozen=True)
class Shape:
    world: int = 4
    rows: int = 250  # of 1000 floats: tensors of 1 MB
    tensors: int = 512
    samples: int = 3  # the first one finds caches and memory cold, and is watched

    @property
    def tensor_size(self) -> int:
        return self.rows * 4000

    @property
    def size(self) -> int:
        return self.tensors * self.tensor_size

    def environment(self, folder: str) -> dict[str, str]:
        found = {"CKPT_DIR_PATH": folder, "WORLD_SIZE": str(self.world), "LAYER_SIZE": str(self.rows)}
        return {**found, "PADDING_SIZE": str(self.tensors), "SAMPLE_COUNT": str(self.samples), "PROJECT": "bench"}


@dataclass(frozen=True)
class Way:
    """A system of the table."""

    name: str
    python: Path
    environment: dict[str, str]


def ways(peers: Path | None) -> list[Way]:
    ours = {"PYTHONPATH": str(BUILD / "python"), "MILLRACE_BIN": str(BIN)}
    found = [Way("millrace.dcp", Path(sys.executable), ours)]
    found.append(Way("millrace.dcp, async_save", Path(sys.executable), {**ours, "USE_ASYNC": "true"}))
    if peers is None:
        return found
    fsspec = {"USE_FSSPEC": "true", "FSSPEC_GS_TOKEN": "anon", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    clients = peers / "clients" / "bin" / "python"
    found.append(Way("fsspec (gcsfs)", clients, fsspec))
    found.append(Way("fsspec (gcsfs), async_save", clients, {**fsspec, "USE_ASYNC": "true"}))
    found.append(Way("dataflux", peers / "dataflux" / "bin" / "python", {"USE_DATAFLUX": "true"}))
    return found


def measure(way: Way, shape: Shape, url: str, log: Path) -> dict[str, Any]:
    """A row: what bench/checkpoint/nodes.py said, or its error."""
    folder = f"gs://{BUCKET}/nodes/{way.name.replace(' ', '-')}"
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url, "OMP_NUM_THREADS": "1"}
    environment.update(shape.environment(folder))
    environment.update(way.environment)
    command = [*WITH_US, str(way.python), "-m", "bench.checkpoint.nodes"]
    with log.open("w") as errors:
        try:
            found = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return {"system": way.name, "error": f"not done in {LIMIT_S} s"}
    lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
    if found.returncode or not lines:
        return {"system": way.name, "error": last_words(log)}
    told: dict[str, Any] = json.loads(lines[-1])
    return {"system": way.name, **told}


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    found = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Changed|SystemExit)\b", line)]
    return (found or lines or ["ended without a word"])[-1][:200]


def rows(peers: Path | None, wanted: list[str], shape: Shape, url: str, folder: Path) -> list[dict[str, Any]]:
    return [
        measure(way, shape, url, folder / f"nodes-{number}.log")
        for number, way in enumerate(ways(peers))
        if not wanted or way.name in wanted
    ]
