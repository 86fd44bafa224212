"""`millrace cp`, `rm` and `compose` against the development store, and what they leave where they fail."""

from __future__ import annotations

import json
import os
import pty
import random
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Server, StartDevstore
from tests.serve import DEADLINE_S, wait_for

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
MIB = 1 << 20


@pytest.fixture
def store(devstore: StartDevstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store over a folder with the bucket "bucket"; returns the bucket's folder."""
    bucket = tmp_path / "root" / "bucket"
    bucket.mkdir(parents=True)
    (bucket / "hello").write_bytes(b"hello\n")
    (bucket / "empty").write_bytes(b"")
    (bucket / "big").write_bytes(random.Random(1).randbytes(20 * MIB + 5))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", devstore("--root", tmp_path / "root").url)
    return bucket


@pytest.fixture
def millrace(millrace_bin: Path, tmp_path: Path) -> Run:
    """Runs a command in an empty folder."""
    (tmp_path / "here").mkdir()

    def run(*arguments: str | Path, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(millrace_bin), *map(str, arguments)]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S * 2,
            env={**os.environ, **env},
            cwd=tmp_path / "here",
        )

    return run


def here(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}


def ok(done: subprocess.CompletedProcess[bytes]) -> bytes:
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def names(millrace: Run, uri: str = "gs://bucket/") -> list[str]:
    return ok(millrace("ls", "-r", uri)).decode().split()


# ---- cp ----


@pytest.mark.parametrize("name", ["hello", "empty", "big"])
def test_down_and_up_and_across(millrace: Run, store: Path, tmp_path: Path, name: str) -> None:
    data = (store / name).read_bytes()
    assert ok(millrace("cp", f"gs://bucket/{name}", "-")) == data
    ok(millrace("cp", f"gs://bucket/{name}", "copy"))
    assert here(tmp_path) == {"copy": data}
    ok(millrace("cp", "copy", "gs://bucket/up/"))
    ok(millrace("cp", "-", "gs://bucket/in", stdin=data))
    ok(millrace("cp", "gs://bucket/in", "gs://bucket/across/2"))
    for written in ("up/copy", "in", "across/2"):
        assert ok(millrace("cat", f"gs://bucket/{written}")) == data
    ok(millrace("cp", "copy", f"file://{tmp_path}/here/again"))
    assert here(tmp_path) == {"copy": data, "again": data}


def test_a_file_that_is_shorter_than_it_says(millrace: Run, tmp_path: Path) -> None:
    done = millrace("cp", "/sys/class/net/lo/mtu", "mtu")  # a page, it says
    assert done.returncode == 1
    assert b"were read of the 4096 that it had: it has changed" in done.stderr
    assert here(tmp_path) == {}


def test_a_file_whose_size_is_not_known(millrace: Run, store: Path, tmp_path: Path) -> None:
    """Those of /proc have 0 bytes, they say."""
    version = Path("/proc/version").read_bytes()
    for target in ("gs://bucket/version", "version"):
        ok(millrace("cp", "/proc/version", target))
    assert ok(millrace("cat", "gs://bucket/version")) == version
    assert here(tmp_path) == {"version": version}


def test_descriptors_of_the_caller(millrace: Run, millrace_bin: Path, tmp_path: Path) -> None:
    """None is replaced on the way from the command line to the worker."""
    script = 'for i in 3 4 5 6; do eval "$0 cp /dev/fd/$i to-$i $i<from" || exit 1; done'
    (tmp_path / "from").write_bytes(b"the caller's")
    subprocess.run(["bash", "-c", script, millrace_bin], cwd=tmp_path, check=True, timeout=DEADLINE_S)
    assert [(tmp_path / f"to-{i}").read_bytes() for i in range(3, 7)] == [b"the caller's"] * 4


def test_folders_take_the_name(millrace: Run, store: Path, tmp_path: Path) -> None:
    ok(millrace("cp", "gs://bucket/hello", "."))
    ok(millrace("cp", "hello", "gs://bucket/"))
    ok(millrace("cp", "gs://bucket/hello", "gs://bucket/a/b/"))
    assert here(tmp_path) == {"hello": b"hello\n"}
    assert "gs://bucket/a/b/hello" in names(millrace)
    assert millrace("cp", "-", "gs://bucket/a/").returncode == 2
    assert millrace("cp", "gs://bucket/", ".").returncode == 2
    assert millrace("cp", ".", "gs://bucket/x").returncode == 2


def test_an_existing_file_is_replaced_with_its_mode(millrace: Run, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "here" / "target"
    target.write_bytes(b"old")
    target.chmod(0o640)
    (tmp_path / "here" / "link").symlink_to("target")
    ok(millrace("cp", "gs://bucket/hello", "link"))
    assert target.read_bytes() == b"hello\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "here" / "link").is_symlink()
    ok(millrace("cp", "gs://bucket/hello", "/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_if_absent(millrace: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "here" / "file").write_bytes(b"mine")
    for source, target in (("gs://bucket/hello", "file"), ("file", "gs://bucket/hello")):
        done = millrace("cp", source, target, "--if-absent")
        assert done.returncode == 1
        assert b"exists" in done.stderr
    assert here(tmp_path) == {"file": b"mine"}
    assert ok(millrace("cat", "gs://bucket/hello")) == b"hello\n"
    ok(millrace("cp", "--if-absent", "file", "gs://bucket/new/"))
    done = millrace("cp", "--if-absent", "file", "gs://bucket/new/")
    assert (done.returncode, done.stderr) == (1, b"millrace cp: gs://bucket/new/file: it exists already\n")
    ok(millrace("cp", "--if-absent", "file", "gs://bucket/new"))
    ok(millrace("cp", "--if-absent", "gs://bucket/new", "new"))
    assert here(tmp_path)["new"] == b"mine"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["gs://bucket/nothing", "x"], b"nothing"),
        (["gs://no-such-bucket/x", "x"], b"bucket"),
        (["gs://bucket/hello", "no/such/folder/x"], b"No such file"),
        (["no-such-file", "gs://bucket/x"], b"no-such-file"),
        (["gs://bucket/hello", "gs://no-such-bucket/x"], b"bucket"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_missing(millrace: Run, store: Path, tmp_path: Path, arguments: list[str], part: bytes) -> None:
    done = millrace("cp", *arguments)
    assert done.returncode == 1
    assert part in done.stderr and done.stderr.count(b"\n") == 1
    assert here(tmp_path) == {}


def test_denied(millrace: Run, devstore: StartDevstore, tmp_path: Path) -> None:
    reader = devstore(
        "--synthetic", "bucket:3:10", "--deny", "storage.objects.create", "--deny", "storage.objects.delete"
    )
    writer = devstore("--synthetic", "bucket:3:10", "--deny", "storage.objects.get")
    for arguments in (["cp", "-", "gs://bucket/x"], ["rm", "gs://bucket/obj-000000000"]):
        done = millrace(*arguments, STORAGE_EMULATOR_HOST=reader.url)
        assert done.returncode == 1
        assert b"403" in done.stderr
    assert millrace("cp", "gs://bucket/obj-000000000", "x", STORAGE_EMULATOR_HOST=writer.url).returncode == 1
    assert here(tmp_path) == {}
    ok(millrace("cp", "-", "gs://bucket/x", stdin=b"written blindly", STORAGE_EMULATOR_HOST=writer.url))


@pytest.mark.parametrize("target", ["new", "old"])
def test_a_full_disk(millrace_bin: Path, store: Path, tmp_path: Path, target: str) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    done = subprocess.run(
        [millrace_bin, "cp", "gs://bucket/big", folder / target],
        capture_output=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)),
    )
    assert done.returncode == 1
    assert b"no room for the 20971525 bytes" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"old": b"old"}


@pytest.mark.parametrize("fault", ["wrong:1:1000:get:big", "reset:1:1000:get:big", "changed:1"])
def test_bad_bytes_leave_no_file(
    millrace: Run, devstore: StartDevstore, store: Path, tmp_path: Path, fault: str
) -> None:
    bad = devstore("--root", store.parent, "--fault", fault)
    config = tmp_path / "millrace.toml"
    config.write_text("[retry]\nattempts = 3\nbase_ms = 1\ncap_ms = 1\ndeadline_ms = 1000\n")
    done = millrace("cp", "-c", config, "gs://bucket/big", "x", STORAGE_EMULATOR_HOST=bad.url)
    assert done.returncode == 1
    assert b"big" in done.stderr
    assert here(tmp_path) == {}


def test_faults_on_the_way_are_repeated(millrace: Run, devstore: StartDevstore, store: Path, tmp_path: Path) -> None:
    bad = devstore("--root", store.parent, "--fault", "reset:first=2:100000", "--fault", "status:first=1:503:upload:*")
    config = tmp_path / "millrace.toml"
    config.write_text("[retry]\nbase_ms = 1\ncap_ms = 1\n")
    ok(millrace("cp", "-q", "-c", config, "gs://bucket/big", "x", STORAGE_EMULATOR_HOST=bad.url))
    assert here(tmp_path) == {"x": (store / "big").read_bytes()}
    ok(millrace("cp", "-q", "-c", config, "x", "gs://bucket/y", STORAGE_EMULATOR_HOST=bad.url))
    assert ok(millrace("cat", "gs://bucket/y", STORAGE_EMULATOR_HOST=bad.url)) == (store / "big").read_bytes()


@pytest.fixture
def slow(devstore: StartDevstore, store: Path) -> Server:
    return devstore("--root", store.parent, "--bandwidth-mibps", "0.05")


def open_files(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(str(link.readlink()))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_the_middle_leaves_nothing(millrace_bin: Path, slow: Server, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    process = subprocess.Popen(
        [millrace_bin, "cp", "gs://bucket/big", folder / "x"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": slow.url},
        stderr=subprocess.PIPE,
    )
    # It writes to a file without a name in that folder by now.
    wait_for(lambda: any(name.startswith(f"{folder}/") for name in open_files(process.pid)), "no file")
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == -number
    assert list(folder.iterdir()) == []
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_an_upload_leaves_nothing(
    millrace_bin: Path, devstore: StartDevstore, millrace: Run, tmp_path: Path, number: int
) -> None:
    log = tmp_path / "log"
    server = devstore("--memory", "--synthetic", "bucket:1:1", "--log", log)
    process = subprocess.Popen(
        [millrace_bin, "cp", "-", "gs://bucket/new"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(bytes(33 * MIB))  # two chunks, and then it waits for more
    process.stdin.flush()
    wait_for(lambda: "PUT " in log.read_text(), "no chunk was sent")
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == -number
    assert process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()
    wait_for(lambda: "DELETE " in log.read_text(), "the session was not dropped")
    assert millrace("cat", "gs://bucket/new", STORAGE_EMULATOR_HOST=server.url).returncode == 1


def test_an_object_that_comes_up_meanwhile_is_kept(
    millrace_bin: Path, devstore: StartDevstore, millrace: Run, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    server = devstore("--memory", "--synthetic", "bucket:1:1", "--log", log)
    process = subprocess.Popen(
        [millrace_bin, "cp", "-", "gs://bucket/new"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    wait_for(lambda: "/o/new" in log.read_text(), "it was not looked up")
    ok(millrace("cp", "-", "gs://bucket/new", stdin=b"theirs", STORAGE_EMULATOR_HOST=server.url))
    _, errors = process.communicate(b"mine", timeout=DEADLINE_S)
    assert process.returncode == 1
    assert b"gs://bucket/new" in errors
    assert ok(millrace("cat", "gs://bucket/new", STORAGE_EMULATOR_HOST=server.url)) == b"theirs"


def test_progress_only_on_a_terminal(millrace_bin: Path, slow: Server, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [millrace_bin, "cp", "gs://bucket/big", tmp_path / "x"],
        env={**os.environ, "STORAGE_EMULATOR_HOST": slow.url},
        stderr=slave,
    )
    seen = b""
    deadline = time.monotonic() + DEADLINE_S
    while b"% " not in seen or b"of 20.0 MiB" not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == -signal.SIGINT
    os.close(master)
    os.close(slave)


def with_standard_output(millrace_bin: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([millrace_bin, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["cat", "gs://bucket/big"], 0),  # as webdataset's pipe: and others want it
        (["cp", "gs://bucket/big", "-"], -signal.SIGPIPE),
        (["ls", "-r", "gs://many/"], -signal.SIGPIPE),
    ],
)
def test_a_broken_pipe_is_quiet(
    millrace_bin: Path,
    devstore: StartDevstore,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
) -> None:
    server = devstore("--root", store.parent, "--synthetic", "many:20000:1")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with with_standard_output(millrace_bin, *arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(DEADLINE_S) == status
        assert process.stderr.read() == b""


def test_the_broken_pipe_of_a_connection(
    millrace_bin: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcurl may write to a connection that has ended without MSG_NOSIGNAL: that is for its repeats, no end."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", devstore("--memory", "--synthetic", "made:1:64MiB").url)
    with with_standard_output(millrace_bin, "cat", "gs://made/obj-000000000") as process:
        assert process.stdout is not None
        whole = len(process.stdout.read(1 << 16))
        process.send_signal(signal.SIGPIPE)
        while piece := process.stdout.read(1 << 20):
            whole += len(piece)
        assert process.wait(DEADLINE_S) == 0
        assert whole == 64 * MIB


def test_a_reader_that_waits_does_not_stop_the_downloads(
    millrace_bin: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once a piece has been taken the next one is asked for, although there is no room for what comes before it."""
    log = tmp_path / "log"
    server = devstore("--memory", "--synthetic", "made:1:1GiB", "--log", log)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with with_standard_output(millrace_bin, "cat", "gs://made/obj-000000000") as process:
        assert process.stdout is not None
        assert len(process.stdout.read(9 * MIB)) == 9 * MIB  # of pieces of 8 MiB, 8 at a time
        wait_for(lambda: log.read_text().count("alt=media") == 9)
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0


def test_sockets_that_do_not_block(millrace_bin: Path, store: Path) -> None:
    """As the standard streams of a command that an event loop has started: there is more room, and more data, later."""
    data = (store / "big").read_bytes()
    pair = socket.socketpair()
    with pair[0] as ours, pair[1] as theirs:
        theirs.setblocking(False)
        command: list[str | Path] = [millrace_bin, "cp", "-q", "-", "gs://bucket/new"]
        with subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL) as process:
            wait_for(lambda: "poll" in Path(f"/proc/{process.pid}/wchan").read_text(), "it does not wait")
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            assert process.wait(DEADLINE_S) == 0
        assert (store / "new").read_bytes() == data
    pair = socket.socketpair()
    with pair[0] as ours, pair[1] as theirs:
        theirs.setblocking(False)
        command = [millrace_bin, "cat", "gs://bucket/new"]
        with subprocess.Popen(command, stdout=theirs.fileno()) as download:
            theirs.close()
            wait_for(lambda: select.select([ours], [], [], 0)[0])
            with ours.makefile("rb") as file:
                assert file.read() == data
            assert download.wait(DEADLINE_S) == 0


# ---- rm ----


def test_rm(millrace: Run, store: Path) -> None:
    ok(millrace("rm", "gs://bucket/hello", "gs://bucket/empty"))
    assert names(millrace) == ["gs://bucket/big"]
    done = millrace("rm", "gs://bucket/hello", "gs://bucket/big", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["deleted"] == 1
    assert [failure["uri"] for failure in report["failed"]] == ["gs://bucket/hello"]
    assert done.stderr.count(b"\n") == 1


def test_rm_recursive(millrace: Run, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = devstore("--memory", "--synthetic", "bucket:1234:1", "--page-size", "500", "--log", log)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    for name in ("t", "t/a", "t/b/c", "tt"):
        ok(millrace("cp", "-", f"gs://bucket/{name}"))
    ok(millrace("rm", "-r", "gs://bucket/t"))
    assert names(millrace)[-1] == "gs://bucket/tt"
    report = json.loads(ok(millrace("rm", "--json", "-r", "gs://bucket")))
    assert report == {"deleted": 1235, "failed": []}
    assert log.read_text().count("POST /batch") == 13 + 1
    nothing = millrace("rm", "-r", "gs://bucket/t/")
    assert nothing.returncode == 1
    assert nothing.stderr == b"millrace rm: nothing matches gs://bucket/t/\n"


def test_rm_usage(millrace: Run, store: Path) -> None:
    for arguments in (["rm"], ["rm", "gs://bucket"], ["rm", "gs://bucket/hello", "nonsense://x"], ["rm", "--what"]):
        assert millrace(*arguments).returncode == 2
    assert "gs://bucket/hello" in names(millrace)


def test_rm_many_arguments(millrace: Run, devstore: StartDevstore) -> None:
    server = devstore("--memory", "--synthetic", "bucket:150:1")
    uris = [f"gs://bucket/obj-{i:09}" for i in range(150)]
    ok(millrace("rm", *uris, STORAGE_EMULATOR_HOST=server.url))
    assert millrace("ls", "-r", "gs://bucket/", STORAGE_EMULATOR_HOST=server.url).stdout == b""


def test_rm_files(millrace: Run, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in ("a", "b"):
        (tmp_path / "files" / name).write_bytes(b"x")
    ok(millrace("rm", f"file://{tmp_path}/files/a"))
    ok(millrace("rm", "-r", f"file://{tmp_path}/files/"))
    assert list((tmp_path / "files").iterdir()) == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_bytes(b"x")
    (tmp_path / "files" / "a").write_bytes(b"x")
    (tmp_path / "files" / "link").symlink_to(tmp_path / "other")
    ok(millrace("rm", "-r", f"file://{tmp_path}/files"))
    assert not (tmp_path / "files" / "a").exists() and (tmp_path / "other" / "kept").exists()
    refused = millrace("rm", "-r", f"file://{tmp_path}/files/link")
    assert refused.returncode == 1 and b"is a symbolic link to a folder" in refused.stderr
    ok(millrace("rm", "-r", f"file://{tmp_path}/files/link/"))
    assert not (tmp_path / "other" / "kept").exists()


def test_closed_standard_streams(millrace_bin: Path, tmp_path: Path) -> None:
    """They are errors, as for cat and cp: nothing is replaced by nothing."""
    (tmp_path / "kept").write_bytes(b"kept")
    for text, status, said in (
        ('"$0" cp - kept <&-', 1, "Bad file descriptor"),
        ('"$0" cat "$PWD/kept" >&-', 1, "Bad file descriptor"),
        ('"$0" cp "$PWD/kept" - >&-', 1, "Bad file descriptor"),
        ('"$0" cp -q "$PWD/kept" copy <&- >&-', 0, ""),
        ('"$0" cp -q "$PWD/kept" copy <&- >&- 2>&-', 0, ""),
    ):
        done = subprocess.run(["sh", "-c", text, millrace_bin], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status and said in done.stderr, (text, done)
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "copy").read_bytes() == b"kept"


def test_ls_reports_what_is_not_utf8(millrace: Run, tmp_path: Path) -> None:
    names = [b"a\xff", "\u00fc\u20ac\U0001f600".encode(), b"\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b'"\\\x01']
    for name in names:
        (tmp_path / os.fsdecode(name)).touch()
    found = [json.loads(line)["uri"] for line in ok(millrace("ls", "--json", f"file://{tmp_path}")).splitlines()]
    assert sorted(os.fsencode(uri) for uri in found) == sorted(
        os.fsencode(f"file://{tmp_path}/") + name for name in names
    )


def test_rm_reports_what_is_not_utf8(millrace: Run, tmp_path: Path) -> None:
    done = millrace("rm", "--json", os.fsdecode(os.fsencode(f"file://{tmp_path}/") + b"\xff"))
    report = json.loads(done.stdout)
    assert [failure["uri"] for failure in report["failed"]] == [f"file://{tmp_path}/?"]


@pytest.mark.parametrize("arguments", [["rm", "--json", "gone"], ["clean", "--json", "gone"], ["--version"]])
def test_a_report_that_cannot_be_written(millrace_bin: Path, tmp_path: Path, arguments: list[str]) -> None:
    gone = tmp_path / "gone"
    if arguments[0] == "rm":
        gone.write_bytes(b"x")
    else:
        gone.mkdir()
    command = [str(millrace_bin), *(str(gone) if word == "gone" else word for word in arguments)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert b"cannot write to standard output: No space left on device" in done.stderr


# ---- compose ----


def test_compose(millrace: Run, store: Path) -> None:
    report = json.loads(ok(millrace("compose", "--json", "gs://bucket/c", "gs://bucket/hello", "gs://bucket/hello")))
    assert (report["uri"], report["size"], report["sources"]) == ("gs://bucket/c", 12, 2)
    assert ok(millrace("cat", "gs://bucket/c")) == b"hello\nhello\n"
    ok(millrace("compose", "gs://bucket/c", "gs://bucket/c", "gs://bucket/hello"))
    assert ok(millrace("cat", "gs://bucket/c")) == b"hello\n" * 3
    again = millrace("compose", "--if-absent", "gs://bucket/c", "gs://bucket/hello")
    assert again.returncode == 1
    assert b"exists" in again.stderr
    missing = millrace("compose", "gs://bucket/d", "gs://bucket/hello", "gs://bucket/nothing")
    assert missing.returncode == 1
    assert b"nothing" in missing.stderr
    assert "gs://bucket/d" not in names(millrace)


def test_compose_usage(millrace: Run, store: Path) -> None:
    for arguments in (
        ["gs://bucket/c"],
        ["gs://bucket/c", "gs://other/hello"],
        ["gs://bucket/", "gs://bucket/hello"],
        ["gs://bucket/c", *["gs://bucket/hello"] * 33],
    ):
        assert millrace("compose", *arguments).returncode == 2
