"""Many of S3's clients at a time: what they write is whole, and conditions hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import fetch, statistics
from tests.devstore.s3 import code, s3, xml

THREADS = 12


@pytest.fixture(params=["memory", "folder"])
def server(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path) -> Server:
    where = ["--memory"] if request.param == "memory" else ["--root", str(tmp_path)]
    server = devstore(*where, "--threads", "4", "--min-part-bytes", "1")
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    return server


def at_once(what: Callable[[int], object]) -> list[object]:
    """what(0), what(1), ... in threads that begin together."""
    barrier = threading.Barrier(THREADS)

    def run(i: int) -> object:
        barrier.wait(60)
        return what(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def race(server: Server, target: str, headers: dict[str, str], bodies: list[bytes]) -> None:
    """Of those who write under the same condition one does, and its bytes are there."""
    done = at_once(lambda i: s3(server, "PUT", target, bodies[i], headers).status)
    assert done.count(200) == 1 and done.count(412) == THREADS - 1
    assert s3(server, "GET", target).body == bodies[done.index(200)]


def test_one_of_many_creates(server: Server) -> None:
    for name in range(10):
        race(server, f"/bucket/{name}", {"If-None-Match": "*"}, [b"%d" % i * 5000 for i in range(THREADS)])


def test_one_of_many_replaces(server: Server) -> None:
    s3(server, "PUT", "/bucket/x", b"0")
    for number in range(10):
        etag = s3(server, "HEAD", "/bucket/x").headers["ETag"]
        race(server, "/bucket/x", {"If-Match": etag}, [b"%d of %d" % (i, number) for i in range(THREADS)])


def test_an_upload_is_completed_once(server: Server) -> None:
    upload = xml(s3(server, "POST", "/bucket/m?uploads"), "UploadId")[0]
    where = f"/bucket/m?uploadId={upload}"
    parts = [bytes([i]) * 30_000 for i in range(THREADS)]
    etags = at_once(lambda i: s3(server, "PUT", f"{where}&partNumber={i + 1}", parts[i]).headers["ETag"])
    entries = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{e}</ETag></Part>" for i, e in enumerate(etags))
    body = f"<CompleteMultipartUpload>{entries}</CompleteMultipartUpload>".encode()
    done = at_once(lambda _: s3(server, "POST", where, body).status)
    assert done.count(200) == 1 and done.count(404) == THREADS - 1
    got = s3(server, "GET", "/bucket/m", headers={"x-amz-checksum-mode": "ENABLED"})
    assert got.body == b"".join(parts) and got.headers["ETag"].endswith(f'-{THREADS}"')


def test_readers_see_whole_objects(server: Server) -> None:
    def work(i: int) -> None:
        for n in range(20):
            data = bytes([i * 20 + n]) * 10_000
            assert s3(server, "PUT", "/bucket/x", data).status == 200
            got = s3(server, "GET", "/bucket/x").body
            assert len(got) == 10_000 and got == got[:1] * 10_000
            listed = s3(server, "GET", "/bucket?list-type=2")
            assert xml(listed, "Key") == ["x"] and xml(listed, "Size") == ["10000"]

    at_once(work)
    assert statistics(server)["errors"] == 0 and code(s3(server, "GET", "/bucket/y")) == (404, "NoSuchKey")
