"""What a signal handler raises or does in the middle of a call: nothing stays behind, and nothing waits for ever."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.python.conftest import CONFIG, Folder
from tests.python.test_processes import result, start, supervisors
from tests.serve import start_supervisor, wait_for

SHARED = "the supervisor of this node's ranks is being started: nothing can be opened before that is done"
# The supervisor is stopped, so that the call waits for its answer; the handler raises once that has come.
INTERRUPTED = """
    import os, signal, sys, threading, time
    import millrace
    from millrace import _supervisor, checkpoint
    uri, path, supervisor, call = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    samples = millrace.MapDataset(uri)
    samples[0]
    client = _supervisor.connection().client
    main = threading.get_native_id()

    class Interrupt(Exception):
        pass

    def handler(*_):
        raise Interrupt

    def waits():
        time.sleep(0.005)
        return open(f"/proc/self/task/{main}/stat").read().rsplit(")", 1)[1].split()[0] == "S"

    def interrupt():
        while not all(waits() for _ in range(20)):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(supervisor, signal.SIGCONT)

    signal.signal(signal.SIGUSR1, handler)
    for number in range(3):
        os.kill(supervisor, signal.SIGSTOP)
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            eval(call)
            thread.join()
        except Interrupt:
            print("interrupted", flush=True)
        thread.join()
    held = []
    try:
        while True:
            held.append(millrace.MapDataset([f"file://{name}" for name, _ in samples.objects[: len(held) + 1]]))
    except millrace.Error as error:
        print(len(held), error)
"""


@pytest.mark.parametrize(
    "call",
    [
        "millrace.open(f'file://{path}')",
        "checkpoint.reader(f'file://{path}')",
        "millrace.MapDataset([f'file://{path}', f'file://{samples.objects[number][0]}'])",
    ],
)
def test_what_a_handler_raises_leaves_no_data_set_open(
    millrace_bin: Path, tmp_path: Path, hundred: Folder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    try:
        path = tmp_path / "object"
        path.write_bytes(b"object")
        out = result(start(INTERRUPTED, hundred.uri, str(path), str(supervisor.process.pid), call)).splitlines()
        assert out[:3] == ["interrupted"] * 3
        assert out[3].startswith("63 64 data sets are open"), out  # beside the first one
    finally:
        supervisor.stop()


def test_a_supervisor_that_nobody_waits_for_any_more(hundred: Folder, tmp_path: Path) -> None:
    """The handler raises as the call that starts it returns, and nobody knows it."""
    code = """
        import subprocess, sys
        import millrace

        class Interrupted(subprocess.Popen):
            def _execute_child(self, *arguments):
                super()._execute_child(*arguments)
                raise KeyboardInterrupt

        before, subprocess.Popen = subprocess.Popen, Interrupted
        try:
            millrace.MapDataset(sys.argv[1])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.read()
        subprocess.Popen = before
        print(len(millrace.MapDataset(sys.argv[1])))
    """
    config = tmp_path / "millrace.toml"
    config.write_text(CONFIG)
    process = start(code, hundred.uri, MILLRACE_CONFIG=str(config))
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "interrupted\n"
    lines = iter(process.stderr.readline, "")
    assert any("ending: whoever started it did not wait for it" in line for line in lines)
    wait_for(lambda: not supervisors(), "it stays")
    assert result(process) == "100\n"


@pytest.mark.parametrize(
    "job", [{}, {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "handler"}], ids=["own", "shared"]
)
def test_a_handler_that_opens_a_file_while_a_supervisor_starts(
    millrace_bin: Path, hundred: Folder, tmp_path: Path, job: dict[str, str]
) -> None:
    """As one that saves before a preemption does. The first supervisor listens once the handler has been here."""
    program = tmp_path / "bin" / "millrace"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
if [ ! -e {tmp_path}/first ]; then
    : > {tmp_path}/first
    until [ -e {tmp_path}/go ]; do sleep 0.1; done
fi
exec {millrace_bin} "$@"
"""
    )
    program.chmod(0o755)
    path = tmp_path / "object"
    path.write_bytes(b"object")
    code = """
        import pathlib, signal, sys
        import millrace
        uri, path, go = sys.argv[1:]
        def handler(*_):
            try:
                print(millrace.open(f"file://{path}").read(), flush=True)
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            pathlib.Path(go).touch()
        signal.signal(signal.SIGUSR1, handler)
        print(len(millrace.MapDataset(uri)), flush=True)
        print(millrace.open(f"file://{path}").read(), flush=True)
    """
    process = start(code, hundred.uri, str(path), str(tmp_path / "go"), MILLRACE_BIN=str(program.parent), **job)
    wait_for((tmp_path / "first").exists, "it does not start")
    process.send_signal(signal.SIGUSR1)
    seen = result(process).splitlines()
    assert seen[1:] == ["100", "b'object'"]
    assert seen[0] == (f"Error a signal handler came while {SHARED}" if job else "b'object'")
