"""How far a reader looks ahead when nobody says: as far as a store's latency needs (docs/tuning.md)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import StartDevstore
from tests.serve import start_supervisor, wait_for

READ = """
    import millrace
    ds = millrace.IterableDataset("gs://icons/", shuffle=False)
    while True:
        for sample in ds:
            pass
"""


def window_of_a_reader(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, toml: str, latency_ms: int) -> int:
    """Its largest, once it has read four times as much as it may look ahead."""
    server = devstore("--synthetic", "icons:20000:100", "--latency-ms", f"get:{latency_ms}")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, "[fetch]\ncompose = 'never'\n" + toml)
    reader = subprocess.Popen([sys.executable, "-c", textwrap.dedent(READ)], env=supervisor.environment)
    largest = 0

    def has_read() -> bool:
        nonlocal largest
        lanes = supervisor.stat()["lanes"]
        largest = max([largest, *(lane["window"] for lane in lanes)])
        return largest == 1024 or any(lane["counters"]["samples"] >= 4096 for lane in lanes)

    try:
        wait_for(has_read)
        return largest
    finally:
        reader.kill()
        reader.wait()
        assert supervisor.stop() == 0


def test_it_grows_while_the_reader_waits(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    assert window_of_a_reader(devstore, millrace_bin, tmp_path, "", 50) > 256


def test_a_number_stays_a_number(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    assert window_of_a_reader(devstore, millrace_bin, tmp_path, "[lanes]\nwindow = 128\n", 50) == 128
