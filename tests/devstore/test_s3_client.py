"""boto3 against the development store, from end to end."""

from __future__ import annotations

import base64
import hashlib
import io
import socket
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import fetch
from tests.devstore.s3 import KEY, SECRET, client, refusal

NAMES = ["a b/ü+%2F~.txt", "c/1", "c/2", "d\n\r\t\x01\x7f", "e&<>\"'", "f//g", "h/", "i/../j", "." * 3, "k" * 1024]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the caller's."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")


@pytest.fixture(params=["memory", "folder"])
def server(request: pytest.FixtureRequest, devstore: StartDevstore, tmp_path: Path) -> Server:
    where = ["--memory"] if request.param == "memory" else ["--root", str(tmp_path)]
    return devstore(*where, "--s3-key", f"{KEY}:{SECRET}", "--s3-region", "us-east-1", "--min-part-bytes", "1000")


@pytest.fixture
def s3(server: Server) -> Any:
    one = client(server)
    one.create_bucket(Bucket="bucket")
    return one


def put(s3: Any, name: str, data: bytes = b"x", **more: Any) -> str:
    return str(s3.put_object(Bucket="bucket", Key=name, Body=data, **more)["ETag"])


def test_buckets(s3: Any, server: Server) -> None:
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"of-gcs"}').status == 200
    assert [b["Name"] for b in s3.list_buckets()["Buckets"]] == ["bucket", "of-gcs"]
    page = s3.list_buckets(MaxBuckets=1, Prefix="b")
    assert [b["Name"] for b in page["Buckets"]] == ["bucket"]
    first = s3.list_buckets(MaxBuckets=1)
    rest = s3.list_buckets(ContinuationToken=first["ContinuationToken"])
    assert [b["Name"] for b in rest["Buckets"]] == ["of-gcs"] and "ContinuationToken" not in rest
    assert s3.head_bucket(Bucket="bucket")["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket="bucket")["LocationConstraint"] is None
    for call, name, expected in (
        (s3.create_bucket, "bucket", (409, "BucketAlreadyOwnedByYou")),
        (s3.create_bucket, "a..-", (400, "InvalidBucketName")),
        (s3.head_bucket, "nobody", (404, "404")),
        (s3.get_bucket_location, "nobody", (404, "NoSuchBucket")),
        (s3.list_objects_v2, "nobody", (404, "NoSuchBucket")),
        (s3.delete_bucket, "bucket", (501, "NotImplemented")),
        (s3.get_bucket_versioning, "bucket", (501, "NotImplemented")),
    ):
        with pytest.raises(ClientError) as error:
            call(Bucket=name)
        assert refusal(error.value) == expected


def test_names_survive(s3: Any, server: Server) -> None:
    for name in NAMES:
        assert put(s3, name, name.encode()) == f'"{hashlib.md5(name.encode()).hexdigest()}"'
    listed = s3.list_objects_v2(Bucket="bucket")["Contents"]  # boto3 asks for encoding-type=url, and decodes
    assert [o["Key"] for o in listed] == sorted(NAMES, key=str.encode)
    assert [o["Size"] for o in listed] == [len(o["Key"].encode()) for o in listed]
    for name in NAMES:
        got = s3.get_object(Bucket="bucket", Key=name)
        assert got["Body"].read() == name.encode() and got["ContentType"] == "binary/octet-stream"
    assert len(fetch(server, "/storage/v1/b/bucket/o").json["items"]) == len(NAMES)


def test_listing_pages(s3: Any) -> None:
    names = [f"{a}/{b}" for a in "abc" for b in range(3)] + ["d", "e"]
    for name in names:
        put(s3, name)

    def pages(**more: Any) -> tuple[list[str], list[str], int]:
        found: list[str] = []
        groups: list[str] = []
        n = 0
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", **more):
            found += [o["Key"] for o in page.get("Contents", [])]
            groups += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
            assert page["KeyCount"] == len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
            n += 1
        return found, groups, n

    assert pages(PaginationConfig={"PageSize": 4}) == (names, [], 3)
    assert pages(PaginationConfig={"PageSize": 2}, Delimiter="/") == (["d", "e"], ["a/", "b/", "c/"], 3)
    assert pages(Prefix="b/") == (["b/0", "b/1", "b/2"], [], 1)
    assert pages(Prefix="b/", Delimiter="/", StartAfter="b/1") == (["b/2"], [], 1)
    assert pages(StartAfter="b/1") == (["b/2", "c/0", "c/1", "c/2", "d", "e"], [], 1)
    assert pages(StartAfter="b/", Delimiter="/") == (["d", "e"], ["c/"], 1)  # b/ was given already
    none = s3.list_objects_v2(Bucket="bucket", MaxKeys=0)
    assert none["KeyCount"] == 0 and not none["IsTruncated"]
    owned = s3.list_objects_v2(Bucket="bucket", FetchOwner=True, MaxKeys=1)["Contents"][0]
    assert owned["Owner"]["ID"] == "devstore" and owned["ChecksumType"] == "FULL_OBJECT"
    first = s3.list_objects(Bucket="bucket", Delimiter="/", MaxKeys=2)
    assert first["NextMarker"] == "b/" and "Owner" in s3.list_objects(Bucket="bucket")["Contents"][0]
    second = s3.list_objects(Bucket="bucket", Delimiter="/", Marker=first["NextMarker"])
    assert [p["Prefix"] for p in second["CommonPrefixes"]] == ["c/"]
    assert [o["Key"] for o in second["Contents"]] == ["d", "e"]


def test_reads(s3: Any) -> None:
    data = bytes(range(256)) * 10
    etag = put(
        s3, "x", data, Metadata={"Key": "value"}, ContentType="a/b", CacheControl="no-store", StorageClass="GLACIER_IR"
    )
    head = s3.head_object(Bucket="bucket", Key="x")
    assert head["ContentLength"] == len(data) and head["ETag"] == etag and head["StorageClass"] == "GLACIER_IR"
    assert head["Metadata"] == {"key": "value"} and head["ContentType"] == "a/b" and head["CacheControl"] == "no-store"
    for range_, wanted in (("bytes=10-19", data[10:20]), ("bytes=-5", data[-5:]), ("bytes=2000-9999", data[2000:])):
        got = s3.get_object(Bucket="bucket", Key="x", Range=range_, IfMatch=etag)
        assert got["Body"].read() == wanted and got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert s3.get_object(Bucket="bucket", Key="x", PartNumber=1)["Body"].read() == data
    for more, expected in (
        ({"IfMatch": '"0"'}, (412, "PreconditionFailed")),
        ({"IfNoneMatch": etag}, (304, "304")),
        ({"Range": "bytes=2560-"}, (416, "InvalidRange")),
        ({"PartNumber": 2}, (416, "InvalidPartNumber")),
        ({"Key": "y"}, (404, "NoSuchKey")),
    ):
        with pytest.raises(ClientError) as error:
            s3.get_object(**{"Bucket": "bucket", "Key": "x", **more})
        assert refusal(error.value) == expected
    put(s3, "cold", StorageClass="GLACIER")
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket="bucket", Key="cold")
    assert refusal(error.value) == (403, "InvalidObjectState")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums_are_checked_and_kept(s3: Any, algorithm: str) -> None:
    """boto3 sums with awscrt, and checks what a get with ChecksumMode answers."""
    data = bytes(range(256)) * 30
    made = s3.put_object(Bucket="bucket", Key="x", Body=data, ChecksumAlgorithm=algorithm)
    field = f"Checksum{algorithm}"
    got = s3.get_object(Bucket="bucket", Key="x", ChecksumMode="ENABLED")
    assert got["Body"].read() == data and got[field] == made[field] and got["ChecksumType"] == "FULL_OBJECT"
    assert field not in s3.get_object(Bucket="bucket", Key="x", ChecksumMode="ENABLED", Range="bytes=0-9")
    assert s3.list_objects_v2(Bucket="bucket")["Contents"][0]["ChecksumAlgorithm"] == [algorithm]
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="bucket", Key="y", Body=data + b"x", **{field: made[field]})
    assert refusal(error.value) == (400, "BadDigest")


def test_without_a_checksum_it_is_crc64nvme_and_of_gcs_crc32c(s3: Any, server: Server) -> None:
    plain = client(server, config={"request_checksum_calculation": "when_required"})
    assert plain.put_object(Bucket="bucket", Key="x", Body=b"hello")["ChecksumCRC64NVME"]
    fetch(server, "/upload/storage/v1/b/bucket/o?uploadType=media&name=gcs", "POST", b"hello")
    got = s3.get_object(Bucket="bucket", Key="gcs", ChecksumMode="ENABLED")
    assert got["ChecksumCRC32C"] == base64.b64encode(google_crc32c.Checksum(b"hello").digest()).decode()
    assert got["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"' and got["Body"].read() == b"hello"


def test_conditional_writes(s3: Any) -> None:
    first = put(s3, "x", b"1", IfNoneMatch="*")
    second = put(s3, "x", b"2", IfMatch=first)
    for more, expected in (
        ({"IfNoneMatch": "*"}, (412, "PreconditionFailed")),
        ({"IfMatch": first}, (412, "PreconditionFailed")),
        ({"IfMatch": first, "Key": "y"}, (404, "NoSuchKey")),
        ({"IfNoneMatch": first}, (501, "NotImplemented")),
    ):
        with pytest.raises(ClientError) as error:
            s3.put_object(**{"Bucket": "bucket", "Key": "x", "Body": b"3", **more})
        assert refusal(error.value) == expected
    with pytest.raises(ClientError) as error:
        s3.delete_object(Bucket="bucket", Key="x", IfMatch=first)
    assert refusal(error.value) == (412, "PreconditionFailed")
    assert s3.get_object(Bucket="bucket", Key="x")["Body"].read() == b"2"
    s3.delete_object(Bucket="bucket", Key="x", IfMatch=second)
    s3.delete_object(Bucket="bucket", Key="x")  # what is not there is deleted
    assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 0


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("CRC32C", "COMPOSITE"), ("CRC32C", "FULL_OBJECT")]
    + [("CRC64NVME", "FULL_OBJECT"), ("SHA1", "COMPOSITE"), ("SHA256", "COMPOSITE")],
)
def test_multipart(s3: Any, algorithm: str, kind: str) -> None:
    names = {"Bucket": "bucket", "Key": "m"}
    parts = [bytes([n]) * size for n, size in ((1, 1500), (2, 1000), (3, 10))]
    begun = s3.create_multipart_upload(
        **names, ChecksumAlgorithm=algorithm, ChecksumType=kind, Metadata={"a": "b"}, ContentType="c/d"
    )
    upload = {**names, "UploadId": begun["UploadId"]}
    assert begun["ChecksumAlgorithm"] == algorithm and begun["ChecksumType"] == kind
    done = []
    for number, data in zip((1, 3, 7), parts):
        part = s3.upload_part(**upload, PartNumber=number, Body=data, ChecksumAlgorithm=algorithm)
        assert part["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        field = f"Checksum{algorithm}"
        done.append({"PartNumber": number, "ETag": part["ETag"], field: part[field]})
    listed = s3.list_parts(**upload, MaxParts=2)
    assert [p["PartNumber"] for p in listed["Parts"]] == [1, 3] and listed["IsTruncated"]
    listed = s3.list_parts(**upload, PartNumberMarker=listed["NextPartNumberMarker"])
    assert [p["Size"] for p in listed["Parts"]] == [10] and listed["ChecksumAlgorithm"] == algorithm
    assert listed["Parts"][0][field] == done[2][field]
    made = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})
    digest = hashlib.md5(b"".join(hashlib.md5(data).digest() for data in parts)).hexdigest()
    assert made["ETag"] == f'"{digest}-3"' and made["ChecksumType"] == kind
    got = s3.get_object(**names, ChecksumMode="ENABLED")
    assert got["Body"].read() == b"".join(parts) and got["ETag"] == made["ETag"] and got[field] == made[field]
    assert got["ContentType"] == "c/d" and got["Metadata"] == {"a": "b"}
    if kind == "FULL_OBJECT":
        whole = s3.put_object(Bucket="bucket", Key="whole", Body=b"".join(parts), ChecksumAlgorithm=algorithm)
        assert made[field] == whole[field]
    else:
        assert made[field].endswith("-3")
    two = s3.get_object(**names, PartNumber=2, ChecksumMode="ENABLED")
    assert two["Body"].read() == parts[1] and two["PartsCount"] == 3 and two["ContentRange"] == "bytes 1500-2499/2510"
    assert two[field] == done[1][field]
    with pytest.raises(ClientError) as error:
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})
    assert refusal(error.value) == (404, "NoSuchUpload")


def test_uploads_are_listed_and_aborted(s3: Any) -> None:
    begun = [
        (key, s3.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]) for key in ("b/1", "a", "b/2", "a")
    ]
    listed = [(u["Key"], u["UploadId"]) for u in s3.list_multipart_uploads(Bucket="bucket")["Uploads"]]
    assert sorted(listed) == sorted(begun) and [key for key, _ in listed] == ["a", "a", "b/1", "b/2"]
    found = []
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket="bucket", PaginationConfig={"PageSize": 1}):
        found += [(u["Key"], u["UploadId"]) for u in page["Uploads"]]
    assert found == listed
    grouped = s3.list_multipart_uploads(Bucket="bucket", Delimiter="/")
    assert [p["Prefix"] for p in grouped["CommonPrefixes"]] == ["b/"] and len(grouped["Uploads"]) == 2
    assert len(s3.list_multipart_uploads(Bucket="bucket", Prefix="b/2")["Uploads"]) == 1
    for key, upload in begun:
        s3.abort_multipart_upload(Bucket="bucket", Key=key, UploadId=upload)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="bucket")
    with pytest.raises(ClientError) as error:
        s3.upload_part(Bucket="bucket", Key="a", UploadId=begun[1][1], PartNumber=1, Body=b"x")
    assert refusal(error.value) == (404, "NoSuchUpload")


def test_complete_is_conditional(s3: Any) -> None:
    def complete(**more: Any) -> Any:
        upload = {"Bucket": "bucket", "Key": "x"}
        upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
        part = s3.upload_part(**upload, PartNumber=1, Body=b"part")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        return s3.complete_multipart_upload(**upload, MultipartUpload=parts, **more)

    made = complete(IfNoneMatch="*", MpuObjectSize=4)
    complete(IfMatch=made["ETag"])
    for more, expected in (
        ({"IfNoneMatch": "*"}, (412, "PreconditionFailed")),
        ({"IfMatch": '"0-1"'}, (412, "PreconditionFailed")),
        ({"MpuObjectSize": 5}, (400, "InvalidRequest")),
        ({"ChecksumCRC64NVME": "AAAAAAAAAAA="}, (400, "BadDigest")),
    ):
        with pytest.raises(ClientError) as error:
            complete(**more)
        assert refusal(error.value) == expected


def test_deletes_a_thousand_at_once(s3: Any, server: Server) -> None:
    names = ["a\n\r b", "c&<>", *(f"{i:04}" for i in range(998))]
    for name in names[:5]:
        put(s3, name)
    etag = put(s3, "kept", b"1")
    answer = s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": name} for name in names]})
    assert [d["Key"] for d in answer["Deleted"]] == ["a\n\r b", *names[1:]] and "Errors" not in answer
    listed = {"Key": "kept", "ETag": '"0"'}, {"Key": "kept", "VersionId": "v"}
    answer = s3.delete_objects(Bucket="bucket", Delete={"Objects": listed, "Quiet": True})
    assert [(e["Key"], e["Code"]) for e in answer["Errors"]] == [
        ("kept", "PreconditionFailed"),
        ("kept", "NoSuchVersion"),
    ]
    assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 1
    s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "kept", "ETag": etag}]})
    assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 0
    counts = fetch(server, "/_devstore/stats").json
    assert counts["requests"]["batch"] == 3 and counts["batched"]["delete"] == 1003
    with pytest.raises(ClientError) as error:
        s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": str(i)} for i in range(1001)]})
    assert refusal(error.value) == (400, "MalformedXML")


def test_transfer_manager(s3: Any) -> None:
    """boto3's own upload and download in parts and threads."""
    data = hashlib.shake_256(b"seed").digest(3 << 20)
    config = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=1 << 20, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(data), "bucket", "big", Config=config)
    got = io.BytesIO()
    s3.download_fileobj("bucket", "big", got, Config=config)
    assert got.getvalue() == data


@pytest.mark.parametrize("host", ["localhost", "s3.localhost"])
def test_virtual_hosts(s3: Any, server: Server, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    real = socket.getaddrinfo

    def local(name: Any, *arguments: Any, **more: Any) -> Any:
        return real("127.0.0.1" if str(name).endswith("localhost") else name, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    named = client(server, host, "virtual")
    named.put_object(Bucket="bucket", Key="storage/v1/b", Body=b"x")
    assert [o["Key"] for o in named.list_objects_v2(Bucket="bucket")["Contents"]] == ["storage/v1/b"]
    assert named.get_object(Bucket="bucket", Key="storage/v1/b")["Body"].read() == b"x"
    assert [b["Name"] for b in named.list_buckets()["Buckets"]] == ["bucket"]


def test_express(devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 makes a session for a directory bucket, and signs with its keys."""
    server = devstore("--memory", "--s3-key", f"{KEY}:{SECRET}")
    fetch(server, "/storage/v1/b", "POST", b'{"name":"mine--use1-az4--x-s3"}')
    express = client(server)
    names = {"Bucket": "mine--use1-az4--x-s3", "Key": "a/b"}
    made = express.create_session(Bucket=names["Bucket"])["Credentials"]
    assert made["AccessKeyId"].startswith("MRSESSION")
    express.put_object(**names, Body=b"data")
    assert express.get_object(**names)["Body"].read() == b"data"
    assert express.list_objects_v2(Bucket=names["Bucket"], Prefix="a/")["KeyCount"] == 1
    nothing = express.list_objects_v2(Bucket=names["Bucket"], MaxKeys=0)
    assert (nothing["KeyCount"], nothing["IsTruncated"]) == (0, False)
    with pytest.raises(ClientError) as error:
        express.list_objects_v2(Bucket=names["Bucket"], Prefix="a")
    assert refusal(error.value) == (400, "InvalidArgument")
    assert "A directory bucket lists from the start, and prefixes that end in /" in str(error.value)


def test_objects_outlive_a_restart(devstore: StartDevstore, tmp_path: Path) -> None:
    first = devstore("--root", str(tmp_path))
    one = client(first)
    one.create_bucket(Bucket="bucket")
    put(one, "x", b"data")
    first.stop()
    again = client(devstore("--root", str(tmp_path)))
    etag = again.head_object(Bucket="bucket", Key="x")["ETag"]
    assert etag.endswith('-1"')  # no MD5 is known any more, and nobody takes this for one
    assert again.get_object(Bucket="bucket", Key="x", IfMatch=etag, ChecksumMode="ENABLED")["Body"].read() == b"data"
    assert again.list_objects_v2(Bucket="bucket")["Contents"][0]["ETag"] == etag
