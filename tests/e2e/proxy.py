"""A proxy before the development store that can change or refuse a request, which the store's own faults cannot do."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def is_part(self) -> bool:
        """Bytes of a checkpoint: a part of a multipart upload, or an object in one request."""
        return ("partNumber=" in self.path or "uploadType=multipart" in self.path) and self.method in ("PUT", "POST")


Answer = Union[tuple[int, bytes], tuple[int, bytes, dict[str, str]]]  # with its header lines
Hook = Callable[[Request], "Answer | None"]  # may change the request; an answer is given in the store's place


class Proxy(http.server.ThreadingHTTPServer):
    """`with Proxy(port) as proxy`: proxy.url goes to the store at that port, every request through `hook` first.

    /token is a token server: it gives out `token`. Once `good` is not None, only these tokens are let through.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = port
        self.hook: Hook = lambda request: None
        self.hold: Hook = lambda request: None  # before it, and any number at a time
        self.seen: list[str] = []
        self.token = "token-1"
        self.good: set[str] | None = None
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def do_GET(self) -> None:
        proxy = self.server
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        if "100-continue" in headers.get("expect", ""):
            self.send_response_only(100)
            self.end_headers()
        request = Request(self.command, self.path, headers, self.rfile.read(length))
        if self.path == "/token":
            self.say(
                200, json.dumps({"access_token": proxy.token, "expires_in": 3600, "token_type": "Bearer"}).encode()
            )
            return
        answer = proxy.hold(request)
        with proxy.lock:
            proxy.seen.append(f"{self.command} {self.path}")
            answer = answer or proxy.hook(request)
        allowed = proxy.good is None or headers.get("authorization", "").removeprefix("Bearer ") in proxy.good
        if answer is None and not allowed:
            answer = 401, b'{"error": {"code": 401, "message": "Invalid Credentials"}}'
        if answer is None:
            self.forward(request)
        else:
            self.say(*answer)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET

    def forward(self, request: Request) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        headers = {
            k: v for k, v in request.headers.items() if k not in ("host", "expect", "content-length", "connection")
        }
        headers["Content-Length"] = str(len(request.body))
        try:
            connection.request(request.method, request.path, request.body, headers)
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.finish_with(body, reply.headers["Content-Length"] if self.command == "HEAD" else None)

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.finish_with(body)

    def finish_with(self, body: bytes, length: str | None = None) -> None:
        self.send_header("Content-Length", length or str(len(body)))
        try:
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:  # who asked has gone
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass
