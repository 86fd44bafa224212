"""What no client of S3 should send: each gets an error of S3's, and the store goes on."""

from __future__ import annotations

import base64
import hashlib
import random

import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Reply, fetch
from tests.devstore.s3 import code, s3, xml


@pytest.fixture
def server(devstore: StartDevstore) -> Server:
    server = devstore("--memory", "--api", "s3")
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    assert s3(server, "PUT", "/bucket/x", b"data").status == 200
    return server


@pytest.mark.parametrize(
    ("method", "target", "expected", "words"),
    [
        (
            "GET",
            "/bucket?max-keys=x",
            (400, "InvalidArgument"),
            "Provided max-keys not an integer or within integer range",
        ),
        ("GET", "/bucket?max-keys=-1", (400, "InvalidArgument"), ""),
        ("GET", "/bucket?max-keys=99999999999999999999", (400, "InvalidArgument"), ""),
        ("GET", "/bucket?encoding-type=x", (400, "InvalidArgument"), "Invalid Encoding Method specified in Request"),
        (
            "GET",
            "/bucket?list-type=2&continuation-token=*",
            (400, "InvalidArgument"),
            "The continuation token provided is incorrect",
        ),
        ("GET", "/bucket?list-type=2&continuation-token=", (400, "InvalidArgument"), ""),
        ("GET", "/bucket?prefix=%", (400, "InvalidURI"), ""),
        ("GET", "/bucket?acl", (501, "NotImplemented"), ""),
        ("GET", "/bucket/x?tagging", (501, "NotImplemented"), ""),
        ("GET", "/bucket/x?X-Amz-Algorithm=AWS4-HMAC-SHA256", (501, "NotImplemented"), ""),
        ("GET", "/bucket/x?versionId=v", (501, "NotImplemented"), ""),
        ("GET", "/bucket/%ff", (400, "InvalidURI"), ""),
        ("GET", "/bucket/%00", (400, "InvalidURI"), ""),
        ("GET", "/bucket/" + "n" * 1025, (400, "KeyTooLongError"), "Your key is too long"),
        ("GET", "//x", (400, "InvalidBucketName"), ""),
        ("POST", "/", (405, "MethodNotAllowed"), ""),
        ("POST", "/bucket", (405, "MethodNotAllowed"), ""),
        ("PATCH", "/bucket/x", (405, "MethodNotAllowed"), ""),
        ("POST", "/bucket/x?uploadId=no", (404, "NoSuchUpload"), ""),
        ("PUT", "/bucket/x?uploadId=no&partNumber=1", (404, "NoSuchUpload"), ""),
        (
            "PUT",
            "/bucket/x?uploadId=no&partNumber=0",
            (400, "InvalidArgument"),
            "partNumber is a number from 1 to 10000.",
        ),
        ("PUT", "/bucket/x?uploadId=no", (400, "InvalidArgument"), ""),
        ("GET", "/bucket/x?uploadId=no", (404, "NoSuchUpload"), ""),
        ("GET", "/bucket/x?uploadId=no&max-parts=x", (400, "InvalidArgument"), ""),
        (
            "GET",
            "/bucket/x?partNumber=x",
            (400, "InvalidArgument"),
            "Part number must be an integer between 1 and 10000, inclusive",
        ),
        ("GET", "/bucket/x?partNumber=2", (416, "InvalidPartNumber"), ""),
        ("DELETE", "/bucket/x?uploadId=no", (404, "NoSuchUpload"), ""),
        ("GET", "/no-bucket?session", (404, "NoSuchBucket"), ""),
        ("GET", "/no-bucket?uploads", (404, "NoSuchBucket"), ""),
        ("GET", "/bucket?uploads&max-uploads=x", (400, "InvalidArgument"), ""),
    ],
)
def test_targets(server: Server, method: str, target: str, expected: tuple[int, str], words: str) -> None:
    reply = s3(server, method, target)
    assert code(reply) == expected and words in xml(reply, "Message")[0]
    assert len(xml(reply, "RequestId")[0]) == 16 and reply.headers["Content-Type"] == "application/xml"
    assert s3(server, "GET", "/bucket/x").body == b"data"


@pytest.mark.parametrize(
    ("headers", "expected", "words"),
    [
        ({"Content-MD5": "x"}, (400, "InvalidDigest"), ""),
        ({"Content-MD5": base64.b64encode(bytes(16)).decode()}, (400, "BadDigest"), ""),
        (
            {"x-amz-checksum-crc32": "AAAA"},
            (400, "InvalidRequest"),
            "Value for x-amz-checksum-crc32 header is invalid.",
        ),
        ({"x-amz-checksum-crc32": "AAAAAB=="}, (400, "InvalidRequest"), ""),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="}, (400, "InvalidRequest"), ""),
        ({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, (400, "BadDigest"), ""),
        (
            {"x-amz-sdk-checksum-algorithm": "CRC32"},
            (400, "InvalidRequest"),
            "x-amz-sdk-checksum-algorithm is specified, but neither x-amz-checksum-* nor x-amz-trailer",
        ),
        ({"x-amz-storage-class": "\xff"}, (400, "InvalidArgument"), "storageClass is not valid UTF-8"),
        ({"Content-Type": "a\tb"}, (400, "InvalidArgument"), "holds a control character"),
        ({"x-amz-copy-source": "bucket/x"}, (501, "NotImplemented"), "functionality that the development store"),
    ],
)
def test_headers_of_a_put(server: Server, headers: dict[str, str], expected: tuple[int, str], words: str) -> None:
    reply = s3(server, "PUT", "/bucket/x", b"other", headers)
    assert code(reply) == expected and words in xml(reply, "Message")[0]
    assert s3(server, "GET", "/bucket/x").body == b"data"


def test_a_put_without_its_length(server: Server) -> None:
    reply = fetch(server, "/bucket/x", "PUT", iter([b"data"]), {"x-amz-date": ""})  # type: ignore[arg-type]
    assert code(reply) == (411, "MissingContentLength")


@pytest.mark.parametrize(
    ("range_", "status", "body"),
    [
        ("bytes=1-2", 206, b"at"),
        ("bytes=3-99999999999999999999", 200, b"data"),
        ("bytes=2-1", 200, b"data"),
        ("bytes=0-0,2-3", 200, b"data"),
        ("bytes=-0", 416, None),
        ("bytes=4-", 416, None),
        ("bytes=x", 200, b"data"),
        ("items=1-2", 200, b"data"),
        ("-", 200, b"data"),
    ],
)
def test_ranges(server: Server, range_: str, status: int, body: bytes | None) -> None:
    reply = s3(server, "GET", "/bucket/x", headers={"Range": range_})
    assert reply.status == status and (body is None or reply.body == body)
    if body is None:
        assert xml(reply, "ActualObjectSize") == ["4"] and reply.headers["Content-Range"] == "bytes */4"
    both = s3(server, "GET", "/bucket/x?partNumber=1", headers={"Range": range_})
    assert "Cannot specify both Range header and partNumber query parameter" in xml(both, "Message")[0]


def begin(server: Server, headers: dict[str, str]) -> str:
    reply = s3(server, "POST", "/bucket/m?uploads", headers=headers)
    return f"/bucket/m?uploadId={xml(reply, 'UploadId')[0]}"


def test_multipart(server: Server) -> None:
    for algorithm, kind in (("CRC33", ""), ("SHA1", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("CRC32", "x")):
        headers = {"x-amz-checksum-algorithm": algorithm}
        headers |= {"x-amz-checksum-type": kind} if kind else {}
        reply = s3(server, "POST", "/bucket/m?uploads", headers=headers)
        words = "There is no such checksum algorithm, or it has no such checksum type."
        assert code(reply) == (400, "InvalidRequest") and xml(reply, "Message") == [words]
    where = begin(server, {"x-amz-checksum-algorithm": "CRC32C"})
    reply = s3(server, "PUT", f"{where}&partNumber=1", b"", headers={"x-amz-checksum-crc32": "AAAAAA=="})
    words = "Checksum Type mismatch occurred, expected checksum Type: CRC32C, actual checksum Type: CRC32"
    assert xml(reply, "Message") == [words]
    reply = s3(server, "PUT", f"{where}&partNumber=1", b"", {"x-amz-copy-source": "bucket/x"})
    assert code(reply) == (501, "NotImplemented")
    part = s3(server, "PUT", f"{where}&partNumber=1", b"data")
    etag = part.headers["ETag"]

    def complete(body: str, headers: dict[str, str] | None = None) -> Reply:
        return s3(server, "POST", where, body.encode(), headers)

    entry = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag>%s</Part>"
    whole = f"<CompleteMultipartUpload>{entry}</CompleteMultipartUpload>"
    for body in ("", "<", "<a/>", "<CompleteMultipartUpload/>", whole[:-5], whole % "<PartNumber>", whole % "&" + "x"):
        if body != whole % "&" + "x":
            assert code(complete(body)) == (400, "MalformedXML")
    assert code(complete(whole % "<ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>")) == (400, "InvalidPart")
    size = complete(whole % "", headers={"x-amz-mp-object-size": "x"})
    assert xml(size, "Message") == ["The provided 'x-amz-mp-object-size' header does not match what was computed."]
    assert complete(whole % "").status == 200
    assert s3(server, "GET", "/bucket/m").body == b"data"


def delete(server: Server, body: bytes) -> Reply:
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    return s3(server, "POST", "/bucket?delete", body, {"Content-MD5": md5})


@pytest.mark.parametrize(
    "body",
    [b"", b"<", b"<Delete>", b"<Delete/>", b"<Delete><Object/></Delete>", b"<Delete><Object><Key/></Object></Delete>"]
    + [
        b"<Delete><Object><Key>%s</Key></Object></Delete>" % key
        for key in (b"&#0;", b"&#xD800;", b"&x;", b"&#x;", b"&", b"<a>")
    ]
    + [
        b"<Delete><Object><Key>%s</Key></Object></Delete>" % key
        for key in (b"\xff", b"n" * 1025, b"&#99999999;", b"\0")
    ]
    + [
        b"<Delete><Object><Key>x</Key></Object><Object></Object></Delete>",
        b"<Delete><Other/></Delete>",
        b"x" * 100_000,
    ],
)
def test_delete_bodies(server: Server, body: bytes) -> None:
    assert code(delete(server, body)) == (400, "MalformedXML")
    assert s3(server, "GET", "/bucket/x").body == b"data"


def test_deletes_need_a_sum(server: Server) -> None:
    body = b"<Delete><Object><Key>x</Key></Object></Delete>"
    reply = s3(server, "POST", "/bucket?delete", body)
    words = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
    assert code(reply) == (400, "InvalidRequest") and xml(reply, "Message") == [words]
    assert code(s3(server, "POST", "/bucket?delete", body, headers={"x-amz-checksum-crc32": "AAAAAA=="})) == (
        400,
        "BadDigest",
    )
    spelled = b"<?xml version='1.0'?><!-- a --><Delete><Object><Key>&#x78;</Key></Object><Quiet>true</Quiet></Delete>"
    assert delete(server, spelled).status == 200 and s3(server, "GET", "/bucket/x").status == 404


@pytest.mark.random
def test_mutated_bodies(server: Server) -> None:
    draw = random.Random(12)
    good = b"<Delete><Object><Key>nothing&amp;&#10;</Key><ETag>e</ETag></Object><Quiet>false</Quiet></Delete>"
    for _ in range(300):
        body = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            body[draw.randrange(len(body))] = draw.choice(b"<>&;#/xK\0\xff ")
        assert delete(server, bytes(body)).status in (200, 400)
    assert s3(server, "GET", "/bucket/x").body == b"data"
