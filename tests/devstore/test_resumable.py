"""Resumable uploads by hand: what a session keeps, says and refuses."""

from __future__ import annotations

import base64
import json
import random
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import google_crc32c
import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Reply, fetch, statistics

QUANTUM = 256 * 1024
START = "/upload/storage/v1/b/bucket/o?uploadType=resumable"
DATA = random.Random(1).randbytes(3 * QUANTUM + 1000)


def crc(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@pytest.fixture(params=["memory", "folder"])
def start(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path: Path):
    servers: list[Server] = []

    def run(*flags: str) -> Server:
        server = devstore(*(["--memory"] if request.param == "memory" else ["--root", tmp_path]), *flags)
        servers.append(server)
        assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
        return server

    yield run
    for server in servers:
        server.stop()
    assert [path for path in tmp_path.rglob("#*") if path.is_file()] == []  # nothing of unfinished uploads


def begin(server: Server, query: str = "&name=x", body: bytes = b"", headers: dict[str, str] | None = None) -> str:
    reply = fetch(server, START + query, "POST", body, headers)
    assert reply.status == 200, reply.body
    url = urlsplit(reply.headers["Location"])
    assert url.netloc == f"127.0.0.1:{server.port}"
    return f"{url.path}?{url.query}"


def put(server: Server, where: str, first: int, data: bytes, total: int | str = "*", **headers: str) -> Reply:
    content = f"bytes {first}-{first + len(data) - 1}/{total}" if data else f"bytes */{total}"
    return fetch(server, where, "PUT", data, {"Content-Range": content, **headers})


def test_chunks_probes_and_the_end(start) -> None:
    server = start()
    where = begin(server, "&fields=name,size,crc32c,contentType,metadata", b'{"name":"a/b","metadata":{"k":"v"}}')
    reply = put(server, where, 0, b"")
    assert (reply.status, reply.headers["Range"]) == (308, None)
    reply = put(server, where, 0, DATA[:QUANTUM])
    assert (reply.status, reply.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    reply = put(server, where, QUANTUM, DATA[QUANTUM : 3 * QUANTUM], len(DATA))
    assert (reply.status, reply.headers["Range"]) == (308, f"bytes=0-{3 * QUANTUM - 1}")
    assert fetch(server, "/storage/v1/b/bucket/o/a%2Fb").status == 404
    reply = put(server, where, 3 * QUANTUM, DATA[3 * QUANTUM :], len(DATA))
    expected = {"name": "a/b", "size": str(len(DATA)), "crc32c": crc(DATA), "metadata": {"k": "v"}}
    assert (reply.status, reply.json) == (200, expected)
    for total in ("*", len(DATA)):  # a client that lost the answer asks again
        assert put(server, where, 0, b"", total).json == expected
    assert fetch(server, "/bucket/a/b").body == DATA
    counted = statistics(server)["requests"]
    assert (counted["resumable"], counted["chunk"], counted["upload"]) == (1, 6, 0)


@pytest.mark.parametrize("data", [b"", b"x", DATA, DATA[:QUANTUM]])
def test_all_in_one_put(start, data: bytes) -> None:
    server = start()
    where = begin(server, headers={"X-Upload-Content-Type": "a/b", "X-Upload-Content-Length": str(len(data))})
    reply = fetch(server, where, "PUT", data)
    assert (reply.status, reply.json["size"], reply.json["contentType"]) == (200, str(len(data)), "a/b")
    assert fetch(server, "/bucket/x").body == data


def test_an_empty_object_by_a_probe_of_its_size(start) -> None:
    server = start()
    where = begin(server)
    assert put(server, where, 0, b"", 0).json["size"] == "0"


def test_bytes_that_are_kept_already_are_ignored(start) -> None:
    server = start()
    where = begin(server)
    put(server, where, 0, DATA[: 2 * QUANTUM])
    reply = put(server, where, QUANTUM, b"?" * QUANTUM + DATA[2 * QUANTUM :], len(DATA))
    assert reply.status == 200 and fetch(server, "/bucket/x").body == DATA


@pytest.mark.parametrize(
    ("content_range", "length"),
    [
        ("bytes 0-99/*", 100),  # no multiple of 256 KiB
        (f"bytes 0-{QUANTUM - 1}/*", 100),  # fewer bytes than it says
        (f"bytes {QUANTUM}-{2 * QUANTUM - 1}/*", QUANTUM),  # a gap
        ("bytes 5-4/*", 0),
        ("bytes 0-9/5", 10),
        ("bytes 0-9", 10),
        ("bytes x-9/10", 10),
        ("lines 0-9/10", 10),
        ("bytes 0-18446744073709551615/*", 10),
        ("bytes */-1", 0),
        ("bytes */18446744073709551615", 0),
        ("bytes 0-9/11", 10),
    ],
)
def test_chunks_that_are_refused(start, content_range: str, length: int) -> None:
    server = start()
    where = begin(server)
    reply = fetch(server, where, "PUT", b"x" * length, {"Content-Range": content_range})
    assert reply.status == 400 and reply.json["error"]["code"] == 400
    assert put(server, where, 0, b"").headers["Range"] is None
    assert put(server, where, 0, b"good", 4).status == 200


def test_another_size_than_announced(start) -> None:
    server = start()
    where = begin(server, headers={"X-Upload-Content-Length": "5"})
    assert put(server, where, 0, b"four", 4).status == 400
    assert fetch(server, where, "PUT", b"four").status == 400
    assert fetch(server, START + "&name=x", "POST", b"", {"X-Upload-Content-Length": "many"}).status == 400


def test_cancel(start) -> None:
    server = start()
    where = begin(server)
    put(server, where, 0, DATA[:QUANTUM])
    assert fetch(server, where, "DELETE").status == 499
    assert fetch(server, where, "DELETE").status == 404
    assert put(server, where, QUANTUM, DATA[QUANTUM:], len(DATA)).status == 404
    assert fetch(server, "/storage/v1/b/bucket/o/x").status == 404


def test_conditions_at_the_start_and_at_the_end(start) -> None:
    server = start()
    first = begin(server, "&name=x&ifGenerationMatch=0")
    second = begin(server, "&name=x&ifGenerationMatch=0")
    generation = put(server, first, 0, b"1", 1).json["generation"]
    assert put(server, second, 0, b"2", 1).status == 412
    assert put(server, second, 0, b"").status == 410
    assert fetch(server, START + "&name=x&ifGenerationMatch=0", "POST", b"").status == 412
    third = begin(server, f"&name=x&ifGenerationMatch={generation}")
    assert put(server, third, 0, b"3", 1).status == 200
    assert fetch(server, "/bucket/x").body == b"3"


@pytest.mark.parametrize("place", ["start", "end"])
def test_a_wrong_sum(start, place: str) -> None:
    server = start()
    wrong = crc(b"other")
    where = begin(server, body=json.dumps({"crc32c": wrong} if place == "start" else {}).encode())
    headers = {"x-goog-hash": f"crc32c={wrong}"} if place == "end" else {}
    assert put(server, where, 0, b"data", 4, **headers).status == 400
    assert fetch(server, "/bucket/x").status == 404
    where = begin(server)
    assert put(server, where, 0, b"data", 4, **{"x-goog-hash": f"crc32c={crc(b'data')}"}).status == 200


@pytest.mark.parametrize(("argument", "kept"), [("", 1), (":0", 0), (f":{2 * QUANTUM + 5}", 2), (":100", 0)])
def test_a_session_that_keeps_less(start, argument: str, kept: int) -> None:
    server = start("--fault", f"keep-less:first=1{argument}")
    where = begin(server)
    reply = put(server, where, 0, DATA, len(DATA))
    assert reply.status == 308
    assert reply.headers["Range"] == (f"bytes=0-{kept * QUANTUM - 1}" if kept else None)
    assert put(server, where, 0, b"").headers["Range"] == reply.headers["Range"]
    assert put(server, where, kept * QUANTUM, DATA[kept * QUANTUM :], len(DATA)).status == 200
    assert fetch(server, "/bucket/x").body == DATA
    assert statistics(server)["faults"]["keep-less"] == 1


def test_a_session_that_expires(start) -> None:
    server = start("--fault", "expire:first=1")
    where = begin(server)
    for _ in range(2):
        assert put(server, where, 0, b"x", 1).status == 410
    assert put(server, begin(server), 0, b"x", 1).status == 200


@pytest.mark.parametrize("operation", ["resumable", "chunk"])
def test_lost_answers(start, operation: str) -> None:
    server = start("--fault", f"reset:first=1:0:{operation}:*")
    if operation == "resumable":
        assert isinstance(lost(server, START + "&name=x", "POST"), OSError)
        where = begin(server)
        assert put(server, where, 0, b"x", 1).status == 200
        return
    where = begin(server)
    assert isinstance(lost(server, where, "PUT", DATA[:QUANTUM]), OSError)
    assert put(server, where, 0, b"").headers["Range"] == f"bytes=0-{QUANTUM - 1}"
    assert put(server, where, QUANTUM, DATA[QUANTUM:], len(DATA)).status == 200


def lost(server: Server, target: str, method: str, data: bytes = b"") -> Exception | None:
    headers = {"Content-Range": f"bytes 0-{len(data) - 1}/*"} if data else {}
    try:
        reply = fetch(server, target, method, data, headers)
    except OSError as error:
        return error
    return reply.broken


def test_denied(start) -> None:
    server = start("--deny", "storage.objects.create")
    assert fetch(server, START + "&name=x", "POST", b"").status == 403


def half_a_chunk(server: Server, where: str, length: int, sent: bytes) -> socket.socket:
    """A connection that promised `length` bytes of a chunk and sent these, which the server has."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    before = statistics(server)["bytes_in"]
    head = (
        f"PUT {where} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nContent-Range: bytes 0-{length - 1}/*\r\n\r\n"
    )
    connection.sendall(head.encode() + sent)
    deadline = time.monotonic() + 60
    while statistics(server)["bytes_in"] < before + len(sent):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return connection


def test_a_chunk_that_breaks_off_keeps_whole_quanta(start) -> None:
    server = start()
    where = begin(server)
    with half_a_chunk(server, where, 3 * QUANTUM, DATA[: 2 * QUANTUM + 500]):
        pass
    assert put(server, where, 0, b"").headers["Range"] == f"bytes=0-{2 * QUANTUM - 1}"
    assert put(server, where, 2 * QUANTUM, DATA[2 * QUANTUM :], len(DATA)).status == 200
    assert fetch(server, "/bucket/x").body == DATA


def test_the_later_of_two_requests_goes_on(start) -> None:
    server = start()
    where = begin(server)
    with half_a_chunk(server, where, 3 * QUANTUM, b"?" * (QUANTUM + 500)) as first:
        assert put(server, where, QUANTUM, DATA[QUANTUM:], len(DATA)).status == 200
        first.sendall(b"?" * (2 * QUANTUM - 500))
        answer = first.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200")  # the upload is done, whoever asks
    where = begin(server)
    with half_a_chunk(server, where, 3 * QUANTUM, b"?" * (QUANTUM + 500)) as first:
        assert put(server, where, QUANTUM, DATA[QUANTUM : 2 * QUANTUM]).status == 308
        first.sendall(b"?" * (2 * QUANTUM - 500))
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 503")
    assert put(server, where, 2 * QUANTUM, DATA[2 * QUANTUM :], len(DATA)).status == 200
    assert fetch(server, "/bucket/x").body == b"?" * QUANTUM + DATA[QUANTUM:]


def test_many_sessions_at_once(start) -> None:
    server = start("--threads", "4")
    wrong: list[object] = []

    def work(seed: int) -> None:
        for i in range(5):
            name, data = f"x{seed}-{i}", bytes([seed, i]) * QUANTUM
            where = begin(server, f"&name={name}")
            replies = [put(server, where, at, data[at : at + QUANTUM], len(data)) for at in (0, QUANTUM)]
            if [reply.status for reply in replies] != [308, 200] or replies[1].json["crc32c"] != crc(data):
                wrong.append(replies)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
