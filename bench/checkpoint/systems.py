"""Who saves and loads in the checkpoint benchmark, and the command line of each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.systems import BIN, BUILD, MIB, System

BUCKET = "checkpoints"
NULL, COPY, FILE = "torch.save, discarded", "memcpy", "torch.save, local file"
OURS, LATER = "millrace", "millrace, close(wait=False)"
ARENA = 256 * MIB  # of millrace, in each direction


@dataclass(frozen=True)
class Client:
    """A system, and what the benchmark has to know of it."""

    system: System
    stores: bool = True  # to the server
    loads: bool = True

    @property
    def name(self) -> str:
        return self.system.name


def millrace_command(config: Path, command: list[str]) -> list[str]:
    return [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", *command]


class Catalogue:
    """All of them, for a working folder. Without the peers' folder: those that need no other packages than .venv's."""

    def __init__(self, folder: Path, peers: Path | None) -> None:
        self.folder, self.peers = folder, peers

    def clients(self) -> list[Client]:
        found = [self._floor(COPY, "memcpy"), self._floor(NULL, "null"), self._floor(FILE, "file")]
        found += [self.millrace(OURS, ARENA), self.millrace(LATER, 0, later=True)]
        if self.peers is None:
            return [*found, self._client("google-cloud-storage", "google", Path(sys.executable))]
        dataflux, clients = self._python("dataflux"), self._python("clients")
        found += [self._dataflux("dataflux", dataflux), self._dataflux("dataflux, asynchronous", dataflux, True)]
        found += [
            self._client("gcsfs", "gcsfs", clients),
            self._client("obstore", "obstore", clients),
            self._client("google-cloud-storage", "google", clients),
            self._client("google-cloud-storage, chunks", "google-chunks", clients),
        ]
        return found

    def _python(self, name: str) -> Path:
        assert self.peers
        return self.peers / name / "bin" / "python"

    def _floor(self, name: str, kind: str) -> Client:
        command = [sys.executable, "-m", "bench.checkpoint.floor_saver", "--kind", kind, "--folder", str(self.folder)]
        return Client(System(name, "", 0, command, 0), stores=False, loads=kind == "file")

    def millrace(self, name: str, arena: int, later: bool = False, more: str = "") -> Client:
        """arena: bytes for parts; 0 is the default, 1/16 of the memory. more: lines of [checkpoint]."""
        config = self.folder / f"millrace-{name.replace(' ', '-')}.toml"
        config.write_text(f"[memory]\narena_bytes = {ARENA}\n[checkpoint]\narena_bytes = {arena}\n{more}")
        saver = [sys.executable, "-m", "bench.checkpoint.millrace_saver", "--bucket", BUCKET]
        saver += ["--asynchronous"] if later else []
        environment = {"PYTHONPATH": str(BUILD / "python"), "MILLRACE_BIN": str(BIN)}
        return Client(System(name, "", 0, millrace_command(config, saver), 0, environment))

    def _dataflux(self, name: str, python: Path, later: bool = False) -> Client:
        command = [str(python), "-m", "bench.checkpoint.dataflux_saver", "--bucket", BUCKET]
        return Client(System(name, "", 0, [*command, *(["--asynchronous"] if later else [])], 0))

    def _client(self, name: str, client: str, python: Path) -> Client:
        command = [str(python), "-m", "bench.checkpoint.client_saver", "--client", client, "--bucket", BUCKET]
        return Client(System(name, "", 0, [*command, "--folder", str(self.folder)], 0))
