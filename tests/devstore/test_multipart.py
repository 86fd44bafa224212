"""Multipart uploads of the XML API, and its other requests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
import re
import threading
from pathlib import Path
from xml.etree import ElementTree

import google_crc32c
import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Reply, fetch

PARTS = [random.Random(size).randbytes(size) for size in (2000, 1000, 10)]


def crc(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def text(reply: Reply, name: str) -> str | None:
    """The first element of that name in the reply."""
    for element in ElementTree.fromstring(reply.body).iter():
        if element.tag.rpartition("}")[2] == name:
            return element.text
    return None


def texts(reply: Reply, name: str) -> list[str | None]:
    return [e.text for e in ElementTree.fromstring(reply.body).iter() if e.tag.rpartition("}")[2] == name]


@pytest.fixture(params=["memory", "folder"])
def start(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path: Path):
    def run(*flags: str) -> Server:
        server = devstore(*(["--memory"] if request.param == "memory" else ["--root", tmp_path]), *flags)
        assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
        return server

    return run


def begin(server: Server, target: str = "/bucket/a/b", headers: dict[str, str] | None = None) -> str:
    reply = fetch(server, f"{target}?uploads", "POST", b"", headers)
    assert reply.status == 200 and text(reply, "Bucket") == "bucket"
    return f"{target}?uploadId={text(reply, 'UploadId')}"


def put(server: Server, where: str, number: int, data: bytes, **headers: str) -> Reply:
    return fetch(server, f"{where}&partNumber={number}", "PUT", data, headers)


def complete(server: Server, where: str, parts: list[tuple[int, str]]) -> Reply:
    entries = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts)
    body = f"<?xml version='1.0' encoding='UTF-8'?>\n<CompleteMultipartUpload>{entries}</CompleteMultipartUpload>"
    return fetch(server, where, "POST", body.encode())


def test_parts_in_any_order(start) -> None:
    server = start("--min-part-bytes", "1000")
    where = begin(server, headers={"Content-Type": "a/b", "x-goog-meta-Key": "value", "Cache-Control": "no-store"})
    etags = {}
    for number in (7, 2, 5):
        data = PARTS[(2, 5, 7).index(number)]
        reply = put(server, where, number, data, **{"x-goog-hash": f"crc32c={crc(data)}"})
        assert reply.status == 200 and reply.headers["x-goog-hash"] == f"crc32c={crc(data)}"
        assert reply.headers["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        etags[number] = reply.headers["ETag"]
    put(server, where, 3, b"left out")
    listed = fetch(server, where)
    assert texts(listed, "PartNumber") == ["2", "3", "5", "7"] and texts(listed, "Size") == ["2000", "8", "1000", "10"]
    page = fetch(server, f"{where}&max-parts=2&part-number-marker=2")
    assert texts(page, "PartNumber") == ["3", "5"] and text(page, "IsTruncated") == "true"
    assert texts(fetch(server, "/bucket?uploads"), "Key") == ["a/b"]
    assert fetch(server, "/bucket/a/b").status == 404
    done = complete(server, where, sorted(etags.items()))
    data = b"".join(PARTS)
    assert done.status == 200 and text(done, "Key") == "a/b"
    assert done.headers["x-goog-hash"] == f"crc32c={crc(data)}"
    got = fetch(server, "/bucket/a/b")
    assert got.body == data and got.headers["x-goog-hash"] == f"crc32c={crc(data)}"
    resource = fetch(server, "/storage/v1/b/bucket/o/a%2Fb").json
    assert resource["contentType"] == "a/b" and resource["metadata"] == {"key": "value"}
    assert resource["componentCount"] == 3 and "md5Hash" not in resource
    assert complete(server, where, []).status == 404
    assert texts(fetch(server, "/bucket?uploads"), "Key") == []


def test_a_part_that_is_sent_again_replaces_the_first(start) -> None:
    server = start()
    where = begin(server)
    first = put(server, where, 1, b"first").headers["ETag"]
    second = put(server, where, 1, b"second").headers["ETag"]
    assert text(complete(server, where, [(1, first)]), "Code") == "InvalidPart"
    assert complete(server, where, [(1, second.strip('"'))]).status == 200  # the quotes are optional
    assert fetch(server, "/bucket/a/b").body == b"second"


def test_what_complete_refuses(start) -> None:
    server = start("--min-part-bytes", "100")
    where = begin(server)
    small, large = (put(server, where, n, b"x" * size).headers["ETag"] for n, size in ((1, 99), (2, 100)))

    def code(*parts: tuple[int, str]) -> str | None:
        reply = complete(server, where, list(parts))
        assert reply.status == 400
        return text(reply, "Code")

    assert code((1, small), (2, large)) == "EntityTooSmall"
    assert code((2, large), (1, small)) == "InvalidPartOrder"
    assert code((2, large), (2, large)) == "InvalidPartOrder"
    assert code((3, large)) == "InvalidPart"
    assert code((2, small)) == "InvalidPart"
    assert code() == "MalformedXML"
    assert complete(server, where, [(2, large)]).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<",
        b"<CompleteMultipartUpload>",
        b"<CompleteMultipartUpload/>",
        b"<Other></Other>",
        b"<CompleteMultipartUpload><Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><PartNumber>x</PartNumber><ETag>e</ETag></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload>text</CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><ETag>" + b"e" * 5000 + b"</ETag></Part></CompleteMultipartUpload>",
        b"\0" * 100,
        b"<?xml",
        b"<!--",
    ],
)
def test_lists_that_are_none(start, body: bytes) -> None:
    server = start()
    where = begin(server)
    put(server, where, 1, b"x")
    reply = fetch(server, where, "POST", body)
    assert reply.status == 400 and text(reply, "Code") == "MalformedXML"


@pytest.mark.parametrize(("query", "status"), [("0", 400), ("10001", 400), ("", 400), ("x", 400), ("10000", 200)])
def test_part_numbers(start, query: str, status: int) -> None:
    server = start()
    assert fetch(server, f"{begin(server)}&partNumber={query}", "PUT", b"x").status == status


def test_wrong_sums_of_parts(start) -> None:
    server = start()
    where = begin(server)
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    for headers in (
        {"x-goog-hash": f"crc32c={crc(b'other')}"},
        {"Content-MD5": wrong},
        {"x-goog-hash": f"md5={wrong}"},
    ):
        reply = put(server, where, 1, b"data", **headers)
        assert reply.status == 400 and text(reply, "Code") == "BadDigest"
    assert put(server, where, 1, b"data", **{"Content-MD5": "?"}).status == 400
    assert texts(fetch(server, where), "PartNumber") == []


def test_abort(start, tmp_path: Path) -> None:
    server = start()
    where = begin(server)
    put(server, where, 1, b"x")
    assert fetch(server, where, "DELETE").status == 204
    assert fetch(server, where, "DELETE").status == 404
    assert text(put(server, where, 2, b"x"), "Code") == "NoSuchUpload"
    begin(server)  # one that nobody ends
    server.stop()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_lost_answer_of_complete(start) -> None:
    server = start("--fault", "reset:first=1:0:complete:*")
    where = begin(server)
    etag = put(server, where, 1, b"x").headers["ETag"]
    with contextlib.suppress(OSError):
        assert complete(server, where, [(1, etag)]).broken
    assert complete(server, where, [(1, etag)]).status == 404
    assert fetch(server, "/bucket/a/b").body == b"x"


@pytest.mark.parametrize(
    ("permission", "method", "query"),
    [
        ("storage.objects.create", "POST", "?uploads"),
        ("storage.multipartUploads.create", "POST", "?uploads"),
        ("storage.multipartUploads.abort", "DELETE", "?uploadId=x"),
        ("storage.multipartUploads.listParts", "GET", "?uploadId=x"),
    ],
)
def test_denied(start, permission: str, method: str, query: str) -> None:
    server = start("--deny", permission)
    reply = fetch(server, "/bucket/x" + query, method)
    assert reply.status == 403 and permission in (text(reply, "Message") or "")


def test_objects_by_xml(start) -> None:
    server = start()
    for name in ("a<&>b", "c/d", "c/e", "f"):
        target = "/bucket/" + name.replace("<&>", "%3C%26%3E")
        reply = fetch(server, target, "PUT", name.encode(), {"x-goog-hash": f"crc32c={crc(name.encode())}"})
        assert reply.status == 200 and int(reply.headers["x-goog-generation"]) > 0
        assert fetch(server, target).body == name.encode()
    assert fetch(server, "/bucket/f", "PUT", b"x", {"x-goog-if-generation-match": "0"}).status == 412
    assert fetch(server, "/bucket/f", "PUT", b"x", {"x-goog-hash": f"crc32c={crc(b'y')}"}).status == 400
    page = fetch(server, "/bucket?list-type=2&delimiter=/&max-keys=2")
    assert texts(page, "Key") == ["a<&>b"] and texts(page, "Prefix")[:1] == ["c/"]
    token = text(page, "NextContinuationToken")
    rest = fetch(server, f"/bucket?list-type=2&delimiter=/&max-keys=2&continuation-token={token}")
    assert texts(rest, "Key") == ["f"] and text(rest, "IsTruncated") == "false"
    assert texts(fetch(server, "/bucket?start-after=c/d"), "Key") == ["c/e", "f"]
    assert texts(fetch(server, "/bucket?prefix=c/"), "Size") == ["3", "3"]
    assert re.fullmatch(
        r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", fetch(server, "/bucket/f").headers["Last-Modified"]
    )
    assert fetch(server, "/bucket/f", "DELETE").status == 204
    assert fetch(server, "/bucket/f", "DELETE").status == 404


def test_parts_sent_at_once_and_completed_once(start) -> None:
    server = start("--threads", "4", "--min-part-bytes", "1")
    where = begin(server)
    data = {number: random.Random(number).randbytes(50_000) for number in range(1, 25)}
    etags: dict[int, str] = {}
    statuses: list[int] = []

    def send(first: int) -> None:
        for number in range(first, 25, 6):
            etags[number] = put(server, where, number, data[number]).headers["ETag"]

    def finish() -> None:
        statuses.append(complete(server, where, sorted(etags.items())).status)

    def run(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run([threading.Thread(target=send, args=(first,)) for first in range(1, 7)])
    run([threading.Thread(target=finish) for _ in range(4)])
    assert sorted(statuses) == [200, 404, 404, 404]
    assert fetch(server, "/bucket/a/b").body == b"".join(data[number] for number in range(1, 25))
