"""What goes wrong around a run, each with a clear message and a documented exit status or exception; nothing hangs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Server, StartDevstore
from tests.e2e.common import make_bucket
from tests.serve import start_supervisor, strike

HANG_S = 100

READ_ALL = """
    import hashlib, sys, millrace
    ds = millrace.IterableDataset("gs://icons/", shuffle=False)
    n = 0
    for batch in ds.batches(8):
        for lease in batch:
            n += 1
            hashlib.sha256(lease).hexdigest()
    print("read", n)
"""

# Quick repeats, and few of them: giving up is decided by their number, not by the time that they took.
IMPATIENT = "[retry]\nbase_ms = 10\ncap_ms = 100\nattempts = 4\n"
# Only where the store stalls: on a busy machine a good answer may take its time.
STALLING = "[http]\nstall_timeout_ms = 2000\n"


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """40 objects of 10,000 to 10,039 bytes."""
    root, files = tmp_path / "store", tmp_path / "files"
    files.mkdir()
    for i in range(40):
        (files / f"{i:02}").write_bytes(random.Random(i).randbytes(10_000 + i))
    make_bucket(root, {f"o/{p.name}": p for p in files.iterdir()})
    return root


Attempt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def attempt(bucket: Path, devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> Attempt:
    """Reads the bucket through a supervisor with this configuration, from a store with these flags."""

    def run(toml: str = IMPATIENT, *flags: str, code: str = READ_ALL) -> subprocess.CompletedProcess[str]:
        server = devstore("--root", bucket, *flags)
        stalling = STALLING if any(flag.startswith("stall:") for flag in flags) else ""
        supervisor = start_supervisor(millrace_bin, tmp_path, server.url, toml + stalling)
        try:
            return python(code, supervisor.environment)
        finally:
            assert supervisor.stop() == 0

    return run


def expect(result: subprocess.CompletedProcess[str], exception: str, *words: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert exception in last, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def test_good(attempt: Attempt) -> None:
    result = attempt()
    assert result.stdout == "read 40\n", result.stderr


@pytest.mark.parametrize(
    "fault",
    ["reset:first=1", "stall:first=1", "short:first=1", "wrong:first=1", "status:first=1:503", "status:first=1:429"],
)
def test_passing_faults_are_repeated(attempt: Attempt, fault: str) -> None:
    result = attempt("[retry]\nbase_ms = 10\n", "--fault", fault)
    assert result.stdout == "read 40\n", result.stderr


@pytest.mark.parametrize(
    ("fault", "exception", "word"),
    [
        ("reset:1", "millrace.Error", "gs://icons/o/"),
        ("stall:1", "millrace.Error", "gs://icons/o/"),
        ("short:1", "millrace.Error", "gs://icons/o/"),
        ("wrong:1", "millrace.Error", "crc32c"),
        ("status:1:503:get:*", "millrace.Error", "503"),
        ("status:1:403:get:*", "PermissionError", "403"),
        ("changed:1", "millrace.ChangedError", "gs://icons/o/"),
    ],
)
def test_lasting_faults_end_in_an_exception(attempt: Attempt, fault: str, exception: str, word: str) -> None:
    result = attempt(IMPATIENT, "--fault", fault)
    expect(result, exception, word)


def test_missing_bucket(attempt: Attempt) -> None:
    result = attempt(code=READ_ALL.replace("gs://icons/", "gs://no-such-bucket/"))
    expect(result, "FileNotFoundError", "no-such-bucket")


def test_arena_smaller_than_one_object(attempt: Attempt, bucket: Path) -> None:
    (bucket / "icons" / "o" / "huge").write_bytes(bytes(40 << 20))
    result = attempt("[memory]\narena_bytes = '16MiB'\n")
    expect(result, "", "arena_bytes", "41943040")


def test_batch_larger_than_the_window(attempt: Attempt) -> None:
    result = attempt("[lanes]\nwindow = 8\n", code=READ_ALL.replace("batches(8)", "batches(33)"))
    assert result.stdout == "read 40\n", result.stderr


def test_no_server(bucket: Path, millrace_bin: Path, tmp_path: Path) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", IMPATIENT)
    try:
        result = python(READ_ALL, supervisor.environment)
    finally:
        assert supervisor.stop() == 0
    expect(result, "millrace.Error", "127.0.0.1 port 9")


def test_small_dev_shm(bucket: Path, devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    """backing = "posix" says what does not fit; "auto" goes to memfd."""
    server: Server = devstore("--root", bucket)
    for backing in ("posix", "auto"):
        config = tmp_path / f"{backing}.toml"
        config.write_text(f"[memory]\nbacking = '{backing}'\narena_bytes = '64MiB'\n")
        inner = f'"{millrace_bin}" run -c "{config}" -- "{sys.executable}" -c "$CODE"'
        result = subprocess.run(
            ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs /dev/shm && {inner}"],
            env={**os.environ, "STORAGE_EMULATOR_HOST": server.url, "CODE": textwrap.dedent(READ_ALL)},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        if backing == "auto":
            assert result.stdout == "read 40\n", result.stderr
        else:
            assert result.returncode == 1
            assert "/dev/shm" in result.stderr and "backing" in result.stderr, result.stderr


def test_run_folder_without_permission(millrace_bin: Path, tmp_path: Path) -> None:
    config = tmp_path / "empty.toml"
    config.write_text("")
    result = subprocess.run(
        [millrace_bin, "run", "-c", config, "--", "true"],
        env={**os.environ, "XDG_RUNTIME_DIR": "/proc/self"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 1
    assert "/proc/self" in result.stderr


def test_unknown_key(millrace_bin: Path, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text("[fetch]\nworker = 2\n")
    verbs = ["check", "-c", str(config)], ["run", "-c", str(config), "--", "true"], ["serve", "-c", str(config)]
    for verb in verbs:
        result = subprocess.run([millrace_bin, *verb], capture_output=True, text=True, timeout=HANG_S)
        assert result.returncode == 2
        assert "workers" in result.stderr and "line 2" in result.stderr, result.stderr


SLOW_READ = READ_ALL.replace("n += 1\n", "n += 1; print(n, flush=True); __import__('time').sleep(0.05)\n")


def test_supervisor_killed(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    """What is READY is still delivered; then an exception names the cause. The workers are gone."""
    server = devstore("--synthetic", "icons:5000:1000")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, "[lanes]\nwindow = 16\n")
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_READ)],
        env=supervisor.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "1\n"
    supervisor.process.send_signal(signal.SIGKILL)
    supervisor.process.wait()
    _, errors = trainer.communicate(timeout=HANG_S)
    assert trainer.returncode == 1
    assert "SupervisorGone" in errors.strip().splitlines()[-1], errors
    assert str(supervisor.process.pid) in errors


def test_everything_killed(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path) -> None:
    server = devstore("--synthetic", "icons:5000:1000")
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url)
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_READ)],
        env=supervisor.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "1\n"
    for pid in [trainer.pid, *supervisor.workers("fetch"), *supervisor.workers("list"), supervisor.process.pid]:
        strike(pid)
    trainer.communicate(timeout=HANG_S)
    supervisor.process.wait()
    # The fixtures compare /dev/shm and the processes with those before the test.
