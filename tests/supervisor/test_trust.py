"""Lines of docs/security.md that no other test shows: what other users and containers can see, where credentials go."""

from __future__ import annotations

import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import BIN, ROOT, shared_memory_names
from tests.serve import DEADLINE_S, StartServe, strike, wait_for
from tests.supervisor.saver import Saver

OPEN_AS_NOBODY = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for pid in sys.argv[1:]:
    for what in ("fd", "map_files", "environ", "mem"):
        try:
            path = f"/proc/{pid}/{what}"
            os.listdir(path) if what in ("fd", "map_files") else open(path, "rb").read(1)
        except PermissionError:
            print("denied")
        else:
            print("open", pid, what)
"""


def first_answer(path: Path) -> bytes:
    """Nothing while nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(DEADLINE_S)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return b""
        return client.recv(65536)


@pytest.mark.parametrize("backing", ["auto", "posix", "memfd"])
def test_samples_have_no_name(serve: StartServe, config: Path, tmp_path: Path, backing: str) -> None:
    """With the fetch workers' arenas, an index, and a save under way: what has no name, nobody else can open."""
    before = shared_memory_names()
    config.write_text(config.read_text() + f'backing = "{backing}"\n')
    one = serve(config)
    one.wait_settled()
    saver = Saver(one.socket)
    saver.save(1, f"file://{tmp_path}/state", 1 << 20)
    assert saver.ok("wait", 1)[0] == "done"
    wait_for(lambda: shared_memory_names() <= before, lambda: f"new: {shared_memory_names() - before}")
    saver.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_no_descriptor_and_no_memory(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_settled()
    pids = [one.process.pid, *one.workers("fetch")]
    command = [sys.executable, "-c", OPEN_AS_NOBODY, *map(str, pids)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout
    assert shown.split("\n")[:-1] == ["denied"] * 4 * len(pids), shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
def test_another_container_is_refused(serve: StartServe, config: Path) -> None:
    """It shares the file system, as a volume does, and has processes of its own."""
    one = serve(config)
    one.wait_settled()
    # From a namespace beside the supervisor's, ours cannot be seen from there: the supervisor itself is in the new one.
    inside = ["unshare", "--pid", "--fork", "--mount-proc", str(BIN / "millrace"), "serve", "-q", "-c", str(config)]
    path = config.parent / "inside"
    process = subprocess.Popen([*inside, "--socket", str(path)])
    try:
        answer = wait_for(lambda: first_answer(path), "nobody listens there")
        assert b"PID namespace" in answer, answer
    finally:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            strike(int(child), signal.SIGTERM)
        process.wait(DEADLINE_S)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """With credentials: the server that it names must not see them."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{server.server_port}"}
        command = [str(BIN / "millrace"), "cat", "gs://bucket/object"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 1 and "redirects are not followed" in done.stderr
    assert asked and "/elsewhere" not in asked


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`([\w/.]+)::([\w]+)`", page)
    assert len(named) > 30
    for path, test in named:
        text = (ROOT / "tests" / path).read_text()
        assert re.search(rf"(def |START_TEST\(){test}\b", text), f"{path} has no {test}"
