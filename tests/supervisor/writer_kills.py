"""Kills a trainer, a write worker, or the supervisor in the middle of a save: the object is whole, or as it was before.

    python -m tests.supervisor.writer_kills [KILLS] [SEED]        (300 kills: about four minutes)

Every kill is SIGKILL at a random moment of a save: of a small object, of one with several parts, or of one that
replaces another. Afterwards `millrace clean` must leave no temporary object and no upload.
test_writer_kills.py does a few.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BIN, Server, start_devstore
from tests.e2e.common import Supervisor, serve

from .conftest import alive, wait_for
from .saver import Saver, make_bytes

TOML = """
[checkpoint]
arena_bytes = "20MiB"
part_bytes = "5MiB"
[gcs]
auth = "anonymous"
[retry]
base_ms = 5
cap_ms = 50
"""
SIZES = {1000: 0.03, 7 << 20: 0.25, 21 << 20: 0.7}  # and about as many seconds as that takes
OLD = b"the old one"


@dataclass
class Ends:
    whole: int = 0
    absent: int = 0
    old: int = 0


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def read(server: Server, name: str) -> bytes | None:
    try:
        with urllib.request.urlopen(f"{server.url}/storage/v1/b/bucket/o/{name}?alt=media") as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


def put(server: Server, name: str, data: bytes) -> None:
    url = f"{server.url}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, data=data, method="POST")).close()


def uploads(server: Server) -> int:
    with urllib.request.urlopen(f"{server.url}/bucket?uploads") as answer:
        return int(answer.read().count(b"<UploadId>"))


class Rounds:
    """A supervisor, started again after its death, and one save after the other."""

    def __init__(self, folder: Path, server: Server, rng: random.Random) -> None:
        self.folder, self.server, self.rng = folder, server, rng
        self.supervisor: Supervisor | None = None
        self.ends = Ends()

    def start(self) -> Supervisor:
        if self.supervisor is None:
            (self.folder / "socket").unlink(missing_ok=True)
            self.supervisor = serve(BIN / "millrace", self.folder, self.server.url, TOML)
        return self.supervisor

    def one(self, number: int) -> None:
        """One save and one kill in the middle of it; then everybody is left in peace until it has ended."""
        supervisor = self.start()
        name, size = f"ckpt-{number}", self.rng.choice(list(SIZES))
        replaces = self.rng.random() < 0.3
        if replaces:
            put(self.server, name, OLD)
        trainer = Saver(supervisor.socket)
        try:
            for line in (f"open 0 gs://bucket/{name} 0 1", f"write 0 {size}", "seal 0", "wait 0", "close 0"):
                trainer.say(line)
            time.sleep(self.rng.uniform(0, SIZES[size]))
            role = self.rng.choice(["trainer", "write", "supervisor"])
            written = self.strike(role, supervisor, trainer)
        finally:
            trainer.kill()
        self.settle(supervisor)
        data = read(self.server, name)
        if data == make_bytes(size):
            self.ends.whole += 1
        else:
            assert data == (OLD if replaces else None), f"{name}: {len(data or b'')} of {size} bytes after {role}"
            assert not written, f"{name}: said to be saved, and is not ({role})"
            self.ends.old += replaces
            self.ends.absent += not replaces

    def strike(self, role: str, supervisor: Supervisor, trainer: Saver) -> bool:
        """True when the trainer was told that it is saved."""
        workers = supervisor.workers("write")
        if role == "trainer":
            kill(trainer.process.pid)
        elif role == "write" and workers:
            kill(self.rng.choice(workers))
        elif role == "supervisor":
            kill(supervisor.process.pid)
            supervisor.process.wait()
            self.supervisor = None
            wait_for(lambda: not any(alive(pid) for pid in workers), "write workers outlive their work")
        answers = []
        if trainer.process.poll() is None and role != "trainer":
            answers = [trainer.hear() for _ in range(5)]
        return any(answer[:2] == ["ok", "done"] for answer in answers)

    def settle(self, supervisor: Supervisor) -> None:
        """Nothing is under way any more."""
        if self.supervisor is None:
            return
        command: list[str | Path] = [BIN / "millrace", "stat", "--json", "--socket", supervisor.socket]

        def idle() -> bool:
            return b'"open": 0,' in subprocess.run(command, capture_output=True, check=True).stdout

        wait_for(idle, "a part lane was never freed")

    def stop(self) -> None:
        if self.supervisor is not None:
            assert self.supervisor.stop() == 0
            self.supervisor = None


def kill_saves(folder: Path, kills: int, seed: int, say: bool = False) -> tuple[Ends, int]:
    """How the saves ended, and the uploads that were left before the clean-up."""
    (folder / "store" / "bucket").mkdir(parents=True)
    server = start_devstore("--root", folder / "store", "--memory", "--latency-ms", "5", "--upload-mibps", "40/40")
    rounds = Rounds(folder, server, random.Random(seed))
    try:
        for number in range(kills):
            rounds.one(number)
            if say and number % 20 == 19:
                print(f"{number + 1} kills: {rounds.ends}, {uploads(server)} uploads under way")
        rounds.stop()
        left = uploads(server)
        clean: list[str | Path] = [BIN / "millrace", "clean", "-c", folder / "millrace.toml", "--all", "gs://bucket"]
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": server.url}
        subprocess.run(clean, env=environment, check=True, capture_output=not say)
        assert uploads(server) == 0
        with urllib.request.urlopen(f"{server.url}/storage/v1/b/bucket/o?prefix=dataflux") as answer:
            assert b'"items"' not in answer.read()
        return rounds.ends, left
    finally:
        if rounds.supervisor is not None:
            rounds.supervisor.process.kill()
            rounds.supervisor.process.wait()
        server.stop()


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    folder = Path(tempfile.mkdtemp())
    try:
        ends, left = kill_saves(folder, kills, seed, say=True)
    finally:
        shutil.rmtree(folder)
    print(f"seed {seed}: {kills} kills, {ends}; {left} uploads were left for the clean-up")


if __name__ == "__main__":
    main()
