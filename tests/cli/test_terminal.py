"""What others choose (names of objects, a server's words) does not move a terminal's cursor; a pipe gets all of it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.serve import DEADLINE_S

NAME = "evil\x1b]0;title\x07\x9b2J\nsecond line"


def on_terminal(command: list[str | Path]) -> bytes:
    """What a command writes to a terminal that is its standard output and error."""
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # the other end is closed: EIO
        pass
    os.close(master)
    process.wait(DEADLINE_S)
    return shown.replace(b"\r\n", b"\n")


def test_names_on_a_terminal(millrace_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / NAME).write_bytes(b"x")
    command: list[str | Path] = [millrace_bin, "ls", f"file://{tmp_path}/folder/"]
    shown = on_terminal(command)
    assert not any(byte < 0x20 for byte in shown.replace(b"\n", b"")), shown
    assert rb"evil\x1b]0;title\x07\xc2\x9b2J\x0asecond" in shown and shown.count(b"\n") == 1
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    assert piped.decode() == f"file://{tmp_path}/folder/{NAME}\n"


def test_the_names_that_other_commands_show(millrace_bin: Path, tmp_path: Path) -> None:
    """Their lines are for people: in them it is the same in a pipe."""
    place = f"file://{tmp_path}/{NAME}/"
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "a").write_bytes(b"x")
    script = f"import millrace, subprocess; ds = millrace.MapDataset({place!r}); len(ds)\n"
    script += "".join(
        f"subprocess.run([{str(millrace_bin)!r}, {verb}, '--socket', {str(tmp_path / 'socket')!r}], check=True)\n"
        for verb in ("'stat'", "'top', '--count', '1'")
    )
    shown = [on_terminal([millrace_bin, "doctor", place])]
    shown.append(on_terminal([millrace_bin, "bench", "--steps", "2", "--dataset", place]))
    run: list[str | Path] = [millrace_bin, "run", "--socket", tmp_path / "socket", "--"]
    shown.append(on_terminal([*run, sys.executable, "-c", script]))
    for text in shown:
        assert re.search(rb"evil[ ?]\]0;title[ ?]\?\?2J second line", text)
        screen = re.sub(rb"\x1b\[[?0-9;]*[A-Za-z]", b"", text)  # what `top` draws with
        assert not any(byte < 0x20 for byte in screen.replace(b"\n", b"").replace(b"\r", b"")), text


def test_a_servers_words_on_a_terminal(millrace_bin: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"error": {"code": 403, "message": "no\\u001b[2J\\nmillrace[supervisor] error: more"}}'
            self.send_response(403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        shown = on_terminal(["env", f"STORAGE_EMULATOR_HOST={url}", millrace_bin, "ls", "gs://bucket/"])
    finally:
        server.shutdown()
        server.server_close()
    assert rb"no\x1b[2J\x0amillrace[supervisor] error: more" in shown, shown
    assert shown.count(b"\n") == 1 and b"\x1b" not in shown
