"""Kills fetch workers and whole runs while objects are composed; afterwards a run that ends well must leave nothing.

    python -m tests.e2e.compose_kills [KILLS] [SEED]        (200 kills: about two minutes)

Every kill is SIGKILL at a random moment: of one fetch worker, which the supervisor starts again; of the supervisor,
with which all workers die; or SIGTERM to the supervisor and SIGKILL to the workers while they clean up.
test_compose_kills.py runs a few.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import BIN, start_devstore
from tests.e2e.test_compose import READER
from tests.serve import Supervisor, start_supervisor
from tests.stores import temporary

TOML = '[fetch]\ncompose = "always"\n[retry]\nbase_ms = 5\ncap_ms = 50\n'
OBJECTS = 20_000
KILLS_A_RUN = 8


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def start_reader(supervisor: Supervisor, epochs: int) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, READER, "gs://many/", str(epochs)]
    return subprocess.Popen(
        command, env=supervisor.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def one_run(rng: random.Random, supervisor: Supervisor, kills: int) -> int:
    """Kills within a run, the last time all of it."""
    done = 0
    reader = start_reader(supervisor, 1000)
    assert reader.stderr is not None
    try:
        while "begun" not in reader.stderr.readline():
            assert reader.poll() is None
        while done < kills - 1:
            time.sleep(rng.uniform(0, 0.15))
            workers = supervisor.workers("fetch")
            if workers:
                done += kill(rng.choice(workers))
        time.sleep(rng.uniform(0, 0.15))
        if rng.random() < 0.3:  # at its end
            supervisor.process.send_signal(signal.SIGTERM)
            time.sleep(rng.uniform(0, 0.03))
            for worker in supervisor.workers("fetch"):
                kill(worker)
        done += kill(supervisor.process.pid)
    finally:
        reader.kill()
        reader.communicate()
        supervisor.process.kill()
        supervisor.process.wait()
    return done


def kill_runs(folder: Path, kills: int, seed: int, say: bool = False) -> tuple[int, list[str], int]:
    """(kills, names left after a later run, most that were left before it)."""
    rng = random.Random(seed)
    server = start_devstore("--synthetic", f"many:{OBJECTS}:100-4000", "--latency-ms", "3")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": str(runtime)}
    done, most, run = 0, 0, 0
    try:
        while done < kills:
            here = folder / f"run-{run}"
            here.mkdir()
            supervisor = start_supervisor(BIN / "millrace", here, server.url, TOML, **environment)
            done += one_run(rng, supervisor, min(KILLS_A_RUN, kills - done))
            left = len(temporary(server.url, "many"))
            most, run = max(most, left), run + 1
            if say:
                print(f"{done} kills, {left} temporary objects in the bucket")
        supervisor = start_supervisor(BIN / "millrace", folder, server.url, TOML, **environment)
        try:
            reader = start_reader(supervisor, 1)
            _, errors = reader.communicate(timeout=120)
            assert reader.returncode == 0, errors
        finally:
            assert supervisor.stop() == 0
        return done, temporary(server.url, "many"), most
    finally:
        server.stop()


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    folder = Path(tempfile.mkdtemp())
    try:
        done, left, most = kill_runs(folder, kills, seed, say=True)
    finally:
        shutil.rmtree(folder)
    print(f"seed {seed}: {done} kills, up to {most} temporary objects left by them, {len(left)} after a later run")
    sys.exit(1 if left or most == 0 else 0)


if __name__ == "__main__":
    main()
