"""What is done to objects that exist: metadata, copies, other generations; and stored gzip."""

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


def test_patch(bucket: storage.Bucket, server: Server) -> None:
    blob = bucket.blob("x")
    blob.metadata = {"a": "1", "b": "2"}
    blob.upload_from_string(b"data", content_type="a/b")
    generation = blob.generation
    blob.content_type = "c/d"
    blob.metadata = {"a": None, "c": "3"}
    blob.patch(if_metageneration_match=1)
    blob = bucket.get_blob("x")
    assert (blob.generation, blob.metageneration, blob.content_type) == (generation, 2, "c/d")
    assert blob.metadata == {"b": "2", "c": "3"} and blob.download_as_bytes() == b"data"
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)
    blob.content_type = "e/f"
    blob.update()
    assert bucket.get_blob("x").metageneration == 3
    assert (
        fetch(server, f"{BASE}/x", "PATCH", b'{"metadata":null,"contentType":null}')
        .json.keys()
        .isdisjoint({"metadata", "contentType"})
    )
    for bad in (
        b"[]",
        b"{",
        b'{"metadata":7}',
        b'{"metadata":{"a":7}}',
        b'{"contentType":7}',
        b'{"contentType":"\\n"}',
    ):
        assert fetch(server, f"{BASE}/x", "PATCH", bad).status == 400
    assert fetch(server, f"{BASE}/y", "PATCH", b"{}").status == 404
    made_up = bucket.client.bucket("made-up").blob("obj-000000001")
    made_up.content_type = "g/h"
    made_up.patch()
    again = bucket.client.bucket("made-up").get_blob("obj-000000001")
    assert (again.metageneration, again.content_type, len(again.download_as_bytes())) == (2, "g/h", 1000)


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
    token, done, total = bucket.blob("e").rewrite(bucket.client.bucket("made-up").blob("obj-000000002"))
    assert (token, done, total) == (None, 1000, 1000)
    assert (
        bucket.blob("e").download_as_bytes()
        == bucket.client.bucket("made-up").blob("obj-000000002").download_as_bytes()
    )
    assert fetch(server, f"{BASE}/e/moveTo/o/e%2Fmoved", "POST", b"").json["name"] == "e/moved"
    assert not bucket.blob("e").exists() and bucket.get_blob("e/moved").size == 1000
    reply = fetch(server, "/test-bucket/f", "PUT", b"", {"x-goog-copy-source": "/test-bucket/c%2Fd"})
    assert reply.status == 200 and fetch(server, "/test-bucket/f").body == data
    for source, status in (("test-bucket/nothing", 404), ("nobody/x", 404), ("x", 400), ("/%zz/x", 400)):
        assert fetch(server, "/test-bucket/g", "PUT", b"", {"x-goog-copy-source": source}).status == status
    for target in ("copyTo/b/test-bucket/o/", "copyTo/x/test-bucket/o/y", "rewriteTo/b/test-bucket/o/%zz"):
        assert fetch(server, f"{BASE}/a%2Fb/{target}", "POST", b"").status in (400, 404)


def test_touch_makes_another_generation(bucket: storage.Bucket, server: Server) -> None:
    bucket.blob("x").upload_from_string(b"data")
    before = bucket.get_blob("x").generation
    after = int(fetch(server, "/_devstore/touch?bucket=test-bucket&name=x", "POST", b"").json["generation"])
    assert before < after == bucket.get_blob("x").generation
    assert bucket.blob("x", generation=after).download_as_bytes() == b"data"
    assert bucket.blob("x").exists() and not bucket.blob("x", generation=before).exists()
    assert fetch(server, "/_devstore/touch?bucket=made-up&name=obj-000000003", "POST", b"").status == 200
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
    blob.patch()
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


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_soft_deleted_objects_are_listed(devstore: StartDevstore, connect: Connect, tmp_path: Path, kind: str) -> None:
    server = devstore("--soft-delete-s", "600", *(["--memory"] if kind == "memory" else ["--root", tmp_path]))
    bucket = connect(server).create_bucket("test-bucket")
    generations = []
    for name in ("b", "a/1", "b", "c"):
        blob = bucket.blob(name)
        blob.upload_from_string(name.encode() * 10)
        generations.append(blob.generation)
    for name in ("a/1", "b"):
        bucket.blob(name).delete()
    assert [blob.name for blob in bucket.list_blobs()] == ["c"]
    for page_size in (1, 2, 1000):
        deleted = list(bucket.list_blobs(soft_deleted=True, page_size=page_size))
        assert [(blob.name, blob.generation) for blob in deleted] == [
            ("a/1", generations[1]),
            ("b", generations[0]),
            ("b", generations[2]),
        ]
    assert (deleted[0].hard_delete_time - deleted[0].soft_delete_time).total_seconds() == 600
    assert [blob.size for blob in bucket.list_blobs(soft_deleted=True, prefix="b")] == [10, 10]
    assert fetch(server, f"{BASE}?softDeleted=true&pageToken=eA").status == 400
    bucket.client.create_bucket("other-bucket")
    assert list(bucket.client.list_blobs("other-bucket", soft_deleted=True)) == []
