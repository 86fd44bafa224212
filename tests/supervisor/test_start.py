"""What a program inherits at its start: closed descriptors, signals that are ignored or blocked."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BIN
from tests.serve import DEADLINE_S, listens, wait_for
from tests.supervisor.saver import Saver, make_bytes

CLOSED = [fds for n in range(4) for fds in itertools.combinations(range(3), n)]


def closing(*fds: int) -> Callable[[], None]:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    return close


def run_with(preexec: Callable[[], None], *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], preexec_fn=preexec, timeout=DEADLINE_S, capture_output=True, text=True
    )


@pytest.mark.parametrize("closed", CLOSED, ids=lambda fds: "".join(map(str, fds)) or "none")
@pytest.mark.parametrize("program", ["millrace --version", "millrace-worker", "millrace-devstore --help"])
def test_programs_start_with_closed_descriptors(program: str, closed: tuple[int, ...]) -> None:
    name, *arguments = program.split()
    done = run_with(closing(*closed), BIN / name, *arguments)
    cannot_print = name == "millrace" and 1 in closed
    assert done.returncode == (1 if cannot_print else run_with(closing(), BIN / name, *arguments).returncode)


@pytest.mark.parametrize("closed", CLOSED, ids=lambda fds: "".join(map(str, fds)) or "none")
def test_a_checkpoint_is_saved_with_closed_descriptors(
    closed: tuple[int, ...], millrace_bin: Path, config: Path, tmp_path: Path, runtime: Path
) -> None:
    socket = tmp_path / "s"
    command = [str(word) for word in (millrace_bin, "serve", "-q", "-c", config, "--socket", socket)]
    process = subprocess.Popen(command, preexec_fn=closing(*closed))
    try:
        wait_for(lambda: process.poll() is not None or listens(socket), "no socket")
        assert process.poll() is None
        saver = Saver(socket)
        saver.save(1, f"file://{tmp_path}/state", 1 << 20)
        assert saver.ok("wait", 1)[0] == "done"
        assert (tmp_path / "state").read_bytes() == make_bytes(1 << 20)
        saver.end()
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_sigchld_inherited_as_ignored(millrace_bin: Path, config: Path, runtime: Path) -> None:
    """And the command inherits what we did."""

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})

    def status(field: str, text: str) -> int:
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)), 16)

    run = [millrace_bin, "run", "-q", "-c", config, "--"]
    assert run_with(ignore, *run, "sh", "-c", "sleep 0.2; exit 3").returncode == 3
    done = run_with(ignore, *run, "cat", "/proc/self/status")
    assert done.returncode == 0, done.stderr
    assert status("SigIgn", done.stdout) & 1 << signal.SIGUSR1 - 1
    assert status("SigIgn", done.stdout) & 1 << signal.SIGCHLD - 1
    assert status("SigBlk", done.stdout) & 1 << signal.SIGTERM - 1
    assert status("SigBlk", done.stdout) & 1 << signal.SIGUSR2 - 1


def test_a_blocked_sigterm_ends_a_serving_supervisor(millrace_bin: Path, config: Path, tmp_path: Path) -> None:
    def block() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    socket = tmp_path / "s"
    command = [str(word) for word in (millrace_bin, "serve", "-q", "-c", config, "--socket", socket)]
    process = subprocess.Popen(command, preexec_fn=block, stdout=subprocess.DEVNULL)
    wait_for(lambda: listens(socket), "no socket")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


def limited(kind: int, limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (limit, limit))


def first_trouble(millrace: Path, config: Path, folder: Path, preexec: Callable[[], None]) -> str:
    """What a supervisor that cannot work has said when its data set fails, or it ends."""
    log, path = folder / "log", folder / "s"
    command = [str(word) for word in (millrace, "serve", "-q", "-c", config, "--socket", path)]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, preexec_fn=preexec, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        wait_for(lambda: process.poll() is not None or "error:" in log.read_text(), "it works, or says nothing")
    finally:
        process.kill()
        process.wait()
    return log.read_text()


@pytest.mark.parametrize("limit", [12, 16, 20, 24, 28])
def test_too_few_descriptors_are_said_as_such(millrace_bin: Path, config: Path, tmp_path: Path, limit: int) -> None:
    said = first_trouble(millrace_bin, config, tmp_path, limited(resource.RLIMIT_NOFILE, limit))
    for line in [line for line in said.splitlines() if "error:" in line]:
        assert f"Too many open files (at most {limit} in this process" in line and "ulimit -n" in line
    assert "arena_bytes" not in said and "/proc" not in said


def test_a_limit_on_files_below_the_arena_is_said_as_such(millrace_bin: Path, config: Path, tmp_path: Path) -> None:
    said = first_trouble(millrace_bin, config, tmp_path, limited(resource.RLIMIT_FSIZE, 1 << 20))
    assert "may have 1048576 bytes" in said and "ulimit -f" in said
    assert "arena_bytes" not in said
