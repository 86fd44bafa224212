"""The store held against Google's own Python client: what it lists, reads, writes, composes and deletes."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path

import google_crc32c
import pytest
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage import transfer_manager

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Connect, fetch, statistics

NAMES = ["a/1", "a/2", "a/b/3", "a0", "b", "b/c", "b//d", "é/ü", "z z+%2F", "Z"]  # in no order


def content(name: str) -> bytes:
    return name.encode() * 1000


def crc(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@pytest.fixture(params=["memory", "folder"])
def server(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path: Path) -> Server:
    return devstore("--memory") if request.param == "memory" else devstore("--root", tmp_path)


@pytest.fixture
def bucket(server: Server, connect: Connect) -> storage.Bucket:
    bucket = connect(server).create_bucket("test-bucket")
    for name in NAMES:
        bucket.blob(name).upload_from_string(content(name), content_type="text/x-test")
    return bucket


def test_list_is_sorted_by_bytes_and_complete(bucket: storage.Bucket) -> None:
    blobs = list(bucket.list_blobs())
    assert [blob.name for blob in blobs] == sorted(NAMES, key=lambda name: name.encode())
    for blob in blobs:
        assert blob.size == len(content(blob.name))
        assert blob.crc32c == crc(content(blob.name))
        assert blob.content_type == "text/x-test"
        assert blob.generation > 0 and blob.metageneration == 1
        assert blob.md5_hash == base64.b64encode(hashlib.md5(content(blob.name)).digest()).decode()


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("prefix", "start", "end"),
    [
        ("", "", ""),
        ("a", "", ""),
        ("a/", "a/2", ""),
        ("", "a/2", "b/c"),
        ("b", "a", "b/"),
        ("none", "", ""),
        ("", "é", ""),
    ],
)
def test_list_of_a_range_is_the_same_for_any_page_size(
    bucket: storage.Bucket, prefix: str, start: str, end: str, page_size: int
) -> None:
    expected = sorted(
        name
        for name in NAMES
        if name.startswith(prefix) and name.encode() >= start.encode() and (not end or name.encode() < end.encode())
    )
    found = bucket.list_blobs(prefix=prefix, start_offset=start, end_offset=end, page_size=page_size)
    assert [blob.name for blob in found] == expected


@pytest.mark.parametrize("page_size", [1, 2, 1000])
@pytest.mark.parametrize("prefix", ["", "a/", "b", "b/", "é"])
@pytest.mark.parametrize("delimiter", ["/", "//", "b/"])
def test_list_with_a_delimiter(bucket: storage.Bucket, prefix: str, delimiter: str, page_size: int) -> None:
    items: set[str] = set()
    prefixes: set[str] = set()
    for name in NAMES:
        if name.startswith(prefix):
            head, found, _ = name[len(prefix) :].partition(delimiter)
            (prefixes if found else items).add(prefix + head + found)
    iterator = bucket.list_blobs(prefix=prefix, delimiter=delimiter, page_size=page_size)
    assert [blob.name for blob in iterator] == sorted(items)
    assert iterator.prefixes == prefixes


def test_fields_are_honoured(bucket: storage.Bucket, server: Server) -> None:
    base = "/storage/v1/b/test-bucket/o"
    page = fetch(server, f"{base}?maxResults=2&fields=items(name,size),nextPageToken").json
    assert set(page) == {"items", "nextPageToken"}
    assert [set(item) for item in page["items"]] == [{"name", "size"}] * 2
    page = fetch(server, f"{base}?maxResults=2&fields=items/name,items/crc32c").json
    assert set(page) == {"items"}
    assert set(page["items"][0]) == {"name", "crc32c"}
    assert set(fetch(server, f"{base}?maxResults=2&fields=nextPageToken").json) == {"nextPageToken"}
    assert set(fetch(server, f"{base}?delimiter=/&fields=prefixes").json) == {"prefixes"}
    assert set(fetch(server, f"{base}/b?fields=generation,size").json) == {"generation", "size"}
    assert fetch(server, f"{base}/b?fields=owner").json == {}
    for bad in ["items(name", "items(bogus)", "bogus", "items(name))", ",", "items/", "(" * 40]:
        reply = fetch(server, f"{base}?fields={bad}")
        assert reply.status == 400 and reply.json["error"]["code"] == 400, bad


def test_download_whole_and_in_ranges(bucket: storage.Bucket) -> None:
    for name in NAMES:
        blob = bucket.get_blob(name)
        data = content(name)
        assert blob.download_as_bytes(checksum="crc32c") == data
        assert bucket.blob(name).download_as_bytes() == data
        assert blob.download_as_bytes(start=10, end=19) == data[10:20]
        assert blob.download_as_bytes(start=len(data) - 5) == data[-5:]
        assert bucket.blob(name, generation=blob.generation).download_as_bytes() == data
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        bucket.blob("Z").download_as_bytes(start=5000)


def test_a_missing_object_and_another_generation(bucket: storage.Bucket) -> None:
    generation = bucket.get_blob("b").generation
    assert bucket.get_blob("missing") is None
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").download_as_bytes()
    with pytest.raises(exceptions.NotFound):
        bucket.blob("b", generation=generation + 1).download_as_bytes()
    with pytest.raises(exceptions.NotFound):
        bucket.client.bucket("no-such-bucket").blob("b").download_as_bytes()
    with pytest.raises(exceptions.NotFound):
        list(bucket.client.list_blobs("no-such-bucket"))


def test_preconditions_of_reads(bucket: storage.Bucket) -> None:
    generation = bucket.get_blob("b").generation
    blob = bucket.blob("b")
    assert blob.download_as_bytes(if_generation_match=generation, if_metageneration_match=1) == content("b")
    assert blob.download_as_bytes(if_generation_not_match=generation + 1) == content("b")
    with pytest.raises(exceptions.PreconditionFailed):
        blob.download_as_bytes(if_generation_match=generation + 1)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.download_as_bytes(if_metageneration_match=2)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.reload(if_generation_match=generation + 1)
    with pytest.raises(exceptions.NotModified):
        blob.download_as_bytes(if_generation_not_match=generation)


def test_preconditions_of_writes(bucket: storage.Bucket) -> None:
    blob = bucket.blob("b")
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"new", if_generation_match=0)
    assert bucket.blob("b").download_as_bytes() == content("b")
    generation = bucket.get_blob("b").generation
    blob.upload_from_string(b"new", if_generation_match=generation)
    assert blob.generation > generation
    assert bucket.blob("b").download_as_bytes() == b"new"
    bucket.blob("fresh").upload_from_string(b"1", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("fresher").upload_from_string(b"1", if_generation_match=5)
    assert bucket.get_blob("fresher") is None


def test_upload_checks_the_checksum(bucket: storage.Bucket) -> None:
    blob = bucket.blob("sum")
    blob.crc32c = crc(b"other bytes")
    with pytest.raises(exceptions.BadRequest, match="CRC32C"):
        blob.upload_from_file(io.BytesIO(b"bytes"), size=5, checksum=None)
    assert bucket.get_blob("sum") is None
    bucket.blob("sum").upload_from_file(io.BytesIO(b"bytes"), size=5, checksum="crc32c")
    assert bucket.get_blob("sum").crc32c == crc(b"bytes")


def test_attributes_come_back(bucket: storage.Bucket) -> None:
    blob = bucket.blob("dressed")
    blob.metadata = {"who": "me", "ü": '"quoted"\n'}
    blob.cache_control = "no-store"
    blob.content_encoding = "x-odd"
    blob.upload_from_string(b"", content_type="image/png")
    found = bucket.get_blob("dressed")
    assert found.metadata == blob.metadata
    assert (found.size, found.cache_control, found.content_encoding) == (0, "no-store", "x-odd")
    assert found.content_type == "image/png"
    assert found.crc32c == "AAAAAA=="


@pytest.mark.parametrize("length", [0, 1, 50, 133, 134, 135, 70_000, 3_000_001])
def test_multipart_upload_of_any_length(bucket: storage.Bucket, length: int) -> None:
    data = (b"\r\n--" + bytes(range(256))) * (length // 260 + 1)
    data = data[:length]
    bucket.blob("multi").upload_from_string(data)
    assert bucket.blob("multi").download_as_bytes() == data


def test_compose(bucket: storage.Bucket) -> None:
    parts = [bucket.get_blob(name) for name in ("a/1", "é/ü", "a/2")]
    whole = b"".join(content(part.name) for part in parts)
    target = bucket.blob("dataflux-composed-objects/x")
    target.content_type = "application/x-composed"
    target.compose(parts, if_generation_match=0)
    found = bucket.get_blob(target.name)
    assert found.download_as_bytes() == whole
    assert found.download_as_bytes(start=500, end=9000) == whole[500:9001]
    assert (found.size, found.component_count, found.crc32c) == (len(whole), 3, crc(whole))
    assert found.content_type == "application/x-composed"
    again = bucket.blob("again")
    again.compose([found, bucket.blob("b")])
    assert bucket.get_blob("again").component_count == 4
    assert again.download_as_bytes() == whole + content("b")
    bucket.delete_blobs(parts)  # the composite does not depend on its sources
    assert found.download_as_bytes() == whole
    with pytest.raises(exceptions.PreconditionFailed):
        target.compose([found], if_generation_match=0)


def test_compose_of_wrong_sources(bucket: storage.Bucket) -> None:
    generation = bucket.get_blob("a/1").generation
    target = bucket.blob("composite")
    with pytest.raises(exceptions.NotFound):
        target.compose([bucket.blob("missing")])
    with pytest.raises(exceptions.NotFound):
        target.compose([bucket.blob("a/1", generation=generation + 1)])
    with pytest.raises(exceptions.PreconditionFailed):
        target.compose([bucket.blob("a/1")], if_source_generation_match=[generation + 1])
    with pytest.raises(exceptions.BadRequest):
        target.compose([bucket.blob("a/1")] * 33)
    with pytest.raises(exceptions.BadRequest):
        target.compose([])
    assert bucket.get_blob("composite") is None
    target.compose([bucket.blob("a/1", generation=generation)] * 32, if_source_generation_match=[generation] * 32)
    assert target.download_as_bytes() == content("a/1") * 32


def test_delete(bucket: storage.Bucket) -> None:
    generation = bucket.get_blob("b").generation
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("b").delete(if_generation_match=generation + 1)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("b", generation=generation + 1).delete()
    bucket.blob("b").delete(if_generation_match=generation)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("b").delete()
    assert [blob.name for blob in bucket.list_blobs(prefix="b")] == ["b//d", "b/c"]
    bucket.blob("b").upload_from_string(b"again")
    assert bucket.get_blob("b").generation > generation


def test_batch(bucket: storage.Bucket, server: Server) -> None:
    blobs = [bucket.blob(name) for name in NAMES[:5]]
    before = statistics(server)["requests"]
    with bucket.client.batch():
        for blob in blobs:
            blob.delete()
    after = statistics(server)["requests"]
    assert after["batch"] - before["batch"] == 1 and after["delete"] == before["delete"]
    assert sorted(blob.name for blob in bucket.list_blobs()) == sorted(NAMES[5:])
    with bucket.client.batch(raise_exception=False) as batch:
        bucket.blob("missing").delete()
        bucket.blob("Z").reload()
        bucket.blob("Z").delete()
    assert [response.status_code for response in batch._responses] == [404, 200, 204]
    assert bucket.get_blob("Z") is None


def test_a_batch_of_over_100_calls_is_refused(bucket: storage.Bucket, server: Server) -> None:
    call = b"--x\r\nContent-Type: application/http\r\n\r\nDELETE /storage/v1/b/test-bucket/o/b HTTP/1.1\r\n\r\n"
    headers = {"Content-Type": "multipart/mixed; boundary=x"}
    reply = fetch(server, "/batch/storage/v1", "POST", call * 101 + b"--x--", headers)
    assert reply.status == 400 and bucket.get_blob("b") is not None
    reply = fetch(server, "/batch/storage/v1", "POST", call * 100 + b"--x--", headers)
    assert reply.status == 200
    assert reply.body.count(b"HTTP/1.1 204 No Content\r\n") == 1
    assert reply.body.count(b"HTTP/1.1 404 Not Found\r\n") == 99


def test_permissions(devstore: StartDevstore, connect: Connect) -> None:
    asked = ["storage.objects.get", "storage.objects.create", "storage.objects.delete"]
    server = devstore("--memory", "--deny", "storage.objects.create")
    bucket = connect(server).create_bucket("test-bucket")
    assert bucket.test_iam_permissions(asked) == [asked[0], asked[2]]
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("x").upload_from_string(b"x")
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("x").compose([bucket.blob("y")])
    assert list(bucket.list_blobs()) == []


def test_what_a_bucket_says_of_itself(devstore: StartDevstore, connect: Connect) -> None:
    plain = connect(devstore("--memory")).create_bucket("plain-bucket")
    plain.reload()
    assert (plain.storage_class, plain.location, plain.location_type) == ("STANDARD", "DEVSTORE", "region")
    assert plain.soft_delete_policy.retention_duration_seconds == 0 and not plain.hierarchical_namespace_enabled
    assert plain.time_created is not None and not plain.requester_pays and not plain.versioning_enabled
    flags = ["--storage-class", "NEARLINE", "--soft-delete-s", "604800", "--hierarchical", "--location", "EU"]
    bucket = connect(devstore("--memory", *flags)).create_bucket("b-2")
    bucket.reload()
    assert (bucket.storage_class, bucket.location) == ("NEARLINE", "EU")
    assert bucket.soft_delete_policy.retention_duration_seconds == 604800 and bucket.hierarchical_namespace_enabled
    bucket.blob("x").upload_from_string(b"x")
    assert bucket.get_blob("x").storage_class == "NEARLINE"


def test_fields_of_a_bucket(devstore: StartDevstore) -> None:
    server = devstore("--synthetic", "made-up:1:1", "--soft-delete-s", "7")
    base = "/storage/v1/b/made-up"
    asked = "?fields=storageClass,softDeletePolicy/retentionDurationSeconds,hierarchicalNamespace(enabled)"
    assert fetch(server, base + asked).json == {
        "storageClass": "STANDARD",
        "softDeletePolicy": {"retentionDurationSeconds": "7"},
        "hierarchicalNamespace": {"enabled": False},
    }
    assert fetch(server, "/storage/v1/b?fields=items/name").json == {"items": [{"name": "made-up"}]}
    assert fetch(server, base + "?fields=bogus").status == 400


def test_a_zonal_bucket_composes_nothing(devstore: StartDevstore, connect: Connect) -> None:
    bucket = connect(devstore("--zonal")).create_bucket("zonal-bucket")
    bucket.reload()
    assert (bucket.storage_class, bucket.location_type) == ("RAPID", "zone") and bucket.hierarchical_namespace_enabled
    bucket.blob("x").upload_from_string(b"x")
    with pytest.raises(exceptions.BadRequest, match="RAPID"):
        bucket.blob("y").compose([bucket.blob("x")])


def test_requester_pays(devstore: StartDevstore, connect: Connect) -> None:
    client = connect(devstore("--memory", "--requester-pays"))
    client.create_bucket("pay-bucket")
    with pytest.raises(exceptions.BadRequest, match="requester pays"):
        client.bucket("pay-bucket").blob("x").upload_from_string(b"x")
    client.bucket("pay-bucket", user_project="mine").blob("x").upload_from_string(b"x")


def test_a_denied_bucket(devstore: StartDevstore, connect: Connect) -> None:
    client = connect(devstore("--synthetic", "made-up:1:1", "--deny", "storage.buckets.get"))
    with pytest.raises(exceptions.Forbidden):
        client.get_bucket("made-up")
    assert [blob.name for blob in client.list_blobs("made-up")] == ["obj-000000000"]


def test_buckets(server: Server, connect: Connect) -> None:
    client = connect(server)
    for name in ("second-b", "first-b"):
        client.create_bucket(name)
    assert [bucket.name for bucket in client.list_buckets()] == ["first-b", "second-b"]
    assert client.get_bucket("first-b").storage_class == "STANDARD"
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("first-b")
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("third-b")
    for bad in ("..", "UPPER", "a/b", "x", "-dash"):
        assert fetch(server, "/storage/v1/b", "POST", f'{{"name":"{bad}"}}'.encode()).status == 400


def test_a_large_upload_is_resumable(bucket: storage.Bucket, server: Server) -> None:
    data = bytes(range(256)) * 4096 * 9 + b"the rest"
    blob = bucket.blob("large", chunk_size=1 << 20)
    blob.metadata = {"key": "value"}
    blob.upload_from_file(io.BytesIO(data), size=len(data), content_type="a/b", checksum="crc32c")
    assert (blob.size, blob.crc32c, blob.content_type, blob.metadata) == (len(data), crc(data), "a/b", {"key": "value"})
    assert bucket.blob("large").download_as_bytes() == data
    blob.upload_from_file(io.BytesIO(data[:-9]), if_generation_match=blob.generation)  # of unknown size
    assert bucket.blob("large").download_as_bytes() == data[:-9]
    with bucket.blob("written").open("wb", chunk_size=1 << 18) as file:
        for at in range(0, len(data), 100_000):
            file.write(data[at : at + 100_000])
    assert bucket.blob("written").download_as_bytes() == data
    assert statistics(server)["requests"]["resumable"] == 3


def test_a_resumable_upload_survives_faults(devstore: StartDevstore, connect: Connect) -> None:
    server = devstore("--memory", "--fault", "status:first=1:503:resumable:*", "--fault", "status:first=1:503:chunk:*")
    bucket = connect(server).create_bucket("test-bucket")
    data = bytes(range(256)) * 4096 * 9  # over 8 MiB the client makes it resumable
    bucket.blob("x", chunk_size=1 << 20).upload_from_file(io.BytesIO(data), size=len(data), checksum="crc32c")
    assert bucket.blob("x").download_as_bytes() == data
    assert statistics(server)["faults"]["status"] > 1


def test_chunks_concurrently(bucket: storage.Bucket, server: Server, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 4096 * 12 + b"end")
    transfer_manager.upload_chunks_concurrently(
        str(source),
        bucket.blob("parts", chunk_size=None),
        content_type="a/b",
        chunk_size=5 << 20,
        max_workers=2,
        worker_type=transfer_manager.THREAD,
        checksum="crc32c",
    )
    blob = bucket.get_blob("parts")
    assert (blob.component_count, blob.content_type, blob.md5_hash) == (3, "a/b", None)
    assert blob.crc32c == crc(source.read_bytes()) and blob.download_as_bytes() == source.read_bytes()
    assert statistics(server)["requests"]["part"] == 3
    transfer_manager.download_chunks_concurrently(
        blob, str(tmp_path / "back"), chunk_size=4 << 20, max_workers=2, worker_type=transfer_manager.THREAD
    )
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
