"""Requests that no client should send: each gets a 4xx or a closed connection, and the store goes on."""

from __future__ import annotations

import random
import socket

import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import fetch

BASE = "/storage/v1/b/bucket/o"


@pytest.fixture
def server(devstore: StartDevstore) -> Server:
    server = devstore("--memory", "--synthetic", "made-up:10:1000")
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    fetch(server, "/upload/storage/v1/b/bucket/o?uploadType=media&name=x", "POST", b"x")
    return server


def raw(server: Server, data: bytes) -> bytes:
    """What the store answers to these bytes until it closes, or until nothing came for a while."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.2) as s:
        got = b""
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while piece := s.recv(1 << 16):
                got += piece
        except OSError:
            pass
        return got


def alive(server: Server) -> None:
    assert fetch(server, "/bucket/x").body == b"x"
    assert server.process.poll() is None


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "//", 404),
        ("GET", "/bucket?max-keys=x", 400),
        ("GET", "/bucket/?continuation-token=*", 400),
        ("PUT", "/bucket", 405),
        ("GET", "/nobody", 404),
        ("GET", "/bucket/%", 400),
        ("GET", "/bucket/%zz", 400),
        ("GET", "/bucket/%00", 400),
        ("GET", "/bucket/%ff", 400),
        ("GET", "/bucket/" + "n" * 1025, 400),
        ("GET", "/%ff/x", 400),
        ("GET", "/no-bucket/x", 404),
        ("GET", "/storage", 404),
        ("GET", "/storage/v2/b", 404),
        ("GET", "/storage/v1/b/bucket/x", 404),
        ("GET", "/storage/v1/b/bucket/o/x/y", 404),
        ("GET", "/storage/v1/b/bucket/o/", 400),
        ("GET", "/storage/v1/b/bucket/o/x/compose", 405),
        ("GET", "/storage/v1/b" + "/a" * 50, 404),
        ("GET", "/download/storage/v1/b/bucket", 404),
        ("GET", "/upload/storage/v1/b/bucket/o", 405),
        ("GET", "/batch/storage/v1", 405),
        ("GET", "/batch", 404),
        ("GET", "/_devstore/nothing", 404),
        ("PUT", BASE, 405),
        ("PATCH", f"{BASE}/x", 405),
        ("POST", f"{BASE}/x/rewriteTo/b/bucket/o/y", 404),
        ("BREW", BASE, 405),
        ("POST", "/bucket/x", 405),
        ("PATCH", "/bucket/x", 405),
        ("POST", "/bucket/x?uploadId=0-x", 404),
        ("PUT", "/bucket/x?uploadId=&partNumber=1", 404),
        ("GET", "/bucket/x?uploadId=99999999999999999999-1", 404),
        ("DELETE", "/bucket/x?uploadId=-", 404),
        ("GET", f"{BASE}?maxResults=-1", 400),
        ("GET", f"{BASE}?maxResults=99999999999999999999", 400),
        ("GET", f"{BASE}?pageToken=*", 400),
        ("GET", f"{BASE}?pageToken=A", 400),
        ("GET", f"{BASE}?pageToken=____", 400),
        ("GET", f"{BASE}?prefix=%ff", 400),
        ("GET", f"{BASE}?matchGlob=*", 400),
        ("GET", f"{BASE}?softDeleted=true", 400),
        ("GET", f"{BASE}?fields=" + "a(" * 500, 400),
        ("GET", f"{BASE}?fields=" + ",".join(f"items/f{i}" for i in range(100)), 400),
        ("GET", f"{BASE}?" + "&".join(f"a{i}=1" for i in range(100)), 400),
        ("GET", f"{BASE}/x?generation=abc", 400),
        ("GET", f"{BASE}/x?ifGenerationMatch=1.5", 400),
        ("GET", f"{BASE}/x?ifMetagenerationMatch=", 400),
        ("DELETE", f"{BASE}/x?ifGenerationMatch=-1", 400),
        ("POST", "/upload/storage/v1/b/bucket/o", 400),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media", 400),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=magic&name=x", 400),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=multipart", 400),
        ("POST", "/upload/storage/v1/b/nobody/o?uploadType=media&name=x", 404),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=resumable", 400),
        ("POST", "/upload/storage/v1/b/nobody/o?uploadType=resumable&name=x", 404),
        ("PUT", "/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=", 404),
        ("PUT", "/upload/storage/v1/b/bucket/o?upload_id=5-5", 404),
        ("DELETE", "/upload/storage/v1/b/bucket/o?upload_id=x", 404),
        ("DELETE", "/upload/storage/v1/b/bucket/o", 405),
        ("POST", "/batch/storage/v1", 400),
        ("POST", "/storage/v1/b", 400),
        ("POST", f"{BASE}/y/compose", 400),
    ],
)
def test_odd_targets(server: Server, method: str, target: str, status: int) -> None:
    reply = fetch(server, target, method)
    assert reply.status == status
    if not target.startswith(("/bucket", "/%", "/no-bucket", "/nobody")) and target not in ("/", "//"):
        assert reply.json["error"]["code"] == status and reply.json["error"]["errors"][0]["reason"]
    else:
        assert reply.body.startswith(b"<?xml")
    alive(server)


def test_a_copy_by_the_xml_api_makes_no_empty_object(server: Server) -> None:
    reply = fetch(server, "/bucket/y", "PUT", b"", {"x-goog-copy-source": "/bucket/x"})
    assert reply.status == 501 and b"does not do x-goog-copy-source" in reply.body
    assert fetch(server, "/bucket/y").status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"sourceObjects":{}}',
        b'{"sourceObjects":[1]}',
        b'{"sourceObjects":[{}]}',
        b'{"sourceObjects":[{"name":1}]}',
        b'{"sourceObjects":[{"name":"x","generation":"y"}]}',
        b'{"sourceObjects":[{"name":"x","generation":-1}]}',
        b'{"sourceObjects":[{"name":"x","objectPreconditions":{"ifGenerationMatch":[]}}]}',
        b'{"sourceObjects":[{"name":"x"}],"destination":7}',
        b'{"sourceObjects":[{"name":"x"}],"destination":{"contentType":7}}',
        b'{"sourceObjects":[{"name":"x"}],"destination":{"contentType":"a\\r\\nb: c"}}',
        b'{"sourceObjects":[{"name":"x"}],"destination":{"metadata":{"a":1}}}',
        b'\xff\xfe{"sourceObjects":[{"name":"x"}]}',
        b'{"sourceObjects":[{"name":"\\u0000"}]}',
    ],
)
def test_bad_compose_bodies(server: Server, body: bytes) -> None:
    assert fetch(server, f"{BASE}/y/compose", "POST", body).status == 400
    assert fetch(server, f"{BASE}/y").status == 404
    alive(server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"--b",
        b"--b--",
        b"--b\r\n",
        b"--b\r\n\r\n{}",
        b"--b\r\n\r\n{}\r\n--b--",
        b"--b\r\n\r\n{}\r\n--b\r\n\r\ndata",
        b"--b\r\n\r\n{}\r\n--b\r\n\r\ndata\r\n--b",
        b'--b\r\n\r\n{"name":"y"\r\n--b\r\n\r\ndata\r\n--b--',
        b'--b\r\n\r\n{"name":7}\r\n--b\r\n\r\ndata\r\n--b--',
        b"--b\r\n\r\n[]\r\n--b\r\n\r\ndata\r\n--b--",
        b'--b\r\n\r\n{"name":"y","crc32c":"AAAAAA=="}\r\n--b\r\n\r\ndata\r\n--b--',
        b'--b\r\n\r\n{"name":"y","crc32c":"bad"}\r\n--b\r\n\r\ndata\r\n--b--',
        b'--b\r\n\r\n{"name":"y","crc32c":5}\r\n--b\r\n\r\ndata\r\n--b--',
        b"--b\r\n\r\n{}\r\n--b\r\n\r\ndata\r\n--b--",
        b"x" * 3_000_000,
    ],
)
def test_bad_multipart_bodies(server: Server, body: bytes) -> None:
    target = "/upload/storage/v1/b/bucket/o?uploadType=multipart"
    reply = fetch(server, target, "POST", body, {"Content-Type": "multipart/related; boundary=b"})
    assert reply.status == 400
    assert [item["name"] for item in fetch(server, BASE).json["items"]] == ["x"]
    alive(server)


@pytest.mark.parametrize(
    "body",
    [b"--b--", b"--b\r\n\r\n\r\n", b"--b", b"x", b"--b\r\n\r\nDELETE /storage/v1/b/bucket/o/x HTTP/1.1\r\n"],
)
def test_bad_batches_do_nothing(server: Server, body: bytes) -> None:
    headers = {"Content-Type": 'multipart/mixed; boundary="b"'}
    assert fetch(server, "/batch/storage/v1", "POST", body, headers).status == 400
    alive(server)


@pytest.mark.parametrize(
    "call",
    [
        b"",
        b"nonsense",
        b"GET",
        b"GET ",
        b"GET http://",
        b"GET /storage/v1/b/bucket/o/x?alt=media HTTP/1.1",
        b"POST /batch/storage/v1 HTTP/1.1",
        b"POST /upload/storage/v1/b/bucket/o?uploadType=media&name=y HTTP/1.1\r\n\r\ndata",
        b"GET /_devstore/stats HTTP/1.1",
    ],
)
def test_bad_calls_in_a_batch(server: Server, call: bytes) -> None:
    body = b"--b\r\n\r\n" + call + b"\r\n--b\r\n\r\nGET /storage/v1/b/bucket/o/x\r\n--b--"
    reply = fetch(server, "/batch/storage/v1", "POST", body, {"Content-Type": "multipart/mixed; boundary=b"})
    assert reply.status == 200
    assert b"HTTP/1.1 4" in reply.body and b"HTTP/1.1 200 OK" in reply.body
    alive(server)


def test_bodies_over_the_limit(server: Server) -> None:
    assert fetch(server, f"{BASE}/y/compose", "POST", b" " * (10 << 20) + b"{}").status == 413
    alive(server)


def test_huge_headers(server: Server) -> None:
    assert raw(server, b"GET /bucket/x HTTP/1.1\r\nX: " + b"y" * 1_000_000).split(b" ")[1:2] in ([], [b"431"])
    assert raw(server, b"GET /" + b"y" * 1_000_000).split(b" ")[1:2] in ([], [b"414"])
    reply = raw(server, b"GET /bucket/x HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n")
    assert reply.split(b" ")[1:2] in ([], [b"431"])
    alive(server)


@pytest.mark.random
def test_random_bytes(server: Server) -> None:
    source = random.Random(1)
    words = [b"GET ", b"POST ", b"HEAD ", b"/bucket/x", BASE.encode(), b"?", b"&", b"%", b" HTTP/1.1\r\n", b"0-1", b"-"]
    words += [b"Range: bytes=", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\r\n\r\n"]
    words += [b"\0", b"\xff"]
    for _ in range(300):
        data = b"".join(source.choice(words) for _ in range(source.randrange(1, 20)))
        raw(server, data)
    alive(server)


@pytest.mark.parametrize(
    ("header", "status", "length"),
    [
        ("bytes=0-0", 206, 1),
        ("bytes=0-", 206, 1000),
        ("bytes=-1", 206, 1),
        ("bytes=-5000", 206, 1000),
        ("bytes=999-99999999999999999999", 200, 1000),  # no number: ignored
        ("bytes=999-18446744073709551615", 206, 1),
        ("bytes=1000-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=5-4", 200, 1000),
        ("bytes=1-2,4-5", 200, 1000),
        ("bytes=", 200, 1000),
        ("bytes=-", 200, 1000),
        ("bytes=a-b", 200, 1000),
        ("lines=1-2", 200, 1000),
    ],
)
def test_ranges(server: Server, header: str, status: int, length: int) -> None:
    target = "/made-up/obj-000000001"
    reply = fetch(server, target, headers={"Range": header})
    assert reply.status == status
    if status == 416:
        assert reply.headers["Content-Range"] == "bytes */1000"
        return
    assert len(reply.body) == length
    head = fetch(server, target, "HEAD", headers={"Range": header})
    assert (head.status, head.headers["Content-Length"], head.body) == (status, str(length), b"")
    assert head.headers["Content-Range"] == reply.headers["Content-Range"]
    if status == 206:
        first = int(reply.headers["Content-Range"].split()[1].split("-")[0])
        assert reply.body == fetch(server, target).body[first : first + length]
