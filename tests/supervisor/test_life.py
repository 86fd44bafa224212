"""Start and end: signals, exit statuses, what is left behind, run folders."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve import (
    DEADLINE_S,
    StartServe,
    Supervisor,
    alive,
    children,
    kill_and_wait,
    launch,
    listens,
    processes,
    wait_for,
    workers,
)

from .test_workers import MakeProgram, with_worker

__all__ = ["with_worker"]  # a fixture


def run(millrace: Path, config: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [millrace, "run", "-q", "-c", config, "--", *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        input=stdin,
    )


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_serve_ends_by_a_signal(serve: StartServe, config: Path, sig: int) -> None:
    one = serve(config)
    one.wait_ready()
    started = list(children(one.process.pid))
    assert workers(one.process.pid, "fetch")
    assert one.stop(sig) == 0
    assert not any(alive(pid) for pid in started)
    assert not one.socket.exists()


def test_serve_prints_its_socket(millrace_bin: Path, config: Path, runtime: Path) -> None:
    process = subprocess.Popen([millrace_bin, "serve", "-q", "-c", config], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name, _, path = process.stdout.readline().strip().partition("=")
    assert name == "MILLRACE_SOCKET"
    folder = Path(path).parent
    assert folder.parent == runtime / "millrace"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert int((folder / "pid").read_text()) == process.pid
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert not folder.exists()


def test_a_relative_socket(millrace_bin: Path, config: Path, tmp_path: Path) -> None:
    """Its command may go to another folder."""
    inside = 'cd / && echo "$MILLRACE_SOCKET" && "$0" stat'
    command = [millrace_bin, "run", "-q", "-c", config, "--socket", "here", "--", "sh", "-c", inside, millrace_bin]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{tmp_path}/here"


def test_serve_without_a_standard_output(millrace_bin: Path, config: Path, tmp_path: Path) -> None:
    """Its socket is known by other ways as well: a warning."""
    command = [str(word) for word in (millrace_bin, "serve", "-q", "-c", config, "--socket", tmp_path / "socket")]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        assert any(f"was to have MILLRACE_SOCKET={tmp_path}/socket" in line for line in process.stderr)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


def test_two_supervisors_side_by_side(serve: StartServe, config: Path) -> None:
    first, second = serve(config), serve(config)
    first.wait_ready()
    second.wait_ready()
    assert first.stop() == 0
    assert second.stat()["state"] == "running"
    assert second.stop() == 0


def test_socket_in_use(serve: StartServe, config: Path, millrace_bin: Path) -> None:
    one = serve(config)
    again = subprocess.run(
        [millrace_bin, "serve", "-c", config, "--socket", one.socket],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert again.returncode == 1
    assert "a supervisor listens there" in again.stderr
    assert one.stat()["state"] == "running"


def test_a_socket_of_another_one_is_left(serve: StartServe, config: Path, millrace_bin: Path, tmp_path: Path) -> None:
    first = serve(config)
    first.wait_ready()
    first.socket.unlink()
    second = launch(millrace_bin, config, first.socket, tmp_path / "second.log")
    try:
        second.wait_ready()
        assert first.stop() == 0
        assert second.stat()["state"] == "running"
    finally:
        second.kill()


def test_several_that_find_a_socket_of_a_dead_one(millrace_bin: Path, config: Path, tmp_path: Path) -> None:
    """One of them has it, and the others end."""
    path = tmp_path / "socket"
    for _ in range(5):
        left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        left.bind(str(path))
        left.close()
        command = [str(word) for word in (millrace_bin, "serve", "-q", "-c", config, "--socket", path)]
        ones = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
        try:
            wait_for(lambda: sum(one.poll() is None for one in ones) <= 1, "several serve")  # noqa: B023
            for one in ones:
                if one.poll() is None:
                    assert one.stdout is not None
                    assert one.stdout.readline() and listens(path)
                    one.terminate()
                    assert one.wait(DEADLINE_S) == 0
        finally:
            for one in ones:
                one.kill()
                one.communicate()
        assert sorted(one.returncode for one in ones) == [0, 1, 1]
        assert not path.exists()


def test_killed_supervisor(serve: StartServe, config: Path) -> None:
    """Its workers go with it; the next one takes over the socket's path."""
    one = serve(config)
    one.wait_ready()
    started = list(children(one.process.pid))
    assert started
    one.process.kill()
    one.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in started), "workers outlive the supervisor")
    assert one.socket.exists()
    one.socket.rename(one.socket.with_name("socket1"))
    two = serve(config)  # at socket1, where nobody listens any more
    two.wait_ready()
    assert two.stop() == 0


def test_a_socket_that_only_a_dead_ones_child_has(serve: StartServe, config: Path, tmp_path: Path) -> None:
    """From its fork to its exec a worker has its supervisor's socket: after a SIGKILL in between, for a while."""
    path = tmp_path / "socket0"
    code = f"""if True:
        import os, socket, sys
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind({str(path)!r})
        listener.listen()
        if os.fork() == 0:
            sys.stdin.read()
        os._exit(0)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as dead:
        assert dead.wait(DEADLINE_S) == 0
        assert listens(path)
        one = serve(config)
        one.wait_ready()
        assert one.stat()["pid"] == one.process.pid
        assert one.stop() == 0


def test_a_killed_run_leaves_a_folder_that_the_next_one_removes(
    millrace_bin: Path, config: Path, runtime: Path
) -> None:
    base = runtime / "millrace"
    script = "import os, signal, sys; os.kill(os.getppid(), signal.SIGKILL)"
    killed = run(millrace_bin, config, sys.executable, "-c", script)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(base.glob("run-*"))) == 1
    listed = run(millrace_bin, config, "sh", "-c", f"ls {base}")
    assert listed.returncode == 0
    names = [name for name in listed.stdout.split() if name != "runs"]
    assert names == [name for name in names if name.startswith("run-")]
    assert len(names) == 1, "the killed one's folder is gone while the next one runs"
    assert list(base.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
def test_two_runs_of_one_number(millrace_bin: Path, config: Path) -> None:
    """In two containers that share the folder of run folders. `millrace stat` finds the one of its container."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*inside, str(millrace_bin), "run", "-q", "-c", str(config), "--", "sh", "-c"]
    script = f"echo started; read line; env -u MILLRACE_SOCKET {millrace_bin} stat"
    first, second = (
        subprocess.Popen([*command, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    try:
        for one in (first, second):
            assert one.stdout is not None and one.stdout.readline() == "started\n"
        said = [one.communicate("\n", timeout=DEADLINE_S)[0].splitlines()[0] for one in (first, second)]
        assert all(line.startswith("supervisor 1 ") for line in said) and said[0] != said[1]  # each has a run's id
    finally:
        for one in (first, second):
            one.kill()
            one.wait()


def test_stopped_worker_is_killed_in_the_end(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    for pid in workers(one.process.pid, "fetch"):
        os.kill(pid, signal.SIGSTOP)
    assert one.stop() == 0
    assert "did not end within" in one.log.read_text()


def test_a_second_signal_stops_at_once(serve: StartServe, config: Path) -> None:
    def is_stopped_at_once() -> bool:
        one = serve(config)
        one.wait_ready()
        for pid in workers(one.process.pid, "fetch"):
            os.kill(pid, signal.SIGSTOP)
        one.process.terminate()
        wait_for(lambda: "ending" in one.log.read_text(), "it does not end")
        one.process.terminate()
        assert one.process.wait(DEADLINE_S) == 0
        return "stopping at once" in one.log.read_text()

    # The second one comes too late if we do not run for three seconds.
    assert any(is_stopped_at_once() for _ in range(3))


# ---- run ----


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_run_gives_the_status_of_the_command(millrace_bin: Path, config: Path, runtime: Path, status: int) -> None:
    assert run(millrace_bin, config, "sh", "-c", f"exit {status}").returncode == status


def test_run_of_a_killed_command(millrace_bin: Path, config: Path, runtime: Path) -> None:
    assert run(millrace_bin, config, "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_run_of_no_command(millrace_bin: Path, config: Path, runtime: Path, tmp_path: Path) -> None:
    missing = run(millrace_bin, config, "/no/such/program")
    assert missing.returncode == 127
    assert "/no/such/program" in missing.stderr
    plain = tmp_path / "plain"
    plain.write_text("")
    assert run(millrace_bin, config, str(plain)).returncode == 126
    assert run(millrace_bin, config).returncode == 2


def test_run_passes_arguments_and_streams(millrace_bin: Path, config: Path, runtime: Path) -> None:
    result = run(millrace_bin, config, "sh", "-c", 'cat; echo "$1"; echo err >&2', "sh", "a b", stdin="in")
    assert result.stdout == "ina b\n"
    assert result.stderr == "err\n"


def test_run_sets_the_socket(millrace_bin: Path, config: Path, runtime: Path) -> None:
    result = run(millrace_bin, config, "sh", "-c", f"{millrace_bin} stat --json; test -S $MILLRACE_SOCKET")
    assert result.returncode == 0
    assert '"state": "running"' in result.stdout


SHOW_SIGNALS = """
import os, signal, sys
# Blocked, and taken one by one: a handler would wait until pause() returns if its signal comes just before the call.
shown = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
assert not signal.pthread_sigmask(signal.SIG_BLOCK, shown)  # the supervisor's own mask is not passed on
os.write(1, b"ready\\n")
while True:
    number = signal.sigwait(shown)
    os.write(1, (signal.Signals(number).name + "\\n").encode())
    if number == signal.SIGTERM:
        sys.exit(3)
"""


def show_signals(program: Path, config: Path, become: Callable[[], object]) -> subprocess.Popen[str]:
    """A `millrace run` of it that is ready. os.setsid: an orphaned process group; os.setpgrp: a job of a shell."""
    process = subprocess.Popen(
        [program, "run", "-q", "-c", config, "--", sys.executable, "-c", SHOW_SIGNALS],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=become,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_run_passes_signals_on(millrace_bin: Path, config: Path, runtime: Path) -> None:
    process = show_signals(millrace_bin, config, os.setsid)
    assert process.stdout is not None
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM"):
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == f"{name}\n"
    assert process.wait(DEADLINE_S) == 3
    process.stdout.close()


def test_run_says_that_its_command_does_not_end(millrace_bin: Path, config: Path, runtime: Path) -> None:
    config.write_text(config.read_text() + "[supervisor]\nsilence_ms = 300\n")
    program = "import os, signal; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); signal.pause()"
    process = subprocess.Popen(
        [millrace_bin, "run", "-q", "-c", config, "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    pid = int(process.stdout.readline())
    process.terminate()
    line = next(line for line in process.stderr if "has not ended" in line)
    assert f"(pid {pid}) has not ended 0.3 s after SIGTERM" in line and f"kill -KILL {pid}" in line
    os.kill(pid, signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 128 + signal.SIGKILL
    process.stdout.close()
    process.stderr.close()


def test_run_leaves_the_terminal_signals_to_the_terminal(millrace_bin: Path, config: Path, runtime: Path) -> None:
    """Ctrl-C at a terminal: the command gets it once, from the kernel; workers do not get it at all."""
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, fcntl, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "os.execv(sys.argv[1], sys.argv[1:])",
            str(millrace_bin),
            "run",
            "-q",
            "-c",
            str(config),
            "--",
            sys.executable,
            "-c",
            SHOW_SIGNALS,
        ],
        stdin=follower,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(follower)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    fetching = wait_for(lambda: workers(process.pid, "fetch"), "no fetch worker")
    os.write(leader, b"\x03")
    assert process.stdout.readline() == "SIGINT\n"
    process.send_signal(signal.SIGUSR1)  # a second SIGINT would come before it
    assert process.stdout.readline() == "SIGUSR1\n"
    assert set(fetching) <= set(workers(process.pid, "fetch"))
    process.terminate()
    assert process.stdout.readline() == "SIGTERM\n"
    assert process.wait(DEADLINE_S) == 3
    process.stdout.close()
    os.close(leader)


def test_run_stops_and_continues_with_its_command(millrace_bin: Path, config: Path, runtime: Path) -> None:
    """Ctrl-Z: the shell waits for millrace to stop."""
    process = show_signals(millrace_bin, config, os.setpgrp)
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGTSTP)
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    process.terminate()
    assert process.wait(DEADLINE_S) == 3
    process.stdout.close()


def test_ctrl_z_where_no_shell_could_continue_it(millrace_bin: Path, config: Path, runtime: Path) -> None:
    """An orphaned process group, as `ssh -t HOST millrace run` has: the kernel stops no command there."""
    process = show_signals(millrace_bin, config, os.setsid)
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGTSTP)
    process.terminate()
    seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    if seen is not None and seen.si_code == os.CLD_STOPPED:
        process.kill()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 3


def test_nohup(millrace_bin: Path, config: Path, runtime: Path) -> None:
    """A hang-up that is ignored at the start is ignored by all."""
    script = "kill -HUP $PPID; kill -HUP $$; sleep 0.2; echo alive"
    result = subprocess.run(
        ["nohup", millrace_bin, "run", "-q", "-c", config, "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "alive\n"


def test_in_the_background_of_a_script(serve: StartServe, config: Path, with_worker: MakeProgram) -> None:
    """A shell starts it with SIGINT and SIGQUIT ignored: a Ctrl-C is for the script alone."""
    ignoring = with_worker("")
    real = ignoring.rename(ignoring.with_name("real"))
    ignoring.write_text(f"#!/bin/sh\ntrap '' INT QUIT\nexec {real} \"$@\"\n")
    ignoring.chmod(0o755)
    one = serve(config, program=ignoring)
    for number in (signal.SIGINT, signal.SIGQUIT):
        one.process.send_signal(number)
    assert one.stop() == 0
    assert "ending: signal TERM" in one.log.read_text()


# ---- run folders ----


def test_run_folder_of_others(millrace_bin: Path, config: Path, runtime: Path) -> None:
    (runtime / "millrace").mkdir(mode=0o755)
    (runtime / "millrace").chmod(0o755)
    result = run(millrace_bin, config, "true")
    assert result.returncode == 1
    assert "0700" in result.stderr
    assert "XDG_RUNTIME_DIR" in result.stderr


def test_run_folder_that_is_a_link(millrace_bin: Path, config: Path, runtime: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (runtime / "millrace").symlink_to(target)
    assert run(millrace_bin, config, "true").returncode == 1


def test_run_folder_cannot_be_made(
    millrace_bin: Path, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    result = run(millrace_bin, config, "true")
    assert result.returncode == 1
    assert "cannot make the run folder" in result.stderr


def test_socket_path_too_long(millrace_bin: Path, config: Path, tmp_path: Path, runtime: Path) -> None:
    path = tmp_path / ("x" * 120)
    result = subprocess.run(
        [millrace_bin, "serve", "-c", config, "--socket", path], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert result.returncode == 2
    assert "107" in result.stderr


# ---- private ----


def start_private(millrace: Path, folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([millrace, "serve", "-q", "--private", "--run-dir", folder])
    wait_for(lambda: (folder / "socket").exists(), "no socket")
    return process


def test_private_ends_with_its_last_client(millrace_bin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir(mode=0o700)
    process = start_private(millrace_bin, folder)
    environment = {**os.environ, "MILLRACE_SOCKET": str(folder / "socket")}
    code = "import millrace, time; d = millrace.IterableDataset('/etc/'); print(d.digest, flush=True); time.sleep(600)"
    client = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline()
    tool = subprocess.run([millrace_bin, "stat"], env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "limited by" in tool.stdout
    time.sleep(2.5)  # longer than it waits after its last client: the tool was not that
    assert process.poll() is None
    client.kill()
    client.wait()
    client.stdout.close()
    assert process.wait(DEADLINE_S) == 0
    assert not folder.exists()


def test_a_standard_error_that_nobody_reads(millrace_bin: Path, config: Path, tmp_path: Path, runtime: Path) -> None:
    """A paused pager, Ctrl-S, a full pipe: the run goes on, and the log says afterwards what it has lost."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    socket = tmp_path / "s"
    command = [str(word) for word in (millrace_bin, "serve", "-vv", "-c", config, "--socket", socket)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writing)
    os.close(writing)
    one = Supervisor(process, socket, tmp_path / "none", millrace_bin)
    wait_for(lambda: listens(socket), "no socket")
    one.wait_ready()
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    os.close(reading)


# ---- process 1 ----


def states(parent: int) -> dict[int, tuple[str, str]]:
    """pid -> name and state of each child, dead ones too."""
    return {pid: (name, fields[0]) for pid, name, fields in processes() if int(fields[1]) == parent}


# Process 1 of a container; a process that took the orphans of its own over and became `millrace run`; a shell that has
# children of its own when it does.
ADOPTING = {
    "process 1": ["unshare", "-rpf", "--kill-child"],
    "subreaper": [
        *(sys.executable, "-c"),
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])",
    ],
    "shell": ["sh", "-c", 'sleep 301 & sleep 302 & exec "$@"', "sh"],
}


@pytest.mark.parametrize("kind", list(ADOPTING))
def test_orphans_are_reaped_behind_our_own_children(
    millrace_bin: Path, config: Path, tmp_path: Path, kind: str
) -> None:
    """Two orphans and a worker end while the supervisor is stopped, the worker before it looks: its zombie stands in
    front of the orphans', and no other SIGCHLD comes."""
    go = tmp_path / "go"
    later = f"while [ ! -e {go} ]; do sleep 0.05; done; (sleep 301 &); (sleep 302 &); exec sleep 300"
    script = "exec sleep 300" if kind == "shell" else later
    run = [str(millrace_bin), "run", "-c", str(config), "--", "sh", "-c", script]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*ADOPTING[kind], *run], stderr=log)
    pid = process.pid
    try:
        if kind == "process 1":
            (pid,) = wait_for(lambda: list(states(process.pid)))

        def sleeps() -> list[int]:
            return [child for child, words in children(pid).items() if words[1:2] in (["301"], ["302"])]

        wait_for(lambda: workers(pid, "fetch"), lambda: (tmp_path / "log").read_text())
        go.touch()
        wait_for(lambda: len(sleeps()) == 2)
        first, second = sleeps()
        os.kill(pid, signal.SIGSTOP)
        for victim in (first, workers(pid, "fetch")[0], second):
            kill_and_wait(victim)
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not {first, second} & set(states(pid)), lambda: f"zombies: {states(pid)}")
    finally:
        for child in [*children(pid), pid, process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait(DEADLINE_S)
