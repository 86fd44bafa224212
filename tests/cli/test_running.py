"""`stat`, `top` and `reload` in another terminal: they find this user's supervisors by themselves."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serve import DEADLINE_S, wait_for


@pytest.fixture(autouse=True)
def _runtime_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' supervisors run at the same time."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r", numbered=True)))


@dataclass
class Serving:
    process: subprocess.Popen[str]
    socket: str

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def serving(program: Path, config: Path) -> Iterator[Serving]:
    """A supervisor with a run folder of its own."""
    process = subprocess.Popen(
        [str(program), "serve", "-c", str(config)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("MILLRACE_SOCKET="), line
    try:
        yield Serving(process, line.strip().partition("=")[2])
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        process.stdout.close()


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_only_one_is_found(millrace_bin: Path, config: Path) -> None:
    with serving(millrace_bin, config) as one:
        shown = run(millrace_bin, "stat")
        assert shown.returncode == 0, shown.stderr
        assert f"supervisor {one.pid} " in shown.stdout
        lines = run(millrace_bin, "top", "--count", "1")
        assert lines.returncode == 0 and "objects/s" in lines.stdout, lines.stderr
        again = run(millrace_bin, "reload")
        assert again.returncode == 0, again.stderr


def test_of_several_one_must_be_said(millrace_bin: Path, config: Path) -> None:
    with serving(millrace_bin, config) as one, serving(millrace_bin, config) as two:
        refused = run(millrace_bin, "stat")
        assert refused.returncode == 2
        assert "2 supervisors of yours run on this machine: say which: " in refused.stderr
        for each in (one, two):
            assert f"--socket {each.socket} (pid {each.pid}: " in refused.stderr
            assert f"serve -c {config})" in refused.stderr
            shown = run(millrace_bin, "stat", "--socket", each.socket)
            assert f"supervisor {each.pid} " in shown.stdout


def test_a_killed_one_is_not_found(millrace_bin: Path, config: Path) -> None:
    with serving(millrace_bin, config) as one:
        one.process.kill()
        one.process.wait(DEADLINE_S)
        assert Path(one.socket).exists()
        none = run(millrace_bin, "stat")
        assert none.returncode == 2
        assert "no supervisor of yours runs on this machine: start one with 'millrace run'" in none.stderr
        with serving(millrace_bin, config) as two:
            assert f"supervisor {two.pid} " in run(millrace_bin, "stat").stdout


def test_what_a_dead_ones_child_still_has_is_none(millrace_bin: Path, config: Path) -> None:
    """From its fork to its exec a worker has its supervisor's lock and socket, after a SIGKILL too."""
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "millrace" / "run-1"
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    (folder / "pid").write_text(f"{os.getpid()}\n")
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        none = run(millrace_bin, "stat")
        assert none.returncode == 2
        assert "no supervisor of yours runs on this machine" in none.stderr
        with serving(millrace_bin, config) as one:
            assert f"supervisor {one.pid} " in run(millrace_bin, "stat").stdout
    os.close(lock)


def test_a_run_around_a_command_is_found(millrace_bin: Path, config: Path) -> None:
    process = subprocess.Popen(
        [str(millrace_bin), "run", "-c", str(config), "--", "sleep", "1000"], stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: run(millrace_bin, "stat").returncode == 0, "the run is not found")
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_other_folders_are_left_alone(millrace_bin: Path, config: Path) -> None:
    base = Path(os.environ["XDG_RUNTIME_DIR"]) / "millrace"
    base.mkdir(mode=0o700)
    (base / "run-nobody").mkdir()
    (base / "run-file").write_text("no folder")
    (base / "else").mkdir()
    with serving(millrace_bin, config) as one:
        (base / "run-link").symlink_to(Path(one.socket).parent)
        assert f"supervisor {one.pid} " in run(millrace_bin, "stat").stdout
