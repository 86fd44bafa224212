"""`millrace mount`: what is in a bucket as read-only files."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests import stores
from tests.conftest import BIN, Server, StartDevstore
from tests.serve import DEADLINE_S, alive, children, wait_for

MIB = 1 << 20


def why_not() -> str:
    """Why nothing can be mounted here; "": it can."""
    if not (BIN / "millrace-mount").exists():
        return "built without libfuse3"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error}"
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Mount:
    """`millrace mount URI` at a folder of its own."""

    def __init__(self, uri: str, folder: Path, **env: str) -> None:
        self.dir = folder / "mounted"
        self.dir.mkdir(parents=True)
        command = [str(BIN / "millrace"), "mount", "-c", str(folder / "c.toml"), uri, str(self.dir)]
        (folder / "c.toml").write_text("[memory]\narena_bytes = '64MiB'\n[retry]\nattempts = 3\n")
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, cwd=folder, env={**os.environ, **env})
        wait_for(lambda: self.dir.is_mount() or self.process.poll() is not None, self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()

    def workers(self, role: str) -> list[int]:
        return [pid for pid, line in children(self.process.pid).items() if role in line]

    def mounter(self) -> int:
        (pid,) = (pid for pid, line in children(self.process.pid).items() if "millrace-mount" in line[0])
        return pid

    def socket(self) -> str:
        variables = Path(f"/proc/{self.mounter()}/environ").read_text().split("\0")
        (socket,) = (each.partition("=")[2] for each in variables if each.startswith("MILLRACE_SOCKET="))
        return socket

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        assert not self.dir.is_mount()
        return status


StartMount = Callable[..., Mount]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[StartMount]:
    started: list[Mount] = []

    def start(uri: str, **env: str) -> Mount:
        folder = tmp_path / f"mount-{len(started)}"
        folder.mkdir()
        started.append(Mount(uri, folder, **env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(DEADLINE_S)
        subprocess.run(["umount", "-l", one.dir], stderr=subprocess.DEVNULL)


@pytest.fixture
def store(devstore: StartDevstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A bucket of the folder root/bucket."""
    rng = random.Random(4)
    for name, size in {"a": 10, "empty": 0, "sub/b": 100_000, "sub/deep/c": 5, "large": 30 * MIB + 7}.items():
        path = tmp_path / "root" / "bucket" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return use(devstore("--root", tmp_path / "root", "--memory"), monkeypatch)


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    return server


def put(server: Server, name: str, data: bytes) -> None:
    query = urllib.parse.urlencode({"uploadType": "media", "name": name})
    url = f"{server.url}/upload/storage/v1/b/bucket/o?{query}"
    urllib.request.urlopen(urllib.request.Request(url, data, method="POST")).close()


def requests(server: Server) -> dict[str, int]:
    return {what: count for what, count in stores.requests(server.url).items() if what != "admin"}


def without_beginners(counts: dict[str, int]) -> dict[str, int]:
    """Without what a fetch worker asks when it starts, which may be later than the mount."""
    return {what: count for what, count in counts.items() if what not in ("bucket", "iam", "list")}


def has_open(pid: int, path: Path) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            if fd.readlink() == path:
                return True
    return False


def tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("uri", ["gs://bucket/", "s3://bucket", "gs://bucket/sub", "file"])
def test_the_same_files(store: Server, mount: StartMount, tmp_path: Path, uri: str) -> None:
    root = tmp_path / "root" / "bucket"
    mounted = mount(f"file://{root}/" if uri == "file" else uri)
    assert tree(mounted.dir) == tree(root / "sub" if uri.endswith("sub") else root)
    before = requests(store)
    for path in mounted.dir.rglob("*"):
        assert path.stat().st_mode & 0o222 == 0
    # Names, sizes and times are the listing's, and bytes are kept by the kernel.
    assert without_beginners(requests(store)) == without_beginners(before)
    assert mounted.end() == 0


def test_a_configuration_means_a_supervisor_of_its_own(store: Server, mount: StartMount) -> None:
    for socket in ("", "/nowhere"):
        mounted = mount("gs://bucket/", MILLRACE_SOCKET=socket)
        assert (mounted.dir / "a").stat().st_size == 10
        assert mounted.end() == 0


def test_nothing_can_be_written(store: Server, mount: StartMount) -> None:
    folder = mount("gs://bucket/").dir
    for use_it in (
        lambda: (folder / "a").open("r+b"),
        lambda: (folder / "new").write_bytes(b"x"),
        lambda: (folder / "a").unlink(),
        lambda: (folder / "d").mkdir(),
        lambda: (folder / "a").rename(folder / "b"),
    ):
        with pytest.raises(OSError) as failed:
            use_it()
        assert failed.value.errno == errno.EROFS
    with pytest.raises(FileNotFoundError):
        (folder / "nothing").read_bytes()
    with pytest.raises(NotADirectoryError):
        (folder / "a" / "b").read_bytes()


def test_reads_at_random_maps_and_many_readers(store: Server, mount: StartMount, tmp_path: Path) -> None:
    data = (tmp_path / "root" / "bucket" / "large").read_bytes()
    path = mount("gs://bucket/").dir / "large"

    def look(seed: int) -> None:
        rng = random.Random(seed)
        with path.open("rb", buffering=0) as file:
            for _ in range(40):
                offset, count = rng.randrange(len(data)), rng.choice([1, 4096, 200_000])
                assert os.pread(file.fileno(), count, offset) == data[offset : offset + count]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(look, range(8)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[12345:23456] == data[12345:23456] and mapped[:] == data


AWKWARD = [
    "a b", "a+b", "a%20b", "a?b=c&d", "a#b", "ü/ß", "日本", "\N{GRINNING FACE}", "'quoted'", '"double"', "a\\b", "a:b",
    "-dash", "--help", "~", "$HOME", "`id`", "a;b", "a|b", "a*b", "a[b]", "a{b,c}", "a<b>", "a\tb", "a\x01b",
    "...", "..a", "a..", ".hidden", "a.", "a=b", "@", "a,b", "e\u0301", "x" * 255, "100%", "%", "^", "a/b/c",
]  # fmt: skip
NO_PATHS = ["../up", "./here", "a/../b", "/root", "two//slashes", "y" * 256, "hidden"]


def test_awkward_names(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    server = use(devstore("--root", tmp_path / "root", "--memory"), monkeypatch)
    for i, name in enumerate([*AWKWARD, *NO_PATHS, "hidden/by/a/folder"]):
        put(server, name, b"%d" % i)
    mounted = mount("gs://bucket/")
    found = tree(mounted.dir)
    last = len(AWKWARD) + len(NO_PATHS)
    assert found == {**{name: b"%d" % i for i, name in enumerate(AWKWARD)}, "hidden/by/a/folder": b"%d" % last}
    assert f"{len(NO_PATHS)} of {len(AWKWARD) + len(NO_PATHS) + 1} objects are not shown" in mounted.log.read_text()


def test_a_folder_of_ten_thousand(devstore: StartDevstore, mount: StartMount, monkeypatch: pytest.MonkeyPatch) -> None:
    server = use(devstore("--memory", "--synthetic", "many:10000:1"), monkeypatch)
    folder = mount("gs://many/").dir
    before = requests(server)
    assert len(list(folder.iterdir())) == 10_000
    assert sum(entry.stat().st_size for entry in os.scandir(folder)) == 10_000
    after = requests(server)
    assert after["list"] < before["list"] + 10  # the folder's names would be ten pages
    assert without_beginners(after) == without_beginners(before)


def test_an_object_that_is_replaced(store: Server, mount: StartMount) -> None:
    mounted = mount("gs://bucket/")
    put(store, "sub/b", b"other")
    with pytest.raises(OSError) as failed:
        (mounted.dir / "sub" / "b").read_bytes()
    assert failed.value.errno == errno.ESTALE
    assert "error: /sub/b: gs://bucket/sub/b: changed since the listing" in mounted.log.read_text()
    assert (mounted.dir / "a").stat().st_size == 10


def test_workers_that_are_killed(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(9).randbytes(24 * MIB)
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "slow").write_bytes(data)
    use(devstore("--root", tmp_path / "root", "--memory", "--download-mibps", "8"), monkeypatch)
    mounted = mount("gs://bucket/")
    got = b""
    with (mounted.dir / "slow").open("rb", buffering=0) as file:
        while piece := file.read(MIB):
            got += piece
            if len(got) in (4 * MIB, 12 * MIB):
                for pid in mounted.workers("fetch"):
                    os.kill(pid, signal.SIGKILL)
    assert got == data
    assert mounted.end() == 0


def test_the_supervisor_is_killed(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "slow").write_bytes(bytes(64 * MIB))
    use(devstore("--root", tmp_path / "root", "--memory", "--download-mibps", "8"), monkeypatch)
    mounted = mount("gs://bucket/")
    mounter = mounted.mounter()
    with (mounted.dir / "slow").open("rb", buffering=0) as file:
        file.read(MIB)
        mounted.process.kill()
        mounted.process.wait()
        with pytest.raises(OSError) as failed:
            while file.read(MIB):
                pass
    assert failed.value.errno == errno.EIO
    assert (mounted.dir / "slow").stat().st_size == 64 * MIB
    subprocess.run(["fusermount3", "-u", mounted.dir], check=True)
    wait_for(lambda: not alive(mounter))


def test_unmounted_by_somebody(store: Server, mount: StartMount) -> None:
    mounted = mount("gs://bucket/")
    subprocess.run(["fusermount3", "-u", mounted.dir], check=True)
    assert mounted.process.wait(DEADLINE_S) == 0


def test_a_second_one_would_hide_the_first(store: Server, mount: StartMount, tmp_path: Path) -> None:
    mounted = mount("gs://bucket/")
    (tmp_path / "link").symlink_to(mounted.dir)
    command = [str(BIN / "millrace"), "mount", "gs://bucket/sub/", str(tmp_path / "link")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"a mount of millrace is at {tmp_path}/link already" in second.stderr
    assert (mounted.dir / "a").is_file()


@pytest.mark.parametrize("what", ["a folder", "a file"])
def test_it_ends_while_it_is_in_use(store: Server, mount: StartMount, tmp_path: Path, what: str) -> None:
    """By a process that does nothing with it: libfuse sees no end of the mount then."""
    mounted = mount("gs://bucket/")
    command = ["sleep", "1000"] if what == "a folder" else ["sh", "-c", f"exec sleep 1000 < {mounted.dir}/a"]
    with subprocess.Popen(command, cwd=mounted.dir / "sub" if what == "a folder" else None) as user:
        try:
            wait_for(lambda: Path(f"/proc/{user.pid}/exe").readlink().name == "sleep", "it does not begin")
            assert mounted.end() == 0
        finally:
            user.kill()


def test_it_ends_in_the_middle_of_a_read(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "slow").write_bytes(bytes(MIB))
    server = devstore("--root", tmp_path / "root", "--memory", "--download-mibps", "0.005")
    use(server, monkeypatch)
    mounted = mount("gs://bucket/")
    with subprocess.Popen(["cat", mounted.dir / "slow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        wait_for(lambda: requests(server)["get"] > 0)
        assert mounted.end() == 0
        assert reader.wait(DEADLINE_S) == 1


def test_a_reader_that_is_interrupted(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could not be killed before its bytes are there."""
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "slow").write_bytes(bytes(100 * MIB))
    server = use(devstore("--root", tmp_path / "root", "--memory", "--download-mibps", "0.005"), monkeypatch)
    mounted = mount("gs://bucket/")
    for number in (signal.SIGINT, signal.SIGKILL):
        before = requests(server)["get"]

        def asked(before: int = before) -> bool:
            return requests(server)["get"] > before

        with subprocess.Popen(["cat", mounted.dir / "slow"], stdout=subprocess.DEVNULL) as reader:
            wait_for(asked)
            reader.send_signal(number)
            assert reader.wait(DEADLINE_S) == -number
    assert mounted.end() == 0


def test_other_signals_do_not_cut_a_read_short(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that is suspended: a local file's read goes on, too."""
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "root" / "bucket" / "slow").write_bytes(bytes(MIB))
    use(devstore("--root", tmp_path / "root", "--memory", "--latency-ms", "get:2000"), monkeypatch)
    mounted = mount("gs://bucket/")
    with subprocess.Popen(["md5sum", mounted.dir / "slow"], stdout=subprocess.PIPE, text=True) as reader:
        wait_for(lambda: has_open(reader.pid, mounted.dir / "slow"))
        for _ in range(3):
            reader.send_signal(signal.SIGSTOP)
            time.sleep(0.15)  # the mount looks ten times a second; its object takes two seconds
            reader.send_signal(signal.SIGCONT)
        out, _ = reader.communicate(timeout=DEADLINE_S)
    assert (reader.returncode, out.split()[0]) == (0, hashlib.md5(bytes(MIB)).hexdigest())


def test_more_files_than_lanes(
    devstore: StartDevstore, mount: StartMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them mapped, and read again."""
    count = 300  # lanes.max is 256
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    for number in range(count):
        (tmp_path / "root" / "bucket" / f"{number:03}").write_bytes(b"%03d" % number * 70_000)
    use(devstore("--root", tmp_path / "root", "--memory"), monkeypatch)
    mounted = mount("gs://bucket/")
    with ExitStack() as opened:
        files = [opened.enter_context((mounted.dir / f"{n:03}").open("rb", buffering=0)) for n in range(count)]
        for at in (0, 150_000):
            assert [int(os.pread(file.fileno(), 3, at)) for file in files] == list(range(count))
        maps = [opened.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) for file in files]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda n: maps[n][:] == b"%03d" % n * 70_000, range(count))) == [True] * count
        stat = [str(BIN / "millrace"), "stat", "--json", "--socket", mounted.socket()]
        wait_for(lambda: len(json.loads(subprocess.check_output(stat))["lanes"]) <= 140)  # some may be ending yet


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("cmp $D/a $D/a && exit 7", 7),
        ("kill -9 $$", 137),
        ("exec no-such-program", 127),
        ("cat $D/large | head -c 1", 0),
        ("fusermount3 -u $D && sleep 1 && exit 5", 5),
    ],
)
def test_run_with_a_mount(store: Server, tmp_path: Path, command: str, status: int) -> None:
    folder = tmp_path / "here=there"
    folder.mkdir()
    done = subprocess.run(
        [BIN / "millrace", "run", "-q", "--mount", f"gs://bucket/={tmp_path}/here", "--", "true"], capture_output=True
    )
    assert done.returncode == 1 and b"cannot mount at" in done.stderr and b"No such file" in done.stderr
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [BIN / "millrace", "run", "-q", "--mount", f"gs://bucket/={tmp_path}/here", "--", "sh", "-c", command],
        env={**os.environ, "D": str(tmp_path / "here")},
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == status, done.stderr
    assert not (tmp_path / "here").is_mount()


def test_signals_reach_the_command_of_a_mount(store: Server, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    run = [str(BIN / "millrace"), "run", "-q", "--mount", f"gs://bucket/={tmp_path}/here", "--"]
    script = 'for s in USR1 USR2 QUIT CONT TERM; do trap "echo $s" $s; done; echo ready; while :; do sleep 0.1; done'
    with subprocess.Popen([*run, "bash", "-c", script], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        try:
            for text, number in (
                ("ready", signal.SIGUSR1),
                ("USR1", signal.SIGUSR2),
                ("USR2", signal.SIGQUIT),
                ("QUIT", signal.SIGCONT),
                ("CONT", signal.SIGTERM),
            ):
                assert job.stdout.readline() == text + "\n"
                job.send_signal(number)
            assert job.stdout.readline() == "TERM\n"
            assert (tmp_path / "here" / "large").exists()
        finally:
            mounts = [pid for pid, words in children(job.pid).items() if "mount" in words[0]]
            for command in (pid for mount in mounts for pid in children(mount)):
                os.kill(command, signal.SIGKILL)
        assert job.wait(DEADLINE_S) == 137
    assert not (tmp_path / "here").is_mount()


def test_run_with_a_mount_under_nohup(store: Server, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    command = ["nohup", str(BIN / "millrace"), "run", "-q", "--mount", f"gs://bucket/={tmp_path}/here", "--"]
    script = "kill -HUP $PPID $$; sleep 0.2; cat $D/large | wc -c"
    done = subprocess.run(
        [*command, "sh", "-c", script],
        env={**os.environ, "D": str(tmp_path / "here")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
