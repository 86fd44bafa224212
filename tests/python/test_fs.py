"""millrace.fs: fsspec's own suites, and what they do not ask."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import pickle
import signal
import tarfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
import fsspec.tests.abstract as abstract
import pytest

import millrace
from millrace import _file
from millrace import fs as millrace_fs
from millrace.checkpoint import _objects
from tests.conftest import StartDevstore
from tests.serve import DEADLINE_S, start_supervisor

from .stores import MIB, Stores, running, stores

__all__ = ["running", "stores"]

SYSTEMS = {
    "gs": millrace_fs.GSFileSystem,
    "s3": millrace_fs.S3FileSystem,
    "file": millrace_fs.LocalFileSystem,
}


# ---- fsspec's own ----


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(
        params=[
            "gs",
            pytest.param("s3", marks=pytest.mark.nightly),
            pytest.param("file", marks=pytest.mark.nightly),
        ]
    )
    def fs(self, request: pytest.FixtureRequest, stores: Stores) -> Any:
        SYSTEMS[request.param].clear_instance_cache()
        return SYSTEMS[request.param]()

    @pytest.fixture
    def fs_path(self, fs: Any, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        own = f"{zlib.crc32(request.node.name.encode()):08x}"
        return str(tmp_path / own) if fs.scheme == "file" else f"bucket/{own}"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


# ---- ours ----


@pytest.fixture(params=["gs", "s3"])
def system(request: pytest.FixtureRequest, stores: Stores) -> Any:
    SYSTEMS[request.param].clear_instance_cache()
    return SYSTEMS[request.param]()


def count(stores: Stores) -> int:
    """Requests so far."""
    return stores.log.read_text().count("\n")


def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("denied/bad/1", "denied/good/1"):
        stores.put(name, b"x")
    real = _objects.listed

    def listed(uri: str, **options: Any) -> Any:
        if uri.rstrip("/").endswith("/bad"):
            raise PermissionError(f"{uri}: not for you")
        return real(uri, **options)

    with monkeypatch.context() as patch:
        patch.setattr(_objects, "listed", listed)
        for call in (
            lambda: system.find("bucket/denied", maxdepth=2),
            lambda: system.glob("bucket/denied/*/*"),
            lambda: system.du("bucket/denied", maxdepth=2),
            lambda: list(system.walk("bucket/denied", topdown=False)),
        ):
            with pytest.raises(PermissionError, match="not for you"):
                call()
        assert [root for root, _, _ in system.walk("bucket/denied", on_error="omit")] == [
            "bucket/denied",
            "bucket/denied/good",
        ]
    for root, folders, files in system.walk("bucket/denied"):
        if root == "bucket/denied":
            assert (folders, files) == (["bad", "good"], [])
            del folders[0]  # which is not walked then
        else:
            assert (root, folders, files) == ("bucket/denied/good", [], ["1"])


def test_what_is_known_of_an_object(stores: Stores, system: Any) -> None:
    stores.put("known/object", b"hello")
    path = f"{system.protocol[0]}://bucket/known/object"
    info = system.info(path)
    assert (info["name"], info["size"], info["type"]) == ("bucket/known/object", 5, "file")
    assert info["ETag"] and info["crc32c"] == "mnG7TA=="
    assert system.created(path) == system.modified(path) == info["mtime"]
    assert abs((datetime.now(timezone.utc) - info["mtime"]).total_seconds()) < 3600
    first = system.checksum(path)
    assert first == system.checksum(path)
    stores.put("known/object", b"hello")
    assert first != system.checksum(path) or system.scheme == "s3"  # whose version is the ETag: the same bytes
    stores.put("known/object", b"other")
    assert first != system.checksum(path)
    for folder in ("bucket", "bucket/known", "bucket/known/"):
        assert system.info(folder) == {"name": folder.rstrip("/"), "size": 0, "type": "directory"}
    for missing in ("bucket/know", "bucket/known/objec", "no-such-bucket", "no-such-bucket/x"):
        assert not system.exists(missing) and not system.isfile(missing) and not system.isdir(missing)
        with pytest.raises(FileNotFoundError, match=missing):
            system.info(missing)
        with pytest.raises(FileNotFoundError):
            system.ls(missing)
    with pytest.raises(ValueError, match="names no bucket"):
        system.ls("")


def test_a_tree_is_one_listing(stores: Stores, system: Any) -> None:
    names = [f"tree/{a}/{b}/{c}" for a in range(3) for b in range(3) for c in range(3)]
    for name in names:
        stores.put(name, name.encode())
    before = count(stores)
    assert system.find("bucket/tree") == [f"bucket/{name}" for name in names]
    assert system.glob("bucket/tree/**/2") == sorted(
        f"bucket/{name}" for name in ["tree/2", *folders(names), *names] if name.endswith("/2")
    )
    assert count(stores) - before <= 6
    assert system.du("bucket/tree", total=True) == sum(map(len, names))
    walked = {folder: (sorted(dirs), sorted(files)) for folder, dirs, files in system.walk("bucket/tree")}
    assert walked["bucket/tree"] == (["0", "1", "2"], [])
    assert walked["bucket/tree/1/2"] == ([], ["0", "1", "2"])
    before = count(stores)
    data = system.cat("bucket/tree", recursive=True)
    assert data == {f"bucket/{name}": name.encode() for name in names}
    assert count(stores) - before <= 2 * len(names) + 3


def folders(names: list[str]) -> set[str]:
    return {name.rpartition("/")[0] for name in names}


def test_listings_are_kept_for_a_while(stores: Stores, system: Any) -> None:
    folder = f"kept-{system.scheme}"
    system = type(system)(listings_expiry_time=1000)  # not the default's 10 s
    stores.put(f"{folder}/a", b"1")
    assert system.ls(f"bucket/{folder}", detail=False) == [f"bucket/{folder}/a"]
    stores.put(f"{folder}/b", b"2")  # past this process
    assert system.ls(f"bucket/{folder}", detail=False) == [f"bucket/{folder}/a"]
    assert system.exists(f"bucket/{folder}/b")
    assert system.ls(f"bucket/{folder}", detail=False, refresh=True) == [f"bucket/{folder}/a", f"bucket/{folder}/b"]
    with millrace.checkpoint.writer(f"{system.scheme}://bucket/{folder}/c") as file:
        file.write(b"3")
    assert len(system.ls(f"bucket/{folder}")) == 3  # this process has made it
    system.rm(f"bucket/{folder}/a")
    assert len(system.ls(f"bucket/{folder}")) == 2
    system.pipe_file(f"bucket/{folder}/d", b"4")
    assert len(system.ls(f"bucket/{folder}")) == 3
    soon = type(system)(listings_expiry_time=0.01)
    assert len(soon.ls(f"bucket/{folder}")) == 3
    stores.put(f"{folder}/e", b"5")
    time.sleep(0.02)
    assert len(soon.ls(f"bucket/{folder}")) == 4


def test_slices_of_many(stores: Stores, system: Any) -> None:
    stores.put("slices/large", bytes(range(256)) * 4096 * 5)  # five blocks
    for i in range(50):
        stores.put(f"slices/{i}", bytes([i]) * 1000)
    paths = [f"bucket/slices/{i}" for i in range(50)]
    assert system.cat_ranges(paths, 10, 20) == [bytes([i]) * 10 for i in range(50)]
    large = bytes(range(256)) * 4096 * 5
    bounds = [(0, 10), (None, None), (-100, None), (MIB - 5, 3 * MIB + 5), (7, 7), (10 * MIB, 11 * MIB), (5, -5)]
    got = system.cat_ranges(["bucket/slices/large"] * len(bounds), *map(list, zip(*bounds)))
    assert got == [large[start:stop] for start, stop in bounds]
    assert system.cat_ranges(["bucket/slices/large"] * 2, (1, 5), (3, 9)) == [large[1:3], large[5:9]]
    assert system.cat_file("bucket/slices/large", -10) == large[-10:]
    mixed = ["bucket/slices/1", "bucket/slices/none", "bucket/slices/2"]
    first, missing, last = system.cat_ranges(mixed, 0, 1)
    assert (first, last) == (b"\x01", b"\x02") and isinstance(missing, FileNotFoundError) and "none" in str(missing)
    with pytest.raises(FileNotFoundError, match="none"):
        system.cat_ranges(mixed, 0, 1, on_error="raise")
    assert list(system.cat(mixed, on_error="omit")) == [mixed[0], mixed[2]]
    with pytest.raises(ValueError, match="as many"):
        system.cat_ranges(paths, [1], 2)


def test_a_pattern_is_not_asked_for_name_by_name(
    stores: Stores, system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"bucket/matching-{system.scheme}"
    for i in range(30):
        system.pipe_file(f"{root}/in/{i:02}.txt", b"%d" % i)
    system.pipe_file(f"{root}/in/sub.txt/below", b"")
    asked = []
    listed = _objects.listed

    def count(uri: str, **how: Any) -> Any:
        asked.append(uri)
        return listed(uri, **how)

    monkeypatch.setattr(_objects, "listed", count)
    system.get(f"{root}/in/*.txt", f"{tmp_path}/back/")
    assert sorted(path.read_bytes() for path in (tmp_path / "back").iterdir()) == sorted(b"%d" % i for i in range(30))
    system.copy(f"{root}/in/*.txt", f"{root}/out/")
    assert len(asked) < 12 and len(system.find(f"{root}/out")) == 30


def test_get_and_put(stores: Stores, system: Any, tmp_path: Path) -> None:
    root = f"bucket/put-{system.scheme}"
    contents = {"small": b"s", "empty": b"", "deep/er/large": bytes(3 * MIB + 1), "deep/b": b"b" * 100_000}
    for name, data in contents.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    seen = fsspec.callbacks.Callback()
    system.put(f"{tmp_path}/out", root, recursive=True, callback=seen)
    assert seen.value == seen.size > 0
    assert {path[len(root) + 1 :]: data for path, data in system.cat(root, recursive=True).items()} == contents
    seen = fsspec.callbacks.Callback()
    system.get(root, f"{tmp_path}/back", recursive=True, callback=seen)
    assert seen.value == seen.size > 0
    assert {name: (tmp_path / "back" / name).read_bytes() for name in contents} == contents
    system.get_file(f"{root}/small", f"{tmp_path}/new/folder/small")
    assert (tmp_path / "new" / "folder" / "small").read_bytes() == b"s"
    out = io.BytesIO()
    system.get_file(f"{root}/deep/b", out)
    assert out.getvalue() == contents["deep/b"]
    with pytest.raises(FileNotFoundError, match="nothing"):
        system.get([f"{root}/small", f"{root}/nothing"], [f"{tmp_path}/x", f"{tmp_path}/y"])
    assert not (tmp_path / "y").exists()
    system.mv(f"{root}/small", f"{root}/moved")
    assert system.find(root) == sorted([*(f"{root}/{name}" for name in contents if name != "small"), f"{root}/moved"])
    kept = system.find(root)
    system.mv(f"{root}/moved", f"{root}/moved")  # each object stays that has its new name already
    system.mv(f"{root}/moved", system.unstrip_protocol(f"{root}/moved"))
    system.mv(f"{root}/deep/b", f"{root}/deep/")
    assert system.find(root) == kept
    with pytest.raises(FileNotFoundError):
        system.mv(f"{root}/nothing", f"{root}/nothing")
    before = system.cat(f"{root}/deep", recursive=True)
    system.mv(f"{root}/deep", f"{root}/deep/new", recursive=True)
    after = system.cat(f"{root}/deep", recursive=True)
    assert {name.replace("/deep/new/", "/deep/"): data for name, data in after.items()} == before
    system.mv(f"{root}/deep/new", f"{root}/again", recursive=True)
    system.mv(f"{root}/again", f"{root}/deep", recursive=True)
    assert system.find(root) == kept
    system.touch(f"{root}/moved")
    assert system.cat_file(f"{root}/moved") == b""
    system.rm(root, recursive=True)
    assert not system.exists(root)


def test_what_is_written_in_a_transaction(stores: Stores, system: Any) -> None:
    """Lightning saves so."""
    paths = [f"bucket/transaction-{system.scheme}-{i}" for i in range(2)]
    with system.transaction:
        for path in paths:
            with system.open(path, "wb") as file:
                file.write(b"data")
        assert not any(map(system.exists, paths))
    assert system.cat(paths) == dict.fromkeys(paths, b"data")
    for mode, more in (("w", {}), ("wb", {}), ("wb", {"compression": "gzip"})):
        with pytest.raises(ValueError, match=r"transaction-.*-0: it was not closed"), system.transaction:
            file = system.open(paths[0], mode, **more)
            file.write("an end is missing" if mode == "w" else b"an end is missing")
        assert system.cat_file(paths[0]) == b"data", "what was there stays"
    with pytest.raises(ZeroDivisionError), system.transaction:
        with system.open(paths[0], "wb") as file:
            file.write(b"other")
        raise ZeroDivisionError
    with system.transaction:
        with pytest.raises(ZeroDivisionError), system.open(paths[0], "wb") as file:
            file.write(b"other")
            raise ZeroDivisionError
        with system.open(paths[1], "wb") as file:
            file.write(b"beside it")
        with pytest.raises(ValueError, match="closed"):
            file.write(b", and late")
    assert system.cat(paths) == {paths[0]: b"data", paths[1]: b"beside it"}
    with pytest.raises(ZeroDivisionError), system.open(paths[0], "wt") as file:
        file.write("other")
        raise ZeroDivisionError
    assert system.cat_file(paths[0]) == b"data"
    with system.open(paths[0], "ab") as file:
        file.write(b" and more")
    with system.open(paths[0], "r") as text:
        assert text.read() == "data and more"
    with pytest.raises(ValueError, match="mode"):
        system.open(paths[0], "r+b")


def test_find_with_a_prefix(stores: Stores, system: Any) -> None:
    """As s3fs and gcsfs have it: what is found is removed by many a program."""
    root = f"bucket/prefix-{system.scheme}"
    for name in ("tmp-1", "tmp-2/3", "keep", "sub/tmp-4"):
        stores.put(f"{root[len('bucket/') :]}/{name}", b"")
    assert system.find(root, prefix="tmp-") == [f"{root}/tmp-1", f"{root}/tmp-2/3"]
    assert list(system.find(root, prefix="tmp-", maxdepth=1, detail=True)) == [f"{root}/tmp-1"]
    assert system.find("bucket", prefix=f"{root[len('bucket/') :]}/k") == [f"{root}/keep"]
    assert len(system.find(root)) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "http://127.0.0.1:9000"},
        {"key": "k", "secret": "s"},
        {"client_kwargs": {"region_name": "eu-west-1"}},
        {"token": "anon"},
        {"access": "read_only"},
        {"config_kwargs": {"signature_version": "unsigned"}},
        {"use_ssl": False},
    ],
)
def test_options_that_choose_a_store_are_refused(options: dict[str, Any]) -> None:
    for cls in (millrace_fs.GSFileSystem, millrace_fs.S3FileSystem):
        with pytest.raises(TypeError, match=f"take no {next(iter(options))}: .*docs/credentials.md"):
            cls(**options)


def test_options_that_change_nothing(stores: Stores, system: Any) -> None:
    again = type(system)(  # with anon=True pandas asks again for what was denied
        anon=True, token=None, access="full_control", use_ssl=True, project="p", skip_instance_cache=True
    )
    assert again.exists("bucket/first")


def test_arguments_that_would_be_dropped_are_refused(stores: Stores, system: Any, tmp_path: Path) -> None:
    path = "bucket/first"
    for version in ({"version_id": "1"}, {"generation": 1}):
        here = str(tmp_path / "x")
        get, get_file = (functools.partial(method, lpath=here) for method in (system.get, system.get_file))
        for look in (system.info, system.open, system.cat_file, system.cat, system.exists, get, get_file):
            with pytest.raises(TypeError, match=f"{path}: .* take no {next(iter(version))}"):
                look(path, **version)
        with pytest.raises(TypeError, match=f"{path}'.: .* take no {next(iter(version))}"):
            system.cat([path], **version)
    for header in ({"content_type": "text/plain"}, {"ServerSideEncryption": "AES256"}, {"acl": "public-read"}):
        for write in (lambda **more: system.open(path, "wb", **more), lambda **more: system.pipe(path, b"", **more)):
            with pytest.raises(TypeError, match=f"{path}: .* take no {next(iter(header))}"):
                write(**header)
        for source, way in ((__file__, system.put), (path, system.copy), (path, system.cp_file), (path, system.mv)):
            with pytest.raises(TypeError, match=f"{path}: .* take no {next(iter(header))}"):
                way(source, path, **header)
    assert len(system.cat_file(path)) == MIB, "nothing was written"


def test_what_is_not_closed_is_not_there(stores: Stores, system: Any) -> None:
    path = f"bucket/unclosed-{system.scheme}"
    for mode, data in (("wb", b"x" * 1000), ("w", "x" * 100_000)):
        out = system.open(path, mode)
        out.write(data)
        with pytest.warns(ResourceWarning, match="nothing has been saved"):
            del out
    for mode, data in (("wb", b"x"), ("w", "x")):
        with pytest.raises(ZeroDivisionError), system.open(path + ".gz", mode, compression="gzip") as file:
            file.write(data)
            raise ZeroDivisionError
    assert not system.exists(path) and not system.exists(path + ".gz")
    with system.open(path + ".gz", "w", compression="infer") as file:
        file.write("text")
    assert gzip.decompress(system.cat_file(path + ".gz")) == b"text"
    with system.open(path + ".gz", "r", compression="infer") as file:
        assert file.read() == "text"
    with system.open(path + ".tar.gz", "wb", compression="gzip") as file, tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(__file__, "of this test")
    with system.open(path + ".tar.gz") as file, tarfile.open(fileobj=file) as tar:
        assert tar.getnames() == ["of this test"]
    with pytest.raises(FileNotFoundError), system.open("no-such-bucket/x.gz", "wb", compression="gzip") as file:
        file.write(b"x")


def test_a_flush_that_is_broken_off(stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """io would close, and so publish, what lacks its end."""
    path = f"bucket/broken-{system.scheme}"
    for mode, data in (("wb", b"x" * 100), ("w", "x" * 100)):
        out = system.open(path, mode)
        out.write(data)
        with monkeypatch.context() as patch:
            patch.setattr(millrace.checkpoint.Writer, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                out.close()
        assert out.closed and not system.exists(path)


def test_more_files_than_a_transaction_has_memory_for(
    stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(millrace_fs, "TRANSACTION_WAIT_S", 0.2)
    with pytest.raises(TimeoutError, match="open until its end"), system.transaction, contextlib.ExitStack() as stack:
        for i in range(1000):
            stack.enter_context(system.open(f"bucket/many-{system.scheme}/{i}", "wb"))
    assert not system.exists(f"bucket/many-{system.scheme}")


def test_names_that_look_like_patterns(stores: Stores, system: Any) -> None:
    root = f"bucket/patterns-{system.scheme}"
    for name in ("ab", "a[b]"):
        system.pipe_file(f"{root}/{name}", b"x")
    system.rm_file(f"{root}/a[b]")
    assert system.find(root) == [f"{root}/ab"]
    system.rm(f"{root}/a?")
    assert not system.exists(root)


def test_mv_keeps_what_could_not_be_copied(stores: Stores, system: Any) -> None:
    root = f"bucket/move-{system.scheme}"
    system.pipe_file(f"{root}/a", b"x")
    with pytest.raises(FileNotFoundError):
        system.mv(root, "no-such-bucket/there", recursive=True)
    assert system.cat_file(f"{root}/a") == b"x"


@pytest.mark.parametrize("name", ["a", "?", "[b]"])  # which as patterns would be what comes, too
def test_mv_of_a_folder_keeps_what_comes_meanwhile(
    stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = f"bucket/moved-{system.scheme}-{ord(name[0])}"
    system.pipe_file(f"{root}/{name}", b"x")
    copied = system._copy

    def copy(source: str, target: str) -> None:
        copied(source, target)
        system.pipe_file(f"{root}/b", b"new")

    monkeypatch.setattr(system, "_copy", copy)
    system.mv(root, f"{root}-there", recursive=True)
    assert system.find(root) == [f"{root}/b"]
    assert system.find(f"{root}-there") == [f"{root}-there/{name}"]
    with pytest.raises(FileNotFoundError):
        system.mv(root, f"{root}-again")  # a folder


def test_mv_takes_nothing_from_behind_a_link(tmp_path: Path) -> None:
    top, other = tmp_path / "top", tmp_path / "other"
    for folder in (top / "in", other):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x")
    (top / "in" / "link").symlink_to(other)
    millrace_fs.LocalFileSystem().mv(str(top), str(tmp_path / "there"), recursive=True)
    assert not top.exists() and (other / "x").exists()
    assert (tmp_path / "there" / "in" / "link" / "x").read_bytes() == b"x"


def test_a_name_of_another_store() -> None:
    with pytest.raises(ValueError, match="'s3://bucket/there' is not of gs://"):
        millrace_fs.GSFileSystem().cp_file("gs://bucket/here", "s3://bucket/there")
    with pytest.raises(ValueError, match="'gs://bucket/there' is not of file://"):
        millrace_fs.LocalFileSystem().exists("gs://bucket/there")


@pytest.mark.parametrize("scheme", ["", "file://", "millrace+file://"])
def test_a_local_name_with_its_scheme(tmp_path: Path, scheme: str) -> None:
    system, name = millrace_fs.LocalFileSystem(), f"{tmp_path}/name"
    system.pipe_file(scheme + name, b"bytes")
    assert system.cat_file(scheme + name) == (tmp_path / "name").read_bytes() == b"bytes"
    assert system.ls(f"{scheme}{tmp_path}", detail=False) == [name]


AWKWARD = [
    "a b", "a+b", "a%20b", "a?b=c&d", "a#b", "ü/ß", "日本", "\N{GRINNING FACE}", "'quoted'", '"double"', "a\\b", "a:b",
    "-dash", "--help", "~", "~root", "$HOME", "`id`", "a;b", "a|b", "a*b", "a[b]", "a{b,c}", "a<b>", "a\tb", "a\x01b",
    "...", "..a", "a..", ".hidden", "a.", "a=b", "@", "a//b", "a,b", "e\u0301", "x" * 200, "100%", "%", "^",
]  # fmt: skip


def test_awkward_names(stores: Stores, system: Any) -> None:
    root = f"bucket/awkward-{system.scheme}"
    for i, name in enumerate(AWKWARD):
        system.pipe_file(f"{root}/{name}", b"%d" % i)
    assert system.find(root) == sorted(f"{root}/{name}" for name in AWKWARD)
    paths = [f"{root}/{name}" for name in AWKWARD]
    assert system.cat_ranges(paths, None, None) == [b"%d" % i for i in range(len(AWKWARD))]
    for i, name in enumerate(AWKWARD):
        with millrace.open(f"{system.scheme}://{root}/{name}") as file:
            assert file.read() == b"%d" % i
        assert system.isfile(f"{root}/{name}")
    with pytest.raises(ValueError, match="newline"):
        system.open(f"{root}/a\nb")
    system.rm(root, recursive=True)


def test_an_object_that_is_a_folder_too(stores: Stores, system: Any) -> None:
    root = f"bucket/both-{system.scheme}"
    for name, data in (("a", b"1"), ("a/b", b"2"), ("marker/", b"")):
        stores.put(f"{root[7:]}/{name}", data)
    assert [(e["name"][len(root) + 1 :], e["type"]) for e in system.ls(root, detail=True)] == [
        ("a", "file"), ("a", "directory"), ("marker", "directory")
    ]  # fmt: skip
    assert system.cat_file(f"{root}/a") == b"1"
    assert system.ls(f"{root}/a") == system.ls(f"{root}/a", detail=False) == [f"{root}/a/b"]
    assert system.ls(f"{root}/marker") == [] and system.isdir(f"{root}/marker")
    assert system.find(root) == [f"{root}/a", f"{root}/a/b"]


def test_after_a_fork_and_pickled(stores: Stores, system: Any) -> None:
    stores.put("forked", b"data")
    assert system.cat_file("bucket/forked") == b"data"
    pid = os.fork()
    if pid == 0:
        same = system.cat_file("bucket/forked") == b"data" and system.cat(["bucket/forked"] * 2) != {}
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pickle.loads(pickle.dumps(system)).cat_file("bucket/forked") == b"data"


# ---- what fails, and what comes between ----


def test_a_store_that_does_not_answer_is_asked_once(
    tmp_path: Path, millrace_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = "[retry]\ndeadline_ms = 500\nbase_ms = 10\n"
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:1", toml)
    try:
        monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
        system = SYSTEMS["gs"](skip_instance_cache=True)
        names = [f"bucket/{i}" for i in range(64)]
        found = system.cat(names, on_error="return")
        assert set(found) == set(names)
        assert {str(error) for error in found.values()} == {str(found[names[0]])}, "each was asked for by itself"
        with pytest.raises(millrace.Error, match=r"127\.0\.0\.1"):
            system.get([f"gs://{name}" for name in names], str(tmp_path / "into"))
    finally:
        supervisor.stop()


def test_an_object_without_a_good_answer_takes_no_other_with_it(
    tmp_path: Path, millrace_bin: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = devstore("--synthetic", "bucket:16:100", "--fault", "status:1:500:stat:*0005*")
    toml = "[retry]\ndeadline_ms = 100000\nbase_ms = 1\ncap_ms = 2\nattempts = 2\n"
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, toml)
    try:
        monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        system = SYSTEMS["gs"](skip_instance_cache=True)
        names = system.find("bucket")
        found = system.cat(names, on_error="return")
        assert [name for name, data in found.items() if isinstance(data, Exception)] == [
            name for name in names if "0005" in name
        ]
    finally:
        supervisor.stop()


def test_a_large_object_that_fails_takes_no_other_with_it(
    stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"bucket/one-fails/{name}" for name in ("a", "big", "c")]
    for name in names:
        stores.put(name.partition("/")[2], bytes(9 * MIB) if name.endswith("big") else b"small")

    def read(self: Any, size: int = -1) -> bytes:
        raise millrace.Error("big: no")

    monkeypatch.setattr(_file.File, "read", read)
    assert system.cat(names, on_error="omit") == {names[0]: b"small", names[2]: b"small"}
    found = system.cat_ranges(names, None, None)
    assert found[0] == found[2] == b"small" and isinstance(found[1], millrace.Error)
    with pytest.raises(millrace.Error, match="big: no"):
        system.cat(names)


def test_a_listing_that_was_begun_before_a_write_is_not_kept(
    stores: Stores, system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"bucket/between-{system.scheme}"
    system.pipe_file(f"{root}/x/old", b"")
    system.pipe_file(f"{root}/y/old", b"")
    listed = _objects.listed

    def write_meanwhile(*arguments: Any, **named: Any) -> Any:
        items = list(listed(*arguments, **named))
        monkeypatch.setattr(_objects, "listed", listed)
        system.pipe_file(f"{root}/x/new", b"")
        system.ls(f"{root}/y", detail=False)
        return items

    monkeypatch.setattr(_objects, "listed", write_meanwhile)
    assert system.ls(f"{root}/x", detail=False) == [f"{root}/x/old"]
    assert system.ls(f"{root}/x", detail=False) == [f"{root}/x/new", f"{root}/x/old"]


def test_an_exception_in_a_compressed_text(stores: Stores, system: Any) -> None:
    stores.put("text.gz", gzip.compress(b"hello"))
    with pytest.raises(KeyError, match="mine"), system.open("bucket/text.gz", "rt", compression="gzip") as file:
        raise KeyError("mine")
    assert file.closed
    with pytest.raises(KeyError, match="mine"), system.open("bucket/never.gz", "wt", compression="gzip") as file:
        raise KeyError("mine")
    assert not system.exists("bucket/never.gz")


def test_get_file_to_what_is_no_file(stores: Stores, system: Any, tmp_path: Path) -> None:
    stores.put("got", b"hello")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        system.get_file("bucket/got", str(tmp_path / "pipe"))
        assert read.result() == b"hello" and (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    system.get_file("bucket/got", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"hello"
    system.get_file("bucket/got", str(tmp_path / ("n" * 255)))
    assert (tmp_path / ("n" * 255)).read_bytes() == b"hello"


def test_rm_of_a_pattern_that_folders_match_too(stores: Stores, system: Any) -> None:
    root = f"bucket/pattern-{system.scheme}"
    for name in ("one", "two", "folder/three"):
        system.pipe_file(f"{root}/{name}", b"123")
    assert system.du(root) == 9 and system.du(root, total=False)[f"{root}/one"] == 3
    system.rm(f"{root}/*")
    assert system.find(root) == [f"{root}/folder/three"]


def test_an_interrupt_ends_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled, done = threading.Event(), []
    shutdown = ThreadPoolExecutor.shutdown

    def note(self: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shutdown(self, wait=False, cancel_futures=cancel_futures)
        if cancel_futures:
            cancelled.set()
        shutdown(self, wait=wait)

    def do(number: int) -> None:
        done.append(number)
        if number == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            cancelled.wait(DEADLINE_S)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", note)
    with pytest.raises(KeyboardInterrupt):
        millrace_fs._together(1, do, range(100))
    assert done == [0]
