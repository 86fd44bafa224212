"""The commands on s3:// against versitygw, which checks all that S3 checks, and moto."""

from __future__ import annotations

import gzip
import json
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDevstore
from tests.store.conftest import Run
from tests.store.s3_servers import S3, start_versitygw

MIB = 1 << 20
BIG = random.Random(1).randbytes(37 * MIB + 5)  # three parts of an upload
# What a URL, a signature or XML could get wrong. A server over files takes no name that is no path.
AWKWARD = ["a b", "c+d", "e%2Ff", "g&h<i>", "ü/日本", "q?r#s=t", "u'v\"w", "~x!*()", "y;z:$,@", "tab\tin"]
FLAT = ["f", "f/g", "\x01h"]


@pytest.fixture
def bucket(s3: S3, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, and the server's environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    name = "b-" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].strip("-")
    s3.put(name, {})
    return name


def ok(result: object, stderr: bytes | None = None) -> bytes:
    assert result.returncode == 0, result  # type: ignore[attr-defined]
    return bytes(result.stdout)  # type: ignore[attr-defined]


def test_there_and_back(s3: S3, bucket: str, millrace: Run, tmp_path: Path) -> None:
    for name, data in (("big", BIG), ("small", b"hello\n"), ("empty", b"")):
        (tmp_path / "here" / name).write_bytes(data)
        ok(millrace("cp", name, f"s3://{bucket}/folder/"))
        assert s3.get(bucket, f"folder/{name}") == data
        assert ok(millrace("cat", f"s3://{bucket}/folder/{name}")) == data
        ok(millrace("cp", f"s3://{bucket}/folder/{name}", f"{name}.back"))
        assert (tmp_path / "here" / f"{name}.back").read_bytes() == data
    ok(millrace("cp", f"s3://{bucket}/folder/big", f"s3://{bucket}/again"))
    assert s3.get(bucket, "again") == BIG
    ok(millrace("cp", "-", f"s3://{bucket}/stream", stdin=BIG[: 20 * MIB]))
    assert s3.get(bucket, "stream") == BIG[: 20 * MIB]
    assert millrace("cat", f"s3://{bucket}/no").returncode == 1
    ok(millrace("cp", "small", f"s3://{bucket}/folder/big"))  # what is there is replaced
    assert s3.get(bucket, "folder/big") == b"hello\n"


def test_names(s3: S3, bucket: str, millrace: Run) -> None:
    names = AWKWARD + (FLAT if s3.name != "versitygw" else [])
    s3.put(bucket, {name: name.encode() for name in names})
    listed = [
        json.loads(line)["uri"][len(f"s3://{bucket}/") :]
        for line in ok(millrace("ls", "-r", "--json", f"s3://{bucket}/")).splitlines()
    ]
    assert sorted(listed) == sorted(names)
    for name in listed:
        assert ok(millrace("cat", f"s3://{bucket}/{name}")) == name.encode()
    ok(millrace("rm", "-r", f"s3://{bucket}/"))
    assert s3.names(bucket) == []


def test_listing(s3: S3, bucket: str, millrace: Run, tmp_path: Path) -> None:
    s3.put(bucket, {f"train/{i:04}": bytes(i % 7) for i in range(1203)})  # two pages
    assert len(ok(millrace("ls", "-r", f"s3://{bucket}/train/")).splitlines()) == 1203
    assert ok(millrace("ls", f"s3://{bucket}/")) == f"s3://{bucket}/train/\n".encode()
    ok(millrace("index", f"s3://{bucket}/train/", "-o", "saved.mri"))
    about = json.loads(ok(millrace("index", "--json", "saved.mri")))
    assert (about["objects"], about["versions"], about["scheme"]) == (1203, "etag", "s3")
    ok(millrace("index", f"s3://{bucket}/train/", "-o", f"s3://{bucket}/saved.mri"))
    ok(millrace("cp", f"s3://{bucket}/saved.mri", "back.mri"))
    assert json.loads(ok(millrace("index", "--json", "back.mri")))["digest"] == about["digest"]


def test_if_absent(s3: S3, bucket: str, millrace: Run) -> None:
    ok(millrace("cp", "--if-absent", "-", f"s3://{bucket}/x", stdin=b"first"))
    second = millrace("cp", "--if-absent", "-", f"s3://{bucket}/x", stdin=b"second")
    assert second.returncode == 1 and b"exists" in second.stderr
    assert s3.get(bucket, "x") == b"first"
    large = millrace("cp", "--if-absent", "-", f"s3://{bucket}/x", stdin=BIG[: 20 * MIB])
    assert large.returncode == 1 and b"exists" in large.stderr
    assert s3.get(bucket, "x") == b"first"
    assert s3.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_remove(s3: S3, bucket: str, millrace: Run) -> None:
    s3.put(bucket, {f"a/{i:03}": b"x" for i in range(250)} | {"b": b"y", "c": b"z"})
    ok(millrace("rm", f"s3://{bucket}/b"))
    missing = millrace("rm", f"s3://{bucket}/b")
    assert missing.returncode == 1 and b"404" in missing.stderr
    report = json.loads(ok(millrace("rm", "-r", "--json", f"s3://{bucket}/a/")))
    assert report == {"deleted": 250, "failed": []}
    assert s3.names(bucket) == ["c"]


def test_unfinished_uploads(s3: S3, bucket: str, millrace: Run) -> None:
    client = s3.client()
    for name in ("x/one", "x/two"):
        client.create_multipart_upload(Bucket=bucket, Key=name)
    if s3.name == "versitygw":  # moto's began in 2010
        kept = millrace("clean", f"s3://{bucket}/x/")
        assert b"2 unfinished uploads" in kept.stderr and b"2 kept" in kept.stderr
    gone = millrace("clean", "--all", f"s3://{bucket}/x/")
    assert gone.returncode == 0 and b"2 removed" in gone.stderr, gone
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_no_compose(s3: S3, bucket: str, millrace: Run) -> None:
    s3.put(bucket, {"a": b"1", "b": b"2"})
    result = millrace("compose", f"s3://{bucket}/c", f"s3://{bucket}/a", f"s3://{bucket}/b")
    assert result.returncode == 2 and b"s3:// cannot put objects together" in result.stderr


def test_doctor(s3: S3, bucket: str, millrace: Run) -> None:
    s3.put(bucket, {"train/1": b"x"})
    lines = ok(millrace("doctor", f"s3://{bucket}/train/")).decode()
    for wanted in ("the first is train/1", f"s3://{bucket}", "AWS_ACCESS_KEY_ID", s3.server.url):
        assert wanted in lines, lines


WRITES = {  # what each server does with writes
    "versitygw": (
        "of new objects honoured, of replaced ones honoured, of uploads in parts honoured, of deletes ignored",
        "CRC32C of objects compared and kept, of uploads in parts kept; the size of those compared",
    ),
    "moto": (
        "of new objects honoured, of replaced ones honoured, of uploads in parts honoured, of deletes ignored",
        "CRC32C of objects not compared and not kept, of uploads in parts kept; the size of those not compared",
    ),
    "plain": (
        "of new objects ignored, of replaced ones ignored, of uploads in parts ignored, of deletes honoured",
        "CRC32C of objects not compared and not kept, of uploads in parts not kept; the size of those compared",
    ),
}


def test_doctor_on_writes(s3: S3, bucket: str, millrace: Run) -> None:
    lines = ok(millrace("doctor", "--write", f"s3://{bucket}/new/")).decode()
    for found in (*WRITES[s3.name], "of 5 MiB at least, but for the last", "no object is there yet"):
        assert found in lines, lines
    assert s3.names(bucket) == []
    assert s3.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    denied = millrace("doctor", "--write", "s3://no-such-bucket/x/")
    assert denied.returncode == 1 and b"FAIL" in denied.stdout
    assert b"--write needs a URI" in millrace("doctor", "--write").stderr


def test_settings_from_the_file(
    s3: S3, bucket: str, millrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    s3.put(bucket, {"x": b"data"})
    toml = tmp_path / "s3.toml"
    toml.write_text(f'[s3]\nendpoint = "{s3.server.url}"\naddressing = "path"\nregion = "us-east-1"\n')
    assert ok(millrace("cat", "-c", toml, f"s3://{bucket}/x")) == b"data"
    toml.write_text('[s3]\nendpoint = "ftp://x"\n')
    wrong = millrace("cat", "-c", toml, f"s3://{bucket}/x")
    assert wrong.returncode == 2 and b"is not of the form http[s]://host[:port]" in wrong.stderr
    toml.write_text('[s3]\nregion = "Europe"\n')
    wrong = millrace("cat", "-c", toml, f"s3://{bucket}/x")
    assert wrong.returncode == 2 and b'"Europe" is not a region of S3' in wrong.stderr


def test_a_store_that_compresses_its_answers(
    devstore: StartDevstore, millrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MinIO does from 1,000 bytes on, for who says that it takes gzip."""
    server = devstore("--memory", "--api", "s3", "--compress")
    plain = urllib.request.Request(f"{server.url}/bucket", method="PUT")
    urllib.request.urlopen(plain).close()
    for name, value in {"AWS_ENDPOINT_URL_S3": server.url, "AWS_ACCESS_KEY_ID": "id"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "here" / "big").write_bytes(BIG)
    names = [f"s3://bucket/a/{i:02}" for i in range(20)]
    for name in names:
        ok(millrace("cp", "-", name, stdin=b"data"))
    ok(millrace("cp", "big", "s3://bucket/b"))
    asked = urllib.request.Request(f"{server.url}/bucket?list-type=2", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["Content-Encoding"] == "gzip" and b"a/19" in gzip.decompress(answer.read())
    assert ok(millrace("ls", "-r", "s3://bucket/a/")).decode().split() == names
    assert ok(millrace("cat", "s3://bucket/b")) == BIG
    assert millrace("cat", f"s3://bucket/{'x' * 1000}").returncode == 1
    ok(millrace("rm", "-r", "s3://bucket/a/"))
    assert ok(millrace("ls", "-r", "s3://bucket/")) == b"s3://bucket/b\n"


# ---- what versitygw checks and moto does not ----


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    server = start_versitygw(tmp_path_factory.mktemp("strict"))
    yield server
    server.server.stop()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIDOTHER"}, b"No user exists with the provided access key"),
        ({"AWS_SECRET_ACCESS_KEY": "another"}, b"the secret key is not that of the access key"),
        ({"AWS_REGION": "eu-west-9"}, b""),
    ],
)
def test_refused(strict: S3, millrace: Run, variables: dict[str, str], words: bytes) -> None:
    strict.put("refused", {"x": b"data"})
    result = millrace("ls", "s3://refused/", **{**strict.environment, **variables})
    if words:
        assert result.returncode == 1 and words in result.stderr, result
    else:  # the answer names the region that is right
        assert result.stdout == b"s3://refused/x\n", result


def test_anonymous(strict: S3, millrace: Run, tmp_path: Path) -> None:
    strict.put("private", {"x": b"data"})
    toml = tmp_path / "anonymous.toml"
    toml.write_text('[s3]\nauth = "anonymous"\n')
    result = millrace("cat", "-c", toml, "s3://private/x", **strict.environment)
    assert result.returncode == 1 and b"the caller lacks permission" in result.stderr
    assert b"Authorization" not in result.stderr


def test_checksums_are_sent_and_compared(strict: S3, millrace: Run, tmp_path: Path) -> None:
    toml = tmp_path / "checksums.toml"
    toml.write_text('[s3]\nchecksums = "always"\n')
    strict.put("sums", {})
    for name, data in (("one", b"123456789"), ("parts", BIG)):
        (tmp_path / "here" / name).write_bytes(data)
        ok(millrace("cp", "-c", toml, name, "s3://sums/", **strict.environment))
        head = strict.client().head_object(Bucket="sums", Key=name, ChecksumMode="ENABLED")
        assert head["ChecksumType"] == "FULL_OBJECT"
        assert name != "one" or head["ChecksumCRC32C"] == "4waSgw=="
        assert ok(millrace("cat", f"s3://sums/{name}", **strict.environment)) == data
    strict.client().put_object(Bucket="sums", Key="nvme", Body=b"123456789", ChecksumCRC64NVME="rosUhgp5mIg=")
    assert ok(millrace("cat", "s3://sums/nvme", **strict.environment)) == b"123456789"
