"""Bodies of Content-Encoding aws-chunked: as botocore sends them, signed, and malformed."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import zlib

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Reply, fetch
from tests.devstore.s3 import KEY, SECRET, Signer, code, send, xml

DATA = random.Random(1).randbytes(200_000)
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


@pytest.fixture
def server(devstore: StartDevstore) -> Server:
    server = devstore("--memory", "--s3-key", f"{KEY}:{SECRET}")
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    return server


def put(
    server: Server,
    body: bytes,
    length: int,
    payload: str = UNSIGNED,
    trailer: str = "x-amz-checksum-crc32",
    **more: str,
) -> Reply:
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(length)}
    headers |= {"x-amz-trailer": trailer} if trailer else {}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    return send(server, "PUT", "/bucket/x", body, headers, payload=payload)


@pytest.mark.parametrize("size", [0, 1, 65536, 200_000])
def test_as_botocore_frames_it(server: Server, size: int) -> None:
    wrapper = AwsChunkedWrapper(io.BytesIO(DATA[:size]), Crc32Checksum, "x-amz-checksum-crc32", chunk_size=50_000)
    reply = put(server, wrapper.read(), size)
    assert reply.status == 200 and reply.headers["x-amz-checksum-crc32"] == crc32(DATA[:size])
    got = send(server, "GET", "/bucket/x")
    assert got.body == DATA[:size] and got.headers["Content-Encoding"] is None
    assert got.headers["ETag"] == f'"{hashlib.md5(DATA[:size]).hexdigest()}"'


def test_the_objects_own_encoding_stays(server: Server) -> None:
    assert put(server, b"0\r\n\r\n", 0, trailer="", Content_Encoding="aws-chunked, gzip").status == 200
    assert send(server, "HEAD", "/bucket/x").headers["Content-Encoding"] == "gzip"


def signed(server: Server, pieces: list[bytes], lines: str = "", wrong: int = -1) -> Reply:
    """A body whose chunks are signed; the one of that number with another secret."""
    signer = Signer()
    payload = SIGNED + ("-TRAILER" if lines else "")
    length = sum(map(len, pieces))
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(length)}
    headers |= {"x-amz-trailer": "x-amz-checksum-crc32"} if lines else {}
    by = signer.headers(server, "PUT", "/bucket/x", payload, headers)
    body = b""
    for i, piece in enumerate([*pieces, b""]):
        signer.secret = "no" if i == wrong else SECRET
        body += signer.chunk(piece)
    signer.secret = "no" if wrong == len(pieces) + 1 else SECRET
    body += signer.trailer(lines) if lines else b""
    return fetch(server, "/bucket/x", "PUT", body + b"\r\n", by)


@pytest.mark.parametrize("lines", ["", f"x-amz-checksum-crc32:{crc32(DATA)}\n"])
def test_signed_chunks(server: Server, lines: str) -> None:
    pieces = [DATA[:65536], DATA[65536:131072], DATA[131072:]]
    assert signed(server, pieces, lines).status == 200
    assert send(server, "GET", "/bucket/x").body == DATA
    for wrong in range(5 if lines else 4):
        assert code(signed(server, pieces, lines, wrong)) == (403, "SignatureDoesNotMatch")


GOOD = f"x-amz-checksum-crc32:{crc32(b'data')}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"x\r\ndata\r\n0\r\n" + GOOD, "a chunk's size is not a hexadecimal number"),
        (b"\r\ndata\r\n0\r\n" + GOOD, "The aws-chunked body is malformed"),
        (b"-4\r\ndata\r\n0\r\n" + GOOD, "a chunk's size is not a hexadecimal number"),
        (b"f" * 17 + b"\r\ndata\r\n0\r\n" + GOOD, "a chunk's size is not a hexadecimal number"),
        (b"4\ndata\r\n0\r\n" + GOOD, "a line does not end with CRLF"),
        (b"3\r\ndata\r\n0\r\n" + GOOD, "a chunk is longer than its size"),
        (b"4" + b"0" * 2000 + b"\r\ndata\r\n0\r\n" + GOOD, "a line is too long, or holds a zero byte"),
        (b"4\0\r\ndata\r\n0\r\n" + GOOD, "a line is too long, or holds a zero byte"),
        (b"4\r\ndata\r\n0\r\nno colon\r\n\r\n", "its trailer is not NAME:VALUE, or too long"),
        (b"4\r\ndata\r\n0\r\n" + b"a:b\r\n" * 2000 + b"\r\n", "its trailer is not NAME:VALUE, or too long"),
        (b"4\r\ndata\r\n0\r\n" + GOOD + b"more", "more follows its end"),
    ],
)
def test_malformed(server: Server, body: bytes, words: str) -> None:
    reply = put(server, body, 4)
    assert code(reply) == (400, "InvalidRequest") and words in xml(reply, "Message")[0]
    assert code(send(server, "GET", "/bucket/x")) == (404, "NoSuchKey")
    assert put(server, b"4\r\ndata\r\n0\r\n" + GOOD, 4).status == 200


@pytest.mark.parametrize(
    ("body", "length", "expected"),
    [
        (b"4\r\ndata\r\n0\r\n", 4, "IncompleteBody"),
        (b"4\r\ndata\r\n", 4, "IncompleteBody"),
        (b"4\r\nda", 4, "IncompleteBody"),
        (b"", 4, "IncompleteBody"),
        (b"4\r\ndata\r\n0\r\n" + GOOD, 5, "IncompleteBody"),
        (b"4\r\ndatb\r\n0\r\n" + GOOD, 4, "BadDigest"),
        (b"4\r\ndata\r\n0\r\n\r\n", 4, "MalformedTrailerError"),
        (b"4\r\ndata\r\n0\r\nx-amz-checksum-crc32:x\r\n\r\n", 4, "MalformedTrailerError"),
        (b"4\r\ndata\r\n0\r\nx-amz-checksum-crc32c:AAAAAA==\r\n\r\n", 4, "MalformedTrailerError"),
    ],
)
def test_not_what_was_announced(server: Server, body: bytes, length: int, expected: str) -> None:
    assert code(put(server, body, length)) == (400, expected)
    assert code(send(server, "GET", "/bucket/x")) == (404, "NoSuchKey")


def test_headers_that_do_not_fit(server: Server) -> None:
    body = b"4\r\ndata\r\n0\r\n" + GOOD
    assert code(put(server, body, 4, trailer="x-amz-checksum-crc33")) == (400, "InvalidRequest")
    assert code(put(server, body, 4, x_amz_checksum_sha1="x")) == (400, "InvalidRequest")
    assert code(put(server, body, 4, x_amz_decoded_content_length="x")) == (411, "MissingContentLength")
    reply = put(server, body, 4, payload=SIGNED)
    assert "a chunk has no signature" in xml(reply, "Message")[0]
    assert code(send(server, "POST", "/bucket?delete", body, payload=UNSIGNED)) == (501, "NotImplemented")
