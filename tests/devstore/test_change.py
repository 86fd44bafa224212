"""What is done to objects that exist: copies, other generations; and stored gzip."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import storage

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Connect, fetch, statistics

BASE = "/storage/v1/b/test-bucket/o"


@pytest.fixture(params=["memory", "folder"])
def server(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path: Path) -> Server:
    flags = ["--synthetic", "made-up:10:1000"]
    return devstore(*flags, "--memory") if request.param == "memory" else devstore(*flags, "--root", tmp_path)


@pytest.fixture
def bucket(server: Server, connect: Connect) -> storage.Bucket:
    return connect(server).create_bucket("test-bucket")


def test_copies(bucket: storage.Bucket, server: Server) -> None:
    data = random.Random(1).randbytes(300_000)
    blob = bucket.blob("a/b")
    blob.metadata = {"k": "v"}
    blob.upload_from_string(data, content_type="a/b")
    copy = bucket.copy_blob(blob, bucket, "c/d", if_generation_match=0)
    assert (copy.crc32c, copy.md5_hash, copy.metadata, copy.content_type) == (
        blob.crc32c,
        blob.md5_hash,
        {"k": "v"},
        "a/b",
    )
    assert copy.generation > blob.generation and bucket.blob("c/d").download_as_bytes() == data
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(blob, bucket, "c/d", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(blob, bucket, "e", if_source_generation_match=1)
    assert fetch(server, f"{BASE}/c%2Fd/moveTo/o/e%2Fmoved", "POST", b"").json["name"] == "e/moved"
    assert not bucket.blob("c/d").exists() and bucket.blob("e/moved").download_as_bytes() == data
    made_up = bucket.client.bucket("made-up").blob("obj-000000002")
    assert bucket.copy_blob(made_up, bucket).size == 1000
    assert bucket.blob(made_up.name).download_as_bytes() == made_up.download_as_bytes()
    for target in ("copyTo/b/test-bucket/o/", "copyTo/x/test-bucket/o/y", "copyTo/b/test-bucket/o/%zz"):
        assert fetch(server, f"{BASE}/a%2Fb/{target}", "POST", b"").status in (400, 404)


def test_touch_makes_another_generation(bucket: storage.Bucket, server: Server) -> None:
    bucket.blob("x").upload_from_string(b"data")
    before = bucket.get_blob("x").generation
    after = int(fetch(server, "/_devstore/touch?bucket=test-bucket&name=x", "POST", b"").json["generation"])
    assert before < after == bucket.get_blob("x").generation
    assert bucket.blob("x", generation=after).download_as_bytes() == b"data"
    assert bucket.blob("x").exists() and not bucket.blob("x", generation=before).exists()
    made_up = bucket.client.bucket("made-up")
    crc32c = made_up.get_blob("obj-000000004").crc32c  # of obj-000000003 it is not known before
    for name in ("obj-000000003", "obj-000000004"):
        assert fetch(server, f"/_devstore/touch?bucket=made-up&name={name}", "POST", b"").status == 200
        assert made_up.blob(name).download_as_bytes(checksum="crc32c")
    assert made_up.get_blob("obj-000000004").crc32c == crc32c
    assert fetch(server, "/_devstore/touch?bucket=made-up&name=none", "POST", b"").status == 404
    assert fetch(server, "/_devstore/touch", "POST", b"").status == 404


@pytest.mark.parametrize("size", [1, 100, 3_000_000])
def test_gzip_is_decompressed_for_who_does_not_take_it(bucket: storage.Bucket, server: Server, size: int) -> None:
    data = (random.Random(1).randbytes(1000) * 3000)[:size]
    stored = gzip.compress(data)
    blob = bucket.blob("x")
    blob.content_encoding = "gzip"
    blob.upload_from_string(stored)
    reply = fetch(server, "/test-bucket/x", headers={"Accept-Encoding": "gzip"})
    assert reply.body == stored and reply.headers["Content-Encoding"] == "gzip"
    reply = fetch(server, "/test-bucket/x", headers={"Range": "bytes=0-0"})
    assert (reply.status, reply.body) == (200, data)
    assert reply.headers["Content-Length"] is None and reply.headers["Content-Encoding"] is None
    assert reply.headers["x-guploader-response-body-transformations"] == "gunzipped"
    assert reply.headers["x-goog-stored-content-encoding"] == "gzip"
    assert reply.headers["x-goog-stored-content-length"] == str(len(stored))
    assert blob.download_as_bytes() == data and blob.download_as_bytes(raw_download=True) == stored
    blob.cache_control = "no-transform"
    blob.upload_from_string(stored)
    assert fetch(server, "/test-bucket/x").body == stored


STORED = [b"no gzip", gzip.compress(b"x" * 1000)[:-5], gzip.compress(b"x") + b"y"]


@pytest.mark.parametrize("stored", STORED, ids=["text", "cut", "tail"])
def test_what_is_called_gzip_and_is_none(bucket: storage.Bucket, server: Server, stored: bytes) -> None:
    blob = bucket.blob("x")
    blob.content_encoding = "gzip"
    blob.upload_from_string(stored)
    assert fetch(server, "/test-bucket/x").status == 500
    assert fetch(server, "/test-bucket/x", headers={"Accept-Encoding": "gzip"}).body == stored
    assert statistics(server)["errors"] == 1
