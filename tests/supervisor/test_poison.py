"""An object that kills its fetch worker is given up after three deaths that it alone can have caused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S, StartServe, Supervisor, wait_for, workers

READER = """
    import millrace
    try:
        for batch in millrace.IterableDataset("gs://poison/", window=4).batches(1):
            pass
    except millrace.Error as error:
        print(error)
    else:
        print("all read")
"""


@pytest.fixture
def stalled(serve: StartServe, devstore: StartDevstore, tmp_path: Path) -> Supervisor:
    """One object, and a store that never sends its second half: the worker has it in flight for ever."""
    store = devstore("--synthetic", "poison:1:1000", "--fault", "stall:1")
    config = tmp_path / "poison.toml"
    config.write_text('[memory]\narena_bytes = "1MiB"\n[fetch]\nworkers = 1\n')
    return serve(config, STORAGE_EMULATOR_HOST=store.url)


def start_reader(one: Supervisor) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READER)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLRACE_SOCKET": str(one.socket)},
    )


def kill_while_filling(one: Supervisor, sig: int) -> None:
    wait_for(lambda: [lane["filling"] for lane in one.stat()["lanes"]] == [1], "nobody fetches")
    (pid,) = workers(one.process.pid, "fetch")
    os.kill(pid, sig)
    # Recovered, and another one in its place: which may fill the same ticket before anybody sees that it was pending.
    wait_for(lambda: set(workers(one.process.pid, "fetch")) - {pid}, "not started again")


@pytest.mark.random
def test_crashes_count(stalled: Supervisor) -> None:
    reader = start_reader(stalled)
    for _ in range(5):  # twice with anything, three times alone
        kill_while_filling(stalled, signal.SIGSEGV)
    out, _ = reader.communicate(timeout=DEADLINE_S)
    assert "killed the fetch worker 3 times" in out
    assert stalled.stop() == 0


@pytest.mark.random
def test_kills_never_count(stalled: Supervisor) -> None:
    reader = start_reader(stalled)
    for _ in range(7):
        kill_while_filling(stalled, signal.SIGKILL)
    wait_for(lambda: [lane["filling"] for lane in stalled.stat()["lanes"]] == [1], "given up")
    assert reader.poll() is None
    reader.kill()
    reader.communicate()
