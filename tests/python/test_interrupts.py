"""What a signal handler raises, at any moment of a call: nothing that the call had begun stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.conftest import CONFIG, Folder
from tests.python.test_processes import result, start, supervisors
from tests.serve import start_supervisor, wait_for

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
