"""`millrace top`: lines in a pipe, a screen on a terminal, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S, StartServe, Supervisor, start_supervisor, wait_for

LINE = re.compile(
    r"\d\d:\d\d:\d\d +\d+ objects/s +[\d.]+ MiB/s +\d+ of \d+ in flight +arena +\d+%  \d+ readers +\d+ samples/s "
    r"waiting +\d+%  \d+ retries \d+ throttled  limited by .+"
)
SCREEN_ON, SCREEN_OFF = b"\033[?1049h", b"\033[?1049l"


@pytest.fixture
def server(serve: StartServe, config: Path) -> Supervisor:
    one = serve(config)
    one.wait_ready()
    return one


class Terminal:
    """`millrace top` on a pseudo-terminal: what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self.master, self.seen = process, master, b""

    def read_until(self, part: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while part not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                with suppress(OSError):  # EIO: the other end is closed
                    self.seen += os.read(self.master, 65536)

    def frame(self) -> str:
        """The next screen, without what moves the cursor."""
        self.seen = b""
        while self.seen.count(b"\033[H") < 2:
            self.read_until(b"\033[J")
            self.seen += os.read(self.master, 65536)
        screen = self.seen.split(b"\033[H")[1].replace(b"\r", b"").decode(errors="replace")
        return "\n".join(line.rstrip() for line in re.sub(r"\033\[[0-9]*[A-Z]", "", screen).split("\n"))

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def terminal(
    program: Path,
    server: Supervisor,
    rows: int = 40,
    columns: int = 120,
    shell: Sequence[str] = (),
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    settings = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [*shell, program, "top", "--socket", server.socket, "--interval", "0.1"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, master)
        assert termios.tcgetattr(slave) == settings
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def call_of(pid: int) -> list[str]:
    """The number and the arguments of the system call that it waits in; ["running"]."""
    return [*Path(f"/proc/{pid}/syscall").read_text().split(), "", "", "", ""][:5]


def waits_for_output(pid: int) -> bool:
    """It is in a write to standard output, or in a ppoll without an end."""
    call = call_of(pid)
    return call[1] == "0x1" or call[3] == "0x0"


def waits_for_an_answer(pid: int) -> bool:
    """It polls two descriptors: the supervisor's socket and its process."""
    return call_of(pid)[2] == "0x2"


def test_lines_in_a_pipe(millrace_bin: Path, server: Supervisor) -> None:
    command = [str(millrace_bin), "top", "--socket", str(server.socket), "--count", "3", "--interval", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert lines[-1].endswith("limited by nothing: no reader is open")


def test_screen(millrace_bin: Path, server: Supervisor) -> None:
    with terminal(millrace_bin, server) as top:
        top.read_until(b"fetch 1")
        assert top.seen.startswith(SCREEN_ON)
        for part in (b"limited by nothing: no reader is open", b"train", b"18.6 KiB", b"0/16 growing"):
            assert part in top.seen
        os.write(top.master, b"q")
        top.read_until(SCREEN_OFF)
        assert top.process.wait(DEADLINE_S) == 0


def test_screen_of_another_size(millrace_bin: Path, server: Supervisor) -> None:
    with terminal(millrace_bin, server) as top:
        top.read_until(b"fetch 1")
        top.seen = b""
        top.size(4, 20)
        end = b"\r\n...\033[K\033[J"
        top.read_until(end)
        shown = top.seen[: top.seen.index(end) + len(end)]  # a late look sees the beginning of the next screen too
        last = shown[shown.rindex(b"\033[H") :]
        rows = re.sub(rb"\033\[[0-9]*[A-Z]", b"", last).split(b"\r\n")
        assert len(rows) == 4
        assert max(map(len, rows)) <= 20
        os.write(top.master, b"q")
        assert top.process.wait(DEADLINE_S) == 0


JOB = """
import time
import millrace
loader = millrace.DataLoader(millrace.IterableDataset("gs://bucket", transform=len), batch_size=4, num_workers=1)
while True:
    for batch in loader:
        time.sleep(0.02)
"""


def test_a_job(millrace_bin: Path, tmp_path: Path, devstore: StartDevstore) -> None:
    """A tall screen has the DataLoader workers too; on a small one columns are whole, or not there."""
    server = start_supervisor(millrace_bin, tmp_path, devstore("--synthetic", "bucket:2000:2000").url, "")
    job = subprocess.Popen([sys.executable, "-c", JOB], cwd=tmp_path, env=server.environment)
    try:
        with terminal(millrace_bin, server, 60, 200) as top:
            row = re.compile(r"^rank worker batches/s .* CPU\n0 +0 +[1-9]\d*\.\d .*%$", re.M)
            wait_for(lambda: row.search(top.frame()), "no DataLoader worker is shown")
            top.size(24, 80)
            titles = r"^rank  step ms  waits  for +store transform collate transport$"
            wait_for(lambda: re.search(titles, top.frame(), re.M), "the ranks' table has other columns")
            lines = top.frame().split("\n")
            assert len(lines) <= 24 and max(map(len, lines)) <= 80
            assert [line for line in lines if line.endswith("retries throttled")]
            os.write(top.master, b"q")
            top.read_until(SCREEN_OFF)
            assert top.process.wait(DEADLINE_S) == 0
    finally:
        job.kill()
        job.wait()
        server.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_restores_the_terminal(millrace_bin: Path, server: Supervisor, number: int) -> None:
    with terminal(millrace_bin, server) as top:
        top.read_until(b"fetch 1")
        if number == signal.SIGINT:
            os.write(top.master, b"\x03")  # Ctrl-C
        else:
            top.process.send_signal(number)
        top.read_until(SCREEN_OFF)
        assert top.process.wait(DEADLINE_S) == 0


def test_a_stopped_supervisor_does_not_keep_it(millrace_bin: Path, server: Supervisor) -> None:
    with terminal(millrace_bin, server) as top:
        top.read_until(b"fetch 1")
        server.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: not select.select([top.master], [], [], 1)[0] or not os.read(top.master, 65536))
            os.write(top.master, b"\x03")
            assert top.process.wait(DEADLINE_S) == 0  # 1: supervisor.silence_ms is over
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_suspended(millrace_bin: Path, server: Supervisor) -> None:
    """Ctrl-Z gives the terminal back to the shell; `bg` leaves it there, and `fg` begins the screen anew."""
    script = '"$@"; echo stopped $?; stty -a; echo "press Enter"; read -r; bg; sleep 0.5'
    script += '; echo "in front"; fg >/dev/null; echo ended $?'
    with terminal(millrace_bin, server, shell=["bash", "-m", "-c", script, "bash"]) as top:
        top.read_until(b"fetch 1")
        os.write(top.master, b"\x1a")
        top.read_until(b"press Enter")
        before, _, after = top.seen.rpartition(SCREEN_OFF)
        assert before and SCREEN_ON not in after
        assert b"stopped 148" in after and b" icanon" in after and b" echo " in after
        top.seen = b""
        os.write(top.master, b"\n")
        top.read_until(SCREEN_ON)
        assert b"in front" in top.seen.partition(SCREEN_ON)[0]  # in the background it draws nothing
        top.read_until(b"fetch 1")
        os.write(top.master, b"q")
        top.read_until(b"ended 0")
        assert top.process.wait(DEADLINE_S) == 0


def test_nobody_reads(millrace_bin: Path, server: Supervisor) -> None:
    """A pipe that is full does not keep a signal from it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, bytes(4096))
    command = [str(millrace_bin), "top", "--socket", str(server.socket), "--interval", "0.1"]
    top = subprocess.Popen(command, stdout=writer)
    try:
        wait_for(lambda: waits_for_output(top.pid), "it prints nothing")
        top.terminate()
        assert top.wait(DEADLINE_S) == 0
    finally:
        top.kill()
        top.wait()
        os.close(reader)
        os.close(writer)


def test_nohup(millrace_bin: Path, server: Supervisor) -> None:
    command = ["nohup", str(millrace_bin), "top", "--socket", str(server.socket), "--count", "5", "--interval", "0.1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
        assert top.stdout is not None
        first = top.stdout.readline()
        top.send_signal(signal.SIGHUP)
        assert first and len(top.stdout.read().splitlines()) >= 4
        assert top.wait(DEADLINE_S) == 0


def test_nohup_and_a_stopped_supervisor(millrace_bin: Path, server: Supervisor) -> None:
    """What is ignored does not end the wait for its answer."""
    command = ["nohup", str(millrace_bin), "top", "--socket", str(server.socket), "--count", "30", "--interval", "0.1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
        assert top.stdout is not None
        assert top.stdout.readline()
        server.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: waits_for_an_answer(top.pid), "it asks nothing")
        top.send_signal(signal.SIGHUP)
        with suppress(subprocess.TimeoutExpired):
            top.wait(1)  # it looks for signals four times a second
        server.process.send_signal(signal.SIGCONT)
        assert len(top.stdout.read().splitlines()) == 29
        assert top.wait(DEADLINE_S) == 0


def test_supervisor_ends(millrace_bin: Path, server: Supervisor) -> None:
    with terminal(millrace_bin, server) as top:
        top.read_until(b"fetch 1")
        server.stop()
        top.read_until(b"has ended")
        assert SCREEN_OFF in top.seen
        assert top.process.wait(DEADLINE_S) == 1


def test_broken_pipe(millrace_bin: Path, server: Supervisor) -> None:
    command = [str(millrace_bin), "top", "--socket", str(server.socket), "--interval", "0.1"]
    top = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert top.stdout is not None and top.stderr is not None
    top.stdout.readline()
    top.stdout.close()
    assert top.wait(DEADLINE_S) == -signal.SIGPIPE
    assert top.stderr.read() == b""
    top.stderr.close()
