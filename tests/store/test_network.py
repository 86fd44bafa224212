"""TLS, a proxy and a third-party server, through `millrace cat` and `ls`."""

from __future__ import annotations

import http.server
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conftest import Server
from tests.stores import create_bucket, put


class Store(http.server.BaseHTTPRequestHandler):
    """One object, `a`, that says hello."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        item = b'{"name":"a","size":"5","generation":"1"}'
        if "alt=media" in self.path:
            body = b"hello"
        elif "/o/a?" in self.path:
            body = item
        else:
            body = b'{"items":[' + item + b"]}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Proxy(http.server.BaseHTTPRequestHandler):
    """CONNECT only; remembers whom it was asked for."""

    asked: ClassVar[list[str]] = []

    def do_CONNECT(self) -> None:
        Proxy.asked.append(self.path)
        host, port = self.path.split(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.send_header("Retry-After", "7")  # not the store's answer: must not be taken for it
            self.end_headers()
            while True:
                for ready in select.select([self.connection, far], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (far if ready is self.connection else self.connection).sendall(data)

    def log_message(self, *_: object) -> None:
        pass


def serve(handler: type[http.server.BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True
    )
    return folder / "cert.pem"


@pytest.fixture(scope="module")
def tls_port(certificate: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    yield from serve(Store, context)


@pytest.fixture
def proxy_port() -> Iterator[int]:
    Proxy.asked.clear()
    yield from serve(Proxy)


def millrace(program: Path, folder: Path, tls_port: int, http_lines: str, *command: str) -> subprocess.CompletedProcess:
    config = folder / "config.toml"
    config.write_text(f'[gcs]\nendpoint = "https://localhost:{tls_port}"\nauth = "anonymous"\n[http]\n{http_lines}')
    return subprocess.run(
        [program, command[0], "-c", config, *command[1:]], capture_output=True, timeout=100, check=False
    )


def test_a_certificate_of_our_own(millrace_bin: Path, tmp_path: Path, tls_port: int, certificate: Path) -> None:
    refused = millrace(millrace_bin, tmp_path, tls_port, "", "cat", "gs://b/a")
    assert refused.returncode == 2 and refused.stdout == b""
    assert b"ca_bundle" in refused.stderr
    read = millrace(millrace_bin, tmp_path, tls_port, f'ca_bundle = "{certificate}"', "cat", "gs://b/a")
    assert (read.returncode, read.stdout) == (0, b"hello"), read.stderr
    missing = millrace(millrace_bin, tmp_path, tls_port, 'ca_bundle = "/nowhere.pem"', "cat", "gs://b/a")
    assert missing.returncode == 2 and b"/nowhere.pem" in missing.stderr


def test_through_a_proxy(millrace_bin: Path, tmp_path: Path, tls_port: int, certificate: Path, proxy_port: int) -> None:
    lines = f'ca_bundle = "{certificate}"\nproxy = "http://127.0.0.1:{proxy_port}"'
    listed = millrace(millrace_bin, tmp_path, tls_port, lines, "ls", "gs://b/")
    assert (listed.returncode, listed.stdout) == (0, b"gs://b/a\n"), listed.stderr
    assert Proxy.asked == [f"localhost:{tls_port}"]


def test_a_third_party_server(fake_gcs: Server, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fake-gcs-server: names that need encoding, and bytes that are as they were."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake_gcs.url)
    create_bucket(fake_gcs.url, "bkt")
    names = ["dir/a b%2F+é?#&=.bin", "dir/sub/x", "top"]
    for name in names:
        put(fake_gcs.url, "bkt", name, name.encode() * 1000)
    run = lambda *args: subprocess.run([millrace_bin, *args], capture_output=True, timeout=100, check=False)  # noqa: E731
    listed = run("ls", "-r", "gs://bkt/")
    assert listed.stdout.decode().splitlines() == [f"gs://bkt/{name}" for name in sorted(names)], listed.stderr
    for name in names:
        read = run("cat", f"gs://bkt/{name}")
        assert read.stdout == name.encode() * 1000, read.stderr
    part = run("cat", "gs://bkt/top", "--range", "1-4")
    assert part.stdout == b"opto", part.stderr
    missing = run("cat", "gs://bkt/none")
    assert missing.returncode == 1 and b"gs://bkt/none" in missing.stderr
