"""Where objects are kept: files under any name, changes behind the store's back, restarts, and made-up objects."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import time
from pathlib import Path
from urllib.parse import quote

import google_crc32c
import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Connect, Reply, fetch

ODD_NAMES = [
    "a",
    "a/b",
    "a/b/c",
    "a/",
    "/",
    "//",
    "/lead",
    "x//y",
    ".",
    "..x",
    "x/../y",
    "x/./y",
    ".devstore/x",
    ".devstore",
    "#",
    "%2F",
    "%",
    "a+b c",
    "\x01\x7f",
    "é" * 300,
    "n" * 255,
    "n" * 256,
    "n" * 1024,
    "d/" * 512,
    "q?x=1&y#z",
    "=",
    "+/=",
]
ODD_NAMES.remove(".")  # GCS refuses it


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_any_name_works(devstore: StartDevstore, connect: Connect, tmp_path: Path, kind: str) -> None:
    flags = ["--memory"] if kind == "memory" else ["--root", str(tmp_path)]
    server = devstore(*flags)
    bucket = connect(server).create_bucket("bucket")
    for name in ODD_NAMES + ODD_NAMES[::-1]:  # the second time over what is there
        bucket.blob(name).upload_from_string(name.encode())

    def check(names: list[str]) -> None:
        assert [blob.name for blob in bucket.list_blobs()] == sorted(names, key=str.encode)
        for name in names:
            assert bucket.blob(name).download_as_bytes() == name.encode()

    check(ODD_NAMES)
    if kind == "folder":  # all of it is still there after a restart, in the same generations
        generations = {blob.name: blob.generation for blob in bucket.list_blobs()}
        server.stop()
        server = devstore(*flags)
        bucket = connect(server).bucket("bucket")
        check(ODD_NAMES)
        assert {blob.name: blob.generation for blob in bucket.list_blobs()} == generations
    for name in ODD_NAMES[::2]:
        bucket.blob(name).delete()
    check(ODD_NAMES[1::2])
    for name in ODD_NAMES[1::2]:
        bucket.blob(name).delete()
    check([])
    assert [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["", ".", "..", "new\nline", "n" * 1025])
def test_names_that_gcs_refuses(memory: Server, name: str) -> None:
    fetch(memory, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    target = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}"
    assert fetch(memory, target, "POST", b"x").status == 400


def put(server: Server, bucket: str, name: str, data: bytes) -> Reply:
    return fetch(server, f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", "POST", data)


def test_files_are_objects_and_objects_are_files(devstore: StartDevstore, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "sub").mkdir(parents=True)
    (tmp_path / "bucket" / "sub" / "file").write_bytes(b"there before")
    (tmp_path / "bucket" / "link").symlink_to("sub/file")
    (tmp_path / "bucket" / "loop").symlink_to(".")
    (tmp_path / "bucket" / "dangling").symlink_to("nothing")
    (tmp_path / "bucket" / os.fsdecode(b"not-\xff-utf8")).write_bytes(b"?")
    (tmp_path / "Not A Bucket").mkdir()
    (tmp_path / "file-in-root").write_bytes(b"?")
    server = devstore("--root", tmp_path)
    assert [b["name"] for b in fetch(server, "/storage/v1/b").json["items"]] == ["bucket"]
    names = [item["name"] for item in fetch(server, "/storage/v1/b/bucket/o").json["items"]]
    assert names == ["link", "sub/file"]
    assert fetch(server, "/bucket/sub/file").body == b"there before"
    assert put(server, "bucket", "new/file", b"new").status == 200
    assert (tmp_path / "bucket" / "new" / "file").read_bytes() == b"new"
    assert fetch(server, "/storage/v1/b/bucket/o/new%2Ffile", "DELETE").status == 204
    assert not (tmp_path / "bucket" / "new").exists()
    fetch(server, "/storage/v1/b", "POST", b'{"name":"another"}')
    assert (tmp_path / "another").is_dir()


def test_memory_over_a_folder_never_writes_to_it(devstore: StartDevstore, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for name in ("one", "two"):
        (tmp_path / "bucket" / name).write_bytes(name.encode())
    server = devstore("--root", tmp_path, "--memory")
    put(server, "bucket", "one", b"changed")
    put(server, "bucket", "three", b"new")
    assert fetch(server, "/storage/v1/b/bucket/o/two", "DELETE").status == 204
    body = b'{"sourceObjects":[{"name":"one"},{"name":"three"}]}'
    assert fetch(server, "/storage/v1/b/bucket/o/sum/compose", "POST", body).status == 200
    names = [item["name"] for item in fetch(server, "/storage/v1/b/bucket/o").json["items"]]
    assert names == ["one", "sum", "three"]
    assert fetch(server, "/bucket/sum").body == b"changednew"
    assert sorted(path.name for path in (tmp_path / "bucket").iterdir()) == ["one", "two"]
    assert (tmp_path / "bucket" / "one").read_bytes() == b"one"


def test_a_file_that_another_program_changes(devstore: StartDevstore, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    file = tmp_path / "bucket" / "file"
    file.write_bytes(b"first")
    server = devstore("--root", tmp_path)
    first = fetch(server, "/bucket/file")
    file.write_bytes(b"second!")
    os.utime(file, ns=(0, 1_900_000_000_000_000_000))
    generation = first.headers["x-goog-generation"]
    assert fetch(server, f"/storage/v1/b/bucket/o/file?alt=media&generation={generation}").status == 404
    second = fetch(server, "/bucket/file")
    assert (first.body, second.body) == (b"first", b"second!")
    assert second.headers["x-goog-generation"] == "1900000000000000"
    assert second.headers["x-goog-hash"] != first.headers["x-goog-hash"]
    assert int(put(server, "bucket", "file", b"third").json["generation"]) > 1_900_000_000_000_000
    file.unlink()
    assert fetch(server, "/bucket/file").status == 404
    assert fetch(server, "/storage/v1/b/bucket/o").json == {"kind": "storage#objects"}


def test_a_broken_upload_leaves_nothing(devstore: StartDevstore, tmp_path: Path) -> None:
    server = devstore("--root", tmp_path)
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    side = tmp_path / "bucket" / ".devstore"
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        target = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
        s.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc".encode())
        deadline = time.monotonic() + 60
        while not (side.exists() and list(side.iterdir())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    while list(side.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert fetch(server, "/bucket/x").status == 404
    (side / "#1-2").write_bytes(b"of a run that was killed")
    server.stop()
    server = devstore("--root", tmp_path)
    assert list(side.iterdir()) == []
    assert fetch(server, "/storage/v1/b/bucket/o").json == {"kind": "storage#objects"}


def synthetic_name(i: int) -> str:
    return f"obj-{i:09}"


def test_synthetic_objects(devstore: StartDevstore, connect: Connect) -> None:
    server = devstore("--synthetic", "made-up:1000000:1000-200000:7")
    bucket = connect(server).bucket("made-up")
    start = 999_900
    blobs = list(bucket.list_blobs(start_offset=synthetic_name(start)))
    assert [blob.name for blob in blobs] == [synthetic_name(i) for i in range(start, 1_000_000)]
    digests = set()
    for blob in blobs[:20]:
        data = blob.download_as_bytes(checksum="crc32c")
        assert len(data) == blob.size and 1000 <= blob.size <= 200_000
        assert blob.crc32c == base64.b64encode(google_crc32c.Checksum(data).digest()).decode()
        assert blob.download_as_bytes(start=100, end=899) == data[100:900]
        digests.add(hashlib.sha256(data).digest())
    assert len(digests) == 20 and len({blob.size for blob in blobs}) > 90
    again = devstore("--synthetic", "made-up:1000000:1000-200000", "--seed", "7")
    other = devstore("--synthetic", "made-up:1000000:1000-200000", "--seed", "8")
    body = fetch(server, "/made-up/obj-000000000").body
    assert fetch(again, "/made-up/obj-000000000").body == body
    assert fetch(other, "/made-up/obj-000000000").body != body


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 20 << 20])
def test_synthetic_sums_are_right_for_any_size(devstore: StartDevstore, size: int) -> None:
    server = devstore("--synthetic", f"made-up:3:{size}")
    for i in range(3):
        reply = fetch(server, f"/made-up/{synthetic_name(i)}")
        expected = base64.b64encode(google_crc32c.Checksum(reply.body).digest()).decode()
        assert len(reply.body) == size and reply.headers["x-goog-hash"] == f"crc32c={expected}"


def test_writes_and_deletes_over_synthetic_objects(devstore: StartDevstore, connect: Connect) -> None:
    server = devstore("--synthetic", "made-up:10:1000")
    bucket = connect(server).bucket("made-up")
    bucket.blob(synthetic_name(0)).delete()
    bucket.blob(synthetic_name(5)).delete()
    bucket.blob(synthetic_name(9)).delete()
    bucket.blob(synthetic_name(3)).upload_from_string(b"three")
    bucket.blob("a-first").upload_from_string(b"1")
    bucket.blob(synthetic_name(4) + "x").upload_from_string(b"4x")
    bucket.blob("z-last").upload_from_string(b"z")
    bucket.blob(synthetic_name(5)).upload_from_string(b"back", if_generation_match=0)
    expected = ["a-first", *map(synthetic_name, range(1, 5)), synthetic_name(4) + "x"]
    expected += [*map(synthetic_name, range(5, 9)), "z-last"]
    for page_size in (1, 3, 1000):
        assert [blob.name for blob in bucket.list_blobs(page_size=page_size)] == expected
    assert bucket.blob(synthetic_name(3)).download_as_bytes() == b"three"
    assert bucket.get_blob(synthetic_name(9)) is None
    parts = [bucket.get_blob(synthetic_name(i)) for i in (1, 3, 2)]
    whole = b"".join(part.download_as_bytes() for part in parts)
    composite = bucket.blob("composite")
    composite.compose(parts)
    assert bucket.get_blob("composite").crc32c == base64.b64encode(google_crc32c.Checksum(whole).digest()).decode()
    assert composite.download_as_bytes() == whole
    assert composite.download_as_bytes(start=999, end=1005) == whole[999:1006]
    for blob in list(bucket.list_blobs()):
        blob.delete()
    assert list(bucket.list_blobs()) == []


def test_composites_of_composites_stay_servable(devstore: StartDevstore) -> None:
    """Each round has 32 times the pieces of the one before: more than a response can point to."""
    server = devstore("--synthetic", "made-up:32:10")
    names = [synthetic_name(i) for i in range(32)]
    whole = b"".join(fetch(server, f"/made-up/{name}").body for name in names)
    for level in range(3):
        body = json.dumps({"sourceObjects": [{"name": name} for name in names]}).encode()
        reply = fetch(server, f"/storage/v1/b/made-up/o/level{level}/compose", "POST", body)
        assert reply.json["componentCount"] == 32 ** (level + 1)
        assert fetch(server, f"/made-up/level{level}").body == whole
        names, whole = [f"level{level}"] * 32, whole * 32


SHAPES = ["flat", "hashes", "deep", "prefix", "unicode", "runs", "skewed", "markers", "classes"]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_made_up_names(devstore: StartDevstore, connect: Connect, shape: str) -> None:
    server = devstore("--synthetic", f"made-up:{shape}:3000:100")
    bucket = connect(server).bucket("made-up")
    blobs = list(bucket.list_blobs(page_size=700))
    names = [blob.name for blob in blobs]
    assert len(set(names)) == 3000 and names == sorted(names, key=str.encode)
    half = list(bucket.list_blobs(start_offset=names[1400], end_offset=names[2500]))
    assert [blob.name for blob in half] == names[1400:2500]
    for blob in blobs[::400]:
        data = bucket.blob(blob.name).download_as_bytes()
        assert len(data) == blob.size == (0 if blob.name.endswith("/") else 100)
        assert blob.crc32c == base64.b64encode(google_crc32c.Checksum(data).digest()).decode()
    classes = {blob.storage_class for blob in blobs}
    assert classes == ({"STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"} if shape == "classes" else {"STANDARD"})
    if shape == "markers":
        assert sum(name.endswith("/") for name in names) == 300
    if shape == "skewed":
        page = fetch(server, "/storage/v1/b/made-up/o?delimiter=/&fields=prefixes,items/name").json
        assert page["prefixes"] == ["hot/"] and len(page["items"]) == 30


def test_ten_million_objects_take_no_memory(devstore: StartDevstore) -> None:
    server = devstore("--synthetic", "made-up:hashes:10000000:1000")
    target, token, last = "/storage/v1/b/made-up/o?maxResults=5000&fields=items/name,nextPageToken", "", ""
    for _ in range(20):
        page = fetch(server, target + (f"&pageToken={token}" if token else "")).json
        assert len(page["items"]) == 5000 and page["items"][0]["name"] > last
        token, last = page["nextPageToken"], page["items"][-1]["name"]
    end = fetch(server, target + "&startOffset=fffff").json["items"]
    assert 5 < len(end) < 20  # 10 million / 16 ** 5
    resident = next(
        line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if "VmHWM" in line
    )
    assert int(resident.split()[1]) < 200_000  # KiB


def test_what_lies_over_made_up_objects_is_listed_in_its_place(devstore: StartDevstore) -> None:
    server = devstore("--synthetic", "made-up:2000:1")
    base = "/storage/v1/b/made-up/o"
    expected = {f"obj-{i:09}" for i in range(2000)}
    for i in range(0, 2000, 7):
        fetch(server, f"{base}/obj-{i:09}", "DELETE")
        expected.discard(f"obj-{i:09}")
        if i % 3 == 0:
            fetch(server, f"/upload{base}?uploadType=media&name=obj-{i:09}%2Fx", "POST", b"x")
            expected.add(f"obj-{i:09}/x")
    for page_size in (1, 255, 256, 257, 5000):
        names: list[str] = []
        target = f"{base}?fields=items/name,nextPageToken&maxResults={page_size}"
        page = fetch(server, target).json
        while len(names) < 300 or page_size > 1:
            names += [item["name"] for item in page["items"]]
            if "nextPageToken" not in page:
                break
            page = fetch(server, f"{target}&pageToken={page['nextPageToken']}").json
        assert names == sorted(expected)[: len(names)] and len(names) in (300, len(expected))
