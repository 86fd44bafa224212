"""Faults, delays and limits that are asked for on the command line, seen by a bare HTTP client."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import StartDevstore
from tests.devstore.conftest import fetch, statistics
from tests.serve import DEADLINE_S, wait_for

SIZE = 100_000
TARGET = "/storage/v1/b/made-up/o/obj-000000001?alt=media"


@pytest.fixture
def start(devstore: StartDevstore):
    return lambda *flags: devstore("--synthetic", f"made-up:100:{SIZE}", *flags)


def whole(start) -> bytes:
    return fetch(start(), TARGET).body


def test_status_for_the_first_requests_of_each_object(start) -> None:
    server = start("--fault", "status:first=2:429/7")
    for _ in range(2):
        reply = fetch(server, TARGET)
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
        assert reply.json["error"]["errors"][0]["reason"] == "rateLimitExceeded"
    assert fetch(server, TARGET).status == 200
    assert fetch(server, TARGET.replace("1?", "2?")).status == 429
    assert statistics(server)["faults"]["status"] == 3


def test_a_rate_hits_the_same_requests_in_each_run(start) -> None:
    def run(seed: str) -> list[int]:
        server = start("--fault", "status:0.5:503:get:*", "--seed", seed)
        targets = [f"/storage/v1/b/made-up/o/obj-{i:09}?alt=media" for i in range(30)]
        return [fetch(server, target, "HEAD").status for _ in range(2) for target in targets]

    first = run("1")
    assert 15 < first.count(503) < 45 and first.count(503) + first.count(200) == 60
    assert run("1") == first
    assert run("2") != first


def test_patterns(start) -> None:
    server = start("--fault", "status:1:500:list:*", "--fault", "status:1:502:stat:*7", "--fault", "status:1:504:*42")
    assert fetch(server, "/storage/v1/b/made-up/o").status == 500
    assert fetch(server, "/storage/v1/b/made-up").status == 200
    assert fetch(server, "/storage/v1/b/made-up/o/obj-000000017").status == 502
    assert fetch(server, "/storage/v1/b/made-up/o/obj-000000017?alt=media").status == 200
    assert fetch(server, "/storage/v1/b/made-up/o/obj-000000042?alt=media").status == 504
    assert fetch(server, "/storage/v1/b/made-up/o/obj-000000042", "DELETE").status == 504


@pytest.mark.parametrize(("argument", "length"), [("", SIZE // 2), (":1000", 1000), (":0", 0), (":999999", SIZE - 1)])
def test_short_body(start, argument: str, length: int) -> None:
    server = start("--fault", f"short:first=1{argument}")
    reply = fetch(server, TARGET)
    assert reply.status == 200 and int(reply.headers["Content-Length"]) == SIZE
    assert isinstance(reply.broken, http.client.IncompleteRead)
    good = fetch(server, TARGET).body
    assert len(good) == SIZE and reply.body == good[:length]


def test_reset_in_mid_body(start) -> None:
    server = start("--fault", "reset:first=1:30000")
    reply = fetch(server, TARGET)
    assert reply.status == 200 and isinstance(reply.broken, ConnectionResetError)
    assert len(reply.body) <= 30000
    assert fetch(server, TARGET).broken is None


def test_stall_until_the_client_leaves(start) -> None:
    server = start("--fault", "stall:first=1")
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as stalled:
        stalled.sendall(f"GET {TARGET} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        response = http.client.HTTPResponse(stalled)
        response.begin()
        assert len(response.read(SIZE // 2)) == SIZE // 2
        stalled.settimeout(0.3)
        with pytest.raises(socket.timeout):
            response.read1(1)
        response.close()  # has the socket too
        assert len(fetch(server, TARGET).body) == SIZE
    wait_for(lambda: statistics(server)["connections"] == 1, "the stalled one is not dropped")


def test_stall_for_a_while(start) -> None:
    server = start("--fault", "stall:first=1:0.3")
    begin = time.monotonic()
    reply = fetch(server, TARGET)
    assert reply.broken is None and time.monotonic() - begin >= 0.3
    assert reply.body == fetch(server, TARGET).body


@pytest.mark.parametrize(("argument", "place"), [("", SIZE // 2), (":0", 0), (":77", 77)])
def test_wrong_byte(start, argument: str, place: int) -> None:
    server = start("--fault", f"wrong:first=1{argument}")
    bad, good = fetch(server, TARGET), fetch(server, TARGET)
    assert bad.headers["x-goog-hash"] == good.headers["x-goog-hash"]
    assert [i for i in range(SIZE) if bad.body[i] != good.body[i]] == [place]


def test_changed_generation(start) -> None:
    server = start("--fault", "changed:first=1")
    generation = int(fetch(server, TARGET.partition("?")[0]).json["generation"])
    assert fetch(server, f"{TARGET}&generation={generation}").status == 404
    assert fetch(server, f"{TARGET}&generation={generation}").status == 200
    other = TARGET.replace("1?", "2?")
    assert fetch(server, f"{other}&ifGenerationMatch={generation}").status == 412
    third = TARGET.replace("1?", "3?")
    assert int(fetch(server, third).headers["x-goog-generation"]) == generation + 1


def test_an_answer_that_is_lost_after_the_upload(devstore: StartDevstore) -> None:
    server = devstore("--memory", "--fault", "reset:first=1:0:upload:*")
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    reply = fetch(server, "/upload/storage/v1/b/bucket/o?uploadType=media&name=x", "POST", b"data")
    assert isinstance(reply.broken, ConnectionResetError) and reply.body == b""
    assert fetch(server, "/bucket/x").body == b"data"


def test_an_upload_that_is_refused_changes_nothing(devstore: StartDevstore) -> None:
    server = devstore("--memory", "--fault", "status:first=1:503:upload:*")
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    target = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
    assert fetch(server, target, "POST", b"data" * 100_000).status == 503
    assert fetch(server, "/bucket/x").status == 404
    assert fetch(server, target, "POST", b"data").status == 200


def test_a_broken_listing_page(start) -> None:
    server = start("--fault", "short:first=1:100:list:*", "--fault", "wrong:first=1:0:list:*")
    short, wrong, good = (fetch(server, "/storage/v1/b/made-up/o") for _ in range(3))
    assert len(short.body) == 100 and short.broken
    assert len(good.json["items"]) == 100
    assert wrong.body == bytes([good.body[0] ^ 0xFF]) + good.body[1:]


def test_latency_does_not_hold_a_thread(start) -> None:
    """Fifty wait at a time, and others are served meanwhile."""
    server = start("--latency-ms", "get:5000", "--threads", "1")
    replies: list[int] = []
    threads = [threading.Thread(target=lambda: replies.append(len(fetch(server, TARGET).body))) for _ in range(50)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    wait_for(lambda: statistics(server)["connections"] == 51 or replies, "they do not come")
    assert not replies or time.monotonic() - begin >= 5
    for thread in threads:
        thread.join()
    assert replies == [SIZE] * 50 and time.monotonic() - begin >= 5


def test_clients_that_leave_while_they_wait(start) -> None:
    server = start("--latency-ms", "200")
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(f"GET {TARGET} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert len(fetch(server, TARGET).body) == SIZE


def test_it_ends_while_connections_wait(start) -> None:
    server = start("--latency-ms", "60000", "--fault", "stall:1")
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(f"GET {TARGET} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        time.sleep(0.2)
        server.process.terminate()
        assert server.process.wait(DEADLINE_S) == 0


def test_bandwidth(start) -> None:
    server = start("--bandwidth-mibps", "0.5")
    begin = time.monotonic()
    reply = fetch(server, TARGET)
    assert reply.broken is None and time.monotonic() - begin >= SIZE / (0.5 * 1048576) * 0.9
    assert reply.body == whole(start)


def test_request_log(start, tmp_path: Path) -> None:
    server = start("--log", tmp_path / "log")
    fetch(server, TARGET)
    fetch(server, "/storage/v1/b/made-up/o/nothing")
    fetch(server, "/storage/v1/b/made-up/o/obj-000000003", "DELETE")
    server.stop()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == f"GET {TARGET} 200 {SIZE}"
    assert lines[1].startswith("GET /storage/v1/b/made-up/o/nothing 404 ")
    assert lines[2] == "DELETE /storage/v1/b/made-up/o/obj-000000003 204 0"


def test_statistics(start) -> None:
    server = start()
    fetch(server, TARGET)
    fetch(server, "/storage/v1/b/made-up/o/nothing")
    counted = statistics(server)
    assert (counted["requests"]["get"], counted["requests"]["stat"], counted["errors"]) == (1, 1, 1)
    assert counted["bytes_out"] > SIZE


@pytest.mark.parametrize(
    "flags",
    [
        ["--fault", "status"],
        ["--fault", "status:2"],
        ["--fault", "status:-1"],
        ["--fault", "status:first=0"],
        ["--fault", "status:0.1:200"],
        ["--fault", "explode:1"],
        ["--fault", "short:1:many"],
        ["--synthetic", "bucket"],
        ["--synthetic", "bucket:1:x"],
        ["--synthetic", "B:1:1"],
        ["--synthetic", "bucket:1:9-3"],
        ["--listen", "nowhere"],
        ["--listen", "127.0.0.1:99999"],
        ["--threads", "0"],
        ["--latency-ms", "soon"],
        ["--download-mibps", "0.0001"],
        ["--upload-mibps", "1/x"],
        ["--latency-ms", "nothing:5"],
        ["--storage-class", "cold"],
        ["--soft-delete-s", "-1"],
        ["--min-part-bytes", "x"],
        ["--fault", "keep-less:1:x"],
        ["--fault", "expire:1:5"],
        ["--page-size", "0"],
        ["--no-such-flag"],
        ["argument"],
    ],
)
def test_wrong_usage_ends_with_status_2(devstore: StartDevstore, flags: list[str], capfd) -> None:
    with pytest.raises(RuntimeError, match="exit status 2"):
        devstore(*flags)
    assert "millrace[devstore] error:" in capfd.readouterr().err


def test_a_root_that_cannot_be_read(devstore: StartDevstore, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="exit status 1"):
        devstore("--root", tmp_path / "missing")
    assert "missing" in capfd.readouterr().err


def test_total_bandwidth_is_shared(start) -> None:
    server = start("--download-mibps", "0/1")
    sizes: list[int] = []
    threads = [threading.Thread(target=lambda: sizes.append(len(fetch(server, TARGET).body))) for _ in range(4)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [SIZE] * 4 and time.monotonic() - begin >= 4 * SIZE / 1048576 * 0.8


@pytest.mark.parametrize("limit", ["2", "0/2"])
@pytest.mark.parametrize("kind", ["media", "chunk", "part"])
def test_upload_bandwidth(devstore: StartDevstore, limit: str, kind: str) -> None:
    server = devstore("--memory", "--upload-mibps", limit)
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    data = bytes(range(256)) * 2048  # 512 KiB
    target, method = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x", "POST"
    if kind == "chunk":
        start_reply = fetch(server, "/upload/storage/v1/b/bucket/o?uploadType=resumable&name=x", "POST", b"")
        target, method = start_reply.headers["Location"].partition(str(server.port))[2], "PUT"
    elif kind == "part":
        upload = fetch(server, "/bucket/x?uploads", "POST", b"").body.decode()
        target = "/bucket/x?partNumber=1&uploadId=" + upload.partition("<UploadId>")[2].partition("<")[0]
        method = "PUT"
    begin = time.monotonic()
    reply = fetch(server, target, method, data)
    assert reply.status == 200 and time.monotonic() - begin >= 0.25 * 0.7  # the first piece is free
    if kind != "part":
        assert fetch(server, "/bucket/x").body == data


def test_latency_of_one_operation(start) -> None:
    server = start("--latency-ms", "stat:300")
    begin = time.monotonic()
    assert fetch(server, TARGET.partition("?")[0]).status == 200
    assert time.monotonic() - begin >= 0.3
    server = start("--latency-ms", "60000", "--latency-ms", "get:0")
    assert fetch(server, TARGET, timeout=50).status == 200


def test_rate_limits_say_why(start) -> None:
    server = start("--fault", "egress:first=1:3", "--fault", "rate:first=1:7")
    reply = fetch(server, TARGET)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "3") and b"egress bandwidth" in reply.body
    assert reply.json["error"]["errors"][0]["reason"] == "rateLimitExceeded"
    compose, body = "/storage/v1/b/made-up/o/new/compose", b'{"sourceObjects":[{"name":"obj-000000001"}]}'
    reply = fetch(server, compose, "POST", body)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "7") and b"rate limit" in reply.body
    assert fetch(server, compose, "POST", body).status == 200


def test_statistics_tell_what_is_billed(start) -> None:
    server = start()
    fetch(server, TARGET)
    sources = b",".join(b'{"name":"obj-%09d"}' % i for i in range(5))
    fetch(server, "/storage/v1/b/made-up/o/new/compose", "POST", b'{"sourceObjects":[%b]}' % sources)
    fetch(server, "/storage/v1/b/made-up/o/nothing")  # a 404 costs nothing
    call = b"--x\r\n\r\nDELETE /storage/v1/b/made-up/o/obj-%09d HTTP/1.1\r\n\r\n"
    body = b"".join(call % i for i in range(3)) + b"--x--"
    fetch(server, "/batch/storage/v1", "POST", body, {"Content-Type": "multipart/mixed; boundary=x"})
    counted = statistics(server)
    assert (counted["requests"]["get"], counted["requests"]["batch"], counted["batched"]["delete"]) == (1, 1, 3)
    assert counted["billed"] == {"class_a": 1, "class_b": 1, "free": 3}
    assert (counted["compose_sources"], counted["errors"]) == (5, 1)
    assert fetch(server, "/_devstore/stats", "DELETE").status == 204
    counted = statistics(server)
    assert sum(counted["requests"].values()) == 1 and counted["billed"] == {"class_a": 0, "class_b": 0, "free": 0}
    assert counted["connections"] >= 1  # ours; one that was closed may not be noticed yet


@pytest.mark.parametrize("target", ["/bucket?%", "/bucket?%=a", "/bucket?a=%ff&name=b"])
def test_a_query_that_cannot_be_read_under_faults(start, target: str) -> None:
    """The pattern of a fault looks for a name in it: this ended the store."""
    server = start("--fault", "status:1:503:get:*", "--fault", "status:0:503")
    assert fetch(server, target).status == 400
    assert fetch(server, TARGET).status == 503
