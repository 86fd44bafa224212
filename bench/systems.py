"""Which systems are measured in which cells, and the command line of each reader."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build" / "release"))
BIN = BUILD / "bin"
KIB, MIB = 1 << 10, 1 << 20
FETCH_WORKERS, RECEIVE_BUFFER = 2, 512 * KIB  # the defaults

FLOOR = "floor"
Command = list[str]


@dataclass(frozen=True)
class Shape:
    """How objects of one size are read: the same for all systems where they have such a setting."""

    size: int
    label: str
    count: int  # objects in the bucket
    slow_count: int  # in the bucket of those that list slowly
    files: int  # of torch's DataLoader over local files
    batch: int
    window: int  # millrace's, samples
    late_window: int  # the same with latency: what is under way hides it
    arena: int  # millrace's, bytes
    floor_connections: int
    parallel: int  # requests that a client without a data set has under way
    full: bool  # map-style too, in a run of normal length

    def ahead(self, workers: int) -> int:
        """Samples that torch's DataLoader has asked for before the loop does; of objects that take seconds, half."""
        return workers * self.batch * (1 if self.size > 100 * MIB else 2)

    @property
    def bucket(self) -> str:
        return f"bench-{self.size}"

    @property
    def slow_bucket(self) -> str:
        return f"bench-{self.size}-few"


SHAPES = [
    Shape(100 * KIB, "100 KiB", 200_000, 30_000, 4000, 32, 256, 1024, 256 * MIB, 16, 16, True),
    Shape(500 * KIB, "500 KiB", 50_000, 8_000, 800, 32, 256, 512, 512 * MIB, 16, 16, False),
    Shape(3 * MIB, "3 MiB", 10_000, 2_000, 160, 8, 64, 64, 512 * MIB, 16, 8, False),
    Shape(150 * MIB, "150 MiB", 400, 100, 6, 1, 4, 4, 1536 * MIB, 4, 2, False),
]


@dataclass(frozen=True)
class Cell:
    shape: Shape
    latency_ms: int

    @property
    def label(self) -> str:
        return f"{self.shape.label}, {self.latency_ms} ms"

    @property
    def connections(self) -> int:
        """Of each of millrace's two fetch workers: 32 is the default, and with latency the window is what bounds."""
        return 256 if self.latency_ms and self.shape.size < MIB else 32

    @property
    def window(self) -> int:
        return self.shape.late_window if self.latency_ms else self.shape.window

    @property
    def floor_connections(self) -> int:
        return self.shape.floor_connections * (16 if self.latency_ms and self.shape.size < MIB else 1)

    @property
    def parallel(self) -> int:
        """A plain loop where there is nothing to wait for."""
        return self.shape.parallel if self.latency_ms else 1


@dataclass
class System:
    """One reader in one cell."""

    name: str
    style: str  # iterable, map, or "" where the system knows no data sets
    workers: int  # of torch's DataLoader; 0: one process
    command: Command
    skip: int  # objects that are under way ahead of the loop, and not timed
    environment: dict[str, str] = field(default_factory=dict)
    formula: dict[str, int] | None = None  # bytes, as docs/memory.md adds them up

    @property
    def key(self) -> str:
        return f"{self.name}/{self.style}/{self.workers}"


def peers_folder() -> Path:
    where = subprocess.run([str(ROOT / "bench" / "peers"), "--where"], capture_output=True, text=True, check=True)
    return Path(where.stdout.strip())


class Catalogue:
    """All systems, for a server and a working folder."""

    def __init__(self, folder: Path, url: str, composes: bool) -> None:
        self.folder, self.url, self.composes = folder, url, composes
        self.peers = peers_folder()

    def systems(self, cell: Cell, thorough: bool) -> list[System]:
        found = [self._floor(cell)]
        if cell.shape.full and cell.latency_ms:
            found.append(self._millrace(cell, "iterable", 0, False, cell.shape.window))
        styles = ["iterable", "map"] if cell.shape.full or thorough else ["iterable"]
        few = cell.shape.size > 100 * MIB and cell.latency_ms and not thorough  # 20 ms are nothing beside their seconds
        for workers in (0, 2):
            for style in styles:
                found.append(self._millrace(cell, style, workers, False))
                if workers and few:
                    continue
                if self.composes and cell.shape.size <= 3 * MIB:
                    found.append(self._millrace(cell, style, workers, True))
                found.append(self._dataflux(cell, style, workers, False))
                if cell.shape.size <= 3 * MIB:
                    found.append(self._dataflux(cell, style, workers, True))
            if not (workers and few):
                found += [self._client(cell, client, workers) for client in ("google", "gcsfs", "obstore")]
            if not cell.latency_ms:
                found.append(self._torch(cell, workers, False))
        if not cell.latency_ms:
            found.append(self._torch(cell, 2, True))
        return found

    def _floor(self, cell: Cell) -> System:
        pattern = f"{self.url}/storage/v1/b/{cell.shape.bucket}/o/obj-%09u?alt=media"
        program = str(BIN / "millrace-bench-floor")
        return System(FLOOR, "", 0, [program, pattern, str(cell.shape.count), str(cell.floor_connections)], 0)

    def configuration(self, cell: Cell, compose: bool) -> Path:
        path = self.folder / f"{cell.shape.size}-{cell.latency_ms}-{compose}.toml"
        lines = [f"[memory]\narena_bytes = {cell.shape.arena}\n", f"[fetch]\nconnections = {cell.connections}\n"]
        if self.composes:
            lines.append(f'compose = "{"always" if compose else "never"}"\n')
        path.write_text("".join(lines))
        return path

    def _millrace(self, cell: Cell, style: str, workers: int, compose: bool, narrow: int = 0) -> System:
        shape, window = cell.shape, narrow or cell.window
        config = self.configuration(cell, compose)
        command = [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable]
        command += ["-m", "bench.readers.millrace_reader", "--bucket", shape.bucket, "--style", style]
        command += ["--workers", str(workers), "--batch", str(shape.batch), "--window", str(window)]
        skip = max(workers, 1) * window + shape.ahead(workers)
        environment = {"PYTHONPATH": str(BUILD / "python")}
        name = "millrace" + (", composed" if compose else "") + (f", window {narrow}" if narrow else "")
        lanes = max(workers, 1)
        formula = {
            "arena": shape.arena,
            "buffers": FETCH_WORKERS * cell.connections * RECEIVE_BUFFER,
            "lane": lanes * (448 * window + 1344) + 40 * shape.count,
        }
        return System(name, style, workers, command, skip, environment, formula)

    def _dataflux(self, cell: Cell, style: str, workers: int, compose: bool) -> System:
        shape = cell.shape
        command = [str(self.peers / "dataflux" / "bin" / "python"), "-m", "bench.readers.dataflux_reader"]
        command += ["--bucket", shape.slow_bucket, "--style", style]
        command += ["--workers", str(workers), "--batch", str(shape.batch), *(["--compose"] if compose else [])]
        name = "dataflux, composed" if compose else "dataflux"
        return System(name, style, workers, command, shape.ahead(workers))

    def _client(self, cell: Cell, client: str, workers: int) -> System:
        shape = cell.shape
        parallel = cell.parallel if client == "google" else shape.parallel
        command = [str(self.peers / "clients" / "bin" / "python"), "-m", "bench.readers.client_reader"]
        command += ["--client", client, "--bucket", shape.bucket, "--count", str(shape.count)]
        command += ["--workers", str(workers), "--batch", str(shape.batch), "--parallel", str(parallel)]
        name = {"google": "google-cloud-storage"}.get(client, client)
        return System(name, "", workers, command, shape.ahead(workers))

    def _torch(self, cell: Cell, workers: int, held: bool) -> System:
        shape = cell.shape
        command = [sys.executable, "-m", "bench.readers.torch_reader", "--folder", str(self.files(shape))]
        command += ["--workers", str(workers), "--batch", str(shape.batch), *(["--held"] if held else [])]
        name = "torch, samples in memory" if held else "torch, local files"
        return System(name, "map", workers, command, shape.ahead(workers))

    def files(self, shape: Shape) -> Path:
        return self.folder / "files" / str(shape.size)
