"""A store that is busy or fails, seen from outside: `millrace stat` and `millrace reload` (docs/retries.md)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import StartDevstore
from tests.e2e.proxy import Proxy
from tests.serve import DEADLINE_S, Supervisor, start_supervisor, wait_for

READ = """
    import millrace
    ds = millrace.IterableDataset("gs://icons/", shuffle=False)
    print(sum(len(batch) for epoch in range(3) for batch in ds.batches(8)))
"""


@contextlib.contextmanager
def reading(
    millrace_bin: Path, folder: Path, url: str, toml: str
) -> Iterator[tuple[Supervisor, subprocess.Popen[str]]]:
    """A supervisor with one fetch worker, and READ in a process beside it."""
    supervisor = start_supervisor(millrace_bin, folder, url, toml)
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READ)],
        env=supervisor.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield supervisor, reader
    finally:
        reader.kill()
        assert supervisor.stop() == 0


def fetch_counters(supervisor: Supervisor) -> dict[str, Any]:
    """Of the only fetch worker; {} before it has counted anything."""
    found: list[dict[str, Any]] = [w["counters"] for w in supervisor.stat()["workers"] if w["role"] == "fetch"]
    return found[0] if found else {}


def test_a_worker_sends_what_the_store_takes(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    """Of a store that answers 429 above a rate few requests are refused, and all objects come."""
    server = devstore("--synthetic", "icons:70:1000", "--fault", "status:over=50:429:get:*")
    toml = "[fetch]\nworkers = 1\ncompose = 'never'\n[retry]\nbase_ms = 10\ncap_ms = 200\n"
    with reading(millrace_bin, tmp_path, server.url, toml) as (supervisor, reader):
        wait_for(lambda: fetch_counters(supervisor).get("request_rate", 0) > 0)
        assert fetch_counters(supervisor)["request_rate"] < 200
        wait_for(lambda: fetch_counters(supervisor)["fetched_objects"] >= 150)
        counters = fetch_counters(supervisor)
        assert 0 < counters["throttled"] < 75
        output, errors = reader.communicate(timeout=DEADLINE_S)
        assert output == "210\n", errors
        assert counters["failed_objects"] == 0
        assert counters["stall_ms"] > 0


def test_a_store_that_refuses_all_is_well_again(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    """503 while it is out of order: few are sent meanwhile, and all that it can do afterwards."""
    busy = devstore("--synthetic", "icons:40:1000", "--fault", "status:1:503:get:*")
    well = devstore("--synthetic", "icons:40:1000")
    toml = "[fetch]\nworkers = 1\nconnections = 8\n[retry]\nbase_ms = 10\ncap_ms = 200\n"
    with Proxy(busy.port) as proxy, reading(millrace_bin, tmp_path, proxy.url, toml) as (supervisor, reader):
        wait_for(lambda: fetch_counters(supervisor).get("connection_limit") == 1)
        proxy.upstream = well.port
        output, errors = reader.communicate(timeout=DEADLINE_S)
        assert output == "120\n", errors
        wait_for(lambda: fetch_counters(supervisor).get("connection_limit") == 8)
        counters = fetch_counters(supervisor)
        assert counters["throttled"] > 0
        assert counters["failed_objects"] == 0


def test_reload_applies_retries_to_what_is_under_way(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path
) -> None:
    """A reader waits for a store that only fails; with a shorter deadline it gets the error."""
    server = devstore("--synthetic", "icons:40:1000", "--fault", "status:1:503:get:*")
    toml = "[fetch]\nworkers = 1\n[memory]\narena_bytes = '16MiB'\n"
    slow = toml + "[retry]\nbase_ms = 100\ncap_ms = 300\n"
    with reading(millrace_bin, tmp_path, server.url, slow) as (supervisor, reader):
        wait_for(lambda: fetch_counters(supervisor).get("throttled", 0) > 5)
        assert reader.poll() is None
        retry = "[retry]\nbase_ms = 20\ncap_ms = 50\ndeadline_ms = 500\nattempts = 5\n"
        (tmp_path / "millrace.toml").write_text(toml + retry)
        command: list[str | Path] = [millrace_bin, "reload", "--socket", supervisor.socket]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
        applied = result.stdout.removeprefix("applied: ").strip().split(", ")
        assert set(applied) == {"retry.attempts", "retry.base_ms", "retry.cap_ms", "retry.deadline_ms"}, result.stdout
        errors = reader.communicate(timeout=DEADLINE_S)[1]
        assert "503" in errors, errors


def test_the_egress_limit_is_told_with_what_to_do(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    server = devstore("--synthetic", "icons:8:1000", "--fault", "egress:first=1:0:get:*")
    toml = "[fetch]\nworkers = 1\n[memory]\narena_bytes = '16MiB'\n[retry]\nbase_ms = 10\ncap_ms = 200\n"
    with reading(millrace_bin, tmp_path, server.url, toml) as (supervisor, reader):
        output, errors = reader.communicate(timeout=DEADLINE_S)
        assert output == "24\n", errors
        wait_for(lambda: fetch_counters(supervisor).get("egress_limited", 0) >= 8)
    told = [line for line in supervisor.log.read_text().splitlines() if "egress" in line]
    assert len(told) == 1 and "Quotas & System Limits" in told[0], told
