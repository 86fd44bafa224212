"""What is run while a call fails, and what has to be true afterwards, whichever call it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.python.shards import add

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build" / "release"))
BIN = BUILD / "bin"
LIBRARY = BIN / "millrace-test-failing.so"
MARKER = "MILLRACE_TORTURE"

OBJECTS = 6
SIZE = 5_300_000  # of a checkpoint: two parts
HANG_S = 150.0
OLD = b"what was there before"
SHARDS = "s3://shard-bucket/{000,002,004}.tar"
NEW = b"".join(bytes([i & 255]) * 1000 for i in range(SIZE // 1000 + 1))[:SIZE]

CONFIG = """
[dataset.train]
uri = "{data}"
[memory]
arena_bytes = "1MiB"
[list]
workers = 1
cache_bytes = 0
[fetch]
workers = 1
compose = "{compose}"
[retry]
base_ms = 1
cap_ms = 5
attempts = 4
[http]
stall_timeout_ms = 2000
stall_min_ms = 500
connect_timeout_ms = 2000
[checkpoint]
workers = 1
arena_bytes = "10MiB"
part_bytes = "5MiB"
drain_s = 5
"""

# Lines that say that a process did not end as it meant to.
CRASHES = ("signal 11", "signal 6", "signal 7", "signal 4", "signal 8", "Sanitizer", "please report", "WRONG")
# libcurl 7.88 divides by zero, or follows NULL, after some allocations of its own that failed.
THEIRS = ("/libcurl.", "/libcrypto.", "/libssl.")
# The dynamic linker ends the process where a thread's variables find no memory.
TLS = "cannot allocate memory for thread-local data"


def content(i: int) -> bytes:
    return bytes([i + 1]) * ((i + 1) * 700)


class Store:
    """A development store in memory, and requests past millrace."""

    def __init__(self) -> None:
        command = [str(BIN / "millrace-devstore"), "--listen", "127.0.0.1:0", "--exit-with-parent", "--memory"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        for bucket in ("data-bucket", "shard-bucket", "out-bucket"):
            self._ask("POST", "/storage/v1/b?project=p", json.dumps({"name": bucket}).encode())
        for i in range(OBJECTS):
            self.put("data-bucket", f"{i:03}", content(i))
        for first in range(0, OBJECTS, 2):  # two samples each, which are a header and an object
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for i in (first, first + 1):
                    add(tar, f"{i:03}.bin", content(i))
            self.put("shard-bucket", f"{first:03}.tar", archive.getvalue())

    def _ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + target, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request) as reply:
            return bytes(reply.read())

    def put(self, bucket: str, name: str, data: bytes) -> None:
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={urllib.parse.quote(name, '')}", data)

    def get(self, bucket: str, name: str) -> bytes | None:
        try:
            return self._ask("GET", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, '')}?alt=media")
        except urllib.error.HTTPError:
            return None

    def names(self, bucket: str) -> list[str]:
        return [item["name"] for item in json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o")).get("items", [])]

    def uploads(self) -> list[tuple[str, str]]:
        """Name and id of each unfinished upload."""
        text = self._ask("GET", "/out-bucket?uploads").decode()
        return re.findall("<Key>(.*?)</Key>.*?<UploadId>(.*?)</UploadId>", text, re.S)

    def begun(self) -> int:
        """Uploads that were ever asked for."""
        return int(json.loads(self._ask("GET", "/_devstore/stats"))["requests"]["initiate"])

    def empty(self, bucket: str) -> None:
        for name in self.names(bucket):
            self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, '')}")
        for name, number in self.uploads():
            self._ask("DELETE", f"/{bucket}/{name}?uploadId={number}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@dataclass
class Place:
    """The folder of one run: data/ is kept, out/ and r/ are new each time."""

    root: Path
    store: Store
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun = 0
        self.data, self.out, self.runtime = self.root / "data", self.root / "out", self.root / "r"
        self.data.mkdir()
        for i in range(OBJECTS):
            (self.data / f"{i:03}").write_bytes(content(i))
        places = {"file": f"file://{self.data}/", "gs": "gs://data-bucket/", "compose": "gs://data-bucket/"}
        places |= {"s3": "s3://data-bucket/", "shards": SHARDS}
        for name, data in places.items():
            self.config(name).write_text(CONFIG.format(data=data, compose="always" if name == "compose" else "never"))

    def config(self, name: str) -> Path:
        return self.root / f"{name}.toml"

    def clear(self) -> None:
        for folder in (self.out, self.runtime):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        self.store.empty("out-bucket")
        self.begun = self.store.begun()


@dataclass
class Ended:
    status: int
    out: bytes
    err: str


Check = Callable[[Place, Ended], "str | None"]


def nothing_left(place: Place, ended: Ended) -> str | None:
    return None


@dataclass
class Scene:
    name: str
    program: str  # TORTURE_PROGRAM
    command: Callable[[Place], list[str]]
    check: Check = nothing_left
    prepare: Callable[[Place], None] = lambda place: None
    environment: dict[str, str] = field(default_factory=dict)


# ---- checks ----


def one_of(found: bytes | None, ended: Ended, before: bytes | None, after: bytes) -> str | None:
    """The new object where the run succeeded, else the new or the old one."""
    if found == after or (ended.status != 0 and found == before):
        return None
    shown = None if found is None else f"{len(found)} bytes"
    return f"the target is neither as before nor whole: {shown}, status {ended.status}"


def strays(place: Place, allowed: set[str]) -> str | None:
    left = sorted(str(path.relative_to(place.out)) for path in place.out.rglob("*"))
    left = [name for name in left if name not in allowed]
    return f"left in the folder: {left}" if left else None


def file_target(name: str, before: bytes | None, after: bytes) -> Check:
    def check(place: Place, ended: Ended) -> str | None:
        path = place.out / name
        found = path.read_bytes() if path.exists() else None
        return one_of(found, ended, before, after) or strays(place, {name})

    return check


def object_target(name: str, before: bytes | None, after: bytes) -> Check:
    def check(place: Place, ended: Ended) -> str | None:
        found = one_of(place.store.get("out-bucket", name), ended, before, after)
        # What a dead worker left is the next run's janitor's (docs/checkpoints.md), as is an upload whose id nobody
        # learnt: that one is written down. Where the request was repeated for want of an answer, `millrace clean` has
        # to find the first one.
        died = re.search("write worker 0 (ended with|was killed)", ended.err)
        left = [other for other in place.store.names("out-bucket") if other != name and not died]
        known = any(path.stat().st_size for path in place.runtime.glob("millrace/uploads/*"))
        if not known and place.store.begun() == place.begun + 1:
            left += [f"upload {other}" for other, _ in place.store.uploads()]
        return found or (f"left in the bucket: {left}" if left else None)

    return check


def printed(wanted: bytes) -> Check:
    def check(place: Place, ended: Ended) -> str | None:
        if ended.status == 0 and ended.out != wanted:
            return f"status 0, and the output is {ended.out[:80]!r}"
        return None if wanted.startswith(ended.out) else f"output that is not the object's: {ended.out[:80]!r}"

    return check


def says(*words: bytes) -> Check:
    def check(place: Place, ended: Ended) -> str | None:
        missing = [word for word in words if word not in ended.out]
        return f"status 0, and {missing} is not in the output" if ended.status == 0 and missing else None

    return check


# ---- scenes ----


def run(config: str, target: str, header: int = 0) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        uri = target.format(out=place.out)
        inner = [str(BIN / "millrace-test-trainer"), str(OBJECTS), uri, str(SIZE), str(header)]
        return [str(BIN / "millrace"), "run", "-c", str(place.config(config)), "--", *inner]

    return command


def verb(*words: str, config: str = "gs") -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        filled = [word.format(out=place.out, data=place.data) for word in words[1:]]
        return [str(BIN / "millrace"), words[0], "-c", str(place.config(config)), *filled]

    return command


def old_file(place: Place) -> None:
    (place.out / "state").write_bytes(OLD)


def old_object(place: Place) -> None:
    place.store.put("out-bucket", "state", OLD)


def two_objects(place: Place) -> None:
    place.store.put("out-bucket", "a", b"first")
    place.store.put("out-bucket", "b", b"second")


def leftovers(place: Place) -> None:
    left = place.out / ".millrace-0123456789abcdef.part"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))


def composed(place: Place, ended: Ended) -> str | None:
    found = place.store.get("out-bucket", "c")
    if found not in (None, b"firstsecond") or (ended.status == 0 and not found):
        return f"composed: {found!r}, status {ended.status}"
    left = set(place.store.names("out-bucket")) - {"a", "b", "c"}
    return f"left in the bucket: {sorted(left)}" if left else None


def removed(place: Place, ended: Ended) -> str | None:
    left = place.store.names("out-bucket")
    return f"status 0, and left: {left}" if ended.status == 0 and left else None


def cleaned(place: Place, ended: Ended) -> str | None:
    """What cannot be looked at stays, as if somebody wrote it: the count says so."""
    left = list(place.out.iterdir())
    return f"status 0, and left: {left}" if ended.status == 0 and left and " 0 removed" not in ended.err else None


def index_saved(place: Place, ended: Ended) -> str | None:
    path = place.out / "index.mri"
    if not path.exists():
        return "status 0, and no index" if ended.status == 0 else strays(place, set())
    found = subprocess.run([BIN / "millrace", "index", path], capture_output=True)
    return f"half an index: {found.stderr!r}" if found.returncode != 0 else strays(place, {"index.mri"})


def trainer_py(target: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        script = str(Path(__file__).with_name("trainer.py"))
        return [sys.executable, script, f"file://{place.data}/", target.format(out=place.out), str(SIZE)]

    return command


FILE_RUN = run("file", "file://{out}/state")
GS_RUN = run("gs", "gs://out-bucket/state")
S3_RUN = run("s3", "s3://out-bucket/state")
SHARDS_RUN = run("shards", "file://{out}/state", 512)
COMPOSE_RUN = run("compose", "gs://out-bucket/state")
IN_FILE = file_target("state", OLD, NEW)
IN_BUCKET = object_target("state", None, NEW)
OVER_OBJECT = object_target("state", OLD, NEW)
OBJECT = bytes([6]) * 4200


def copies(name: str, scheme: str) -> list[Scene]:
    program, there = "millrace-worker:cp", f"{scheme}://out-bucket/state"
    down, up = verb("cp", f"{scheme}://data-bucket/005", "{out}/state"), verb("cp", "{data}/005", there)
    return [
        Scene(f"cp down{name}", program, down, file_target("state", OLD, OBJECT), old_file),
        Scene(f"cp up{name}", program, up, object_target("state", OLD, OBJECT), old_object),
    ]


SCENES = [
    Scene("supervisor", "millrace", FILE_RUN, IN_FILE, old_file),
    Scene("supervisor gs", "millrace", GS_RUN, IN_BUCKET),
    Scene("trainer", "millrace-test-trainer", FILE_RUN, IN_FILE, old_file),
    Scene("list", "millrace-worker:list", FILE_RUN, IN_FILE, old_file),
    Scene("list gs", "millrace-worker:list", GS_RUN, IN_BUCKET),
    Scene("fetch", "millrace-worker:fetch", FILE_RUN, IN_FILE, old_file),
    Scene("fetch gs", "millrace-worker:fetch", GS_RUN, IN_BUCKET),
    Scene("fetch composed", "millrace-worker:fetch", COMPOSE_RUN, IN_BUCKET),
    Scene("write", "millrace-worker:write", FILE_RUN, IN_FILE, old_file),
    Scene("write gs new", "millrace-worker:write", GS_RUN, IN_BUCKET),
    Scene("write gs old", "millrace-worker:write", GS_RUN, OVER_OBJECT, old_object),
    Scene("supervisor s3", "millrace", S3_RUN, IN_BUCKET),
    Scene("list s3", "millrace-worker:list", S3_RUN, IN_BUCKET),
    Scene("fetch s3", "millrace-worker:fetch", S3_RUN, IN_BUCKET),
    Scene("write s3 new", "millrace-worker:write", S3_RUN, IN_BUCKET),
    Scene("write s3 old", "millrace-worker:write", S3_RUN, OVER_OBJECT, old_object),
    Scene("list shards", "millrace-worker:list", SHARDS_RUN, IN_FILE, old_file),
    Scene("fetch shards", "millrace-worker:fetch", SHARDS_RUN, IN_FILE, old_file),
    Scene("ls", "millrace-worker:ls", verb("ls", "-l", "gs://data-bucket/"), says(b"/000\n", b"/005\n")),
    Scene("cat", "millrace-worker:cat", verb("cat", "gs://data-bucket/005"), printed(OBJECT)),
    *copies("", "gs"),
    *copies(" s3", "s3"),
    Scene("rm", "millrace-worker:rm", verb("rm", "gs://out-bucket/a", "gs://out-bucket/b"), removed, two_objects),
    Scene("rm s3", "millrace-worker:rm", verb("rm", "s3://out-bucket/a", "s3://out-bucket/b"), removed, two_objects),
    Scene("clean s3", "millrace-worker:clean", verb("clean", "s3://out-bucket")),
    Scene(
        "compose",
        "millrace-worker:compose",
        verb("compose", "gs://out-bucket/c", "gs://out-bucket/a", "gs://out-bucket/b"),
        composed,
        two_objects,
    ),
    Scene("clean gs", "millrace-worker:clean", verb("clean", "gs://out-bucket")),
    Scene("clean", "millrace-worker:clean", verb("clean", "--older-than", "0", "file://{out}"), cleaned, leftovers),
    Scene("doctor", "millrace-worker:doctor", verb("doctor", "gs://data-bucket/"), says(b"data-bucket")),
    Scene("doctor local", "millrace", verb("doctor", "gs://data-bucket/"), says(b"data-bucket")),
    Scene("check", "millrace", verb("check"), says(b"[checkpoint]")),
    Scene("index", "millrace", verb("index", "-o", "{out}/index.mri", "gs://data-bucket/"), index_saved),
    Scene("index list", "millrace-worker:list", verb("index", "-o", "{out}/index.mri", "file://{data}/"), index_saved),
    Scene(
        "stat",
        "millrace",
        lambda place: [str(BIN / "millrace"), "stat", "--socket", place.environment["SERVED"]],
        says(b"fetch"),
    ),
    Scene("python", "python", trainer_py("file://{out}/state"), IN_FILE, old_file),
]

KINDS = ["malloc", "malloc-all", "mmap", "open", "socket", "accept", "fork", "ftruncate", "pthread", "epoll"]
KINDS += ["eventfd", "write", "read", "fsync", "rename", "stat", "dup"]
PYTHON_KINDS = ["malloc", "malloc-near"] + [kind for kind in KINDS if not kind.startswith("malloc")]


def kinds_of(scene: Scene) -> list[str]:
    return PYTHON_KINDS if scene.program == "python" else KINDS


# ---- one run ----


@dataclass
class Result:
    hit: str | None  # the place of the call that failed; None: it never came
    problem: str | None
    seconds: float
    ended: Ended
    theirs: bool = False  # the process crashed inside a library that is not ours


def _processes(mark: str) -> dict[int, str]:
    wanted = f"{MARKER}={mark}".encode()
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _await_end(mark: str, patience_s: float) -> dict[int, str]:
    deadline = time.monotonic() + patience_s
    while (left := _processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return left


def crashed_in_theirs(stamp: str) -> bool:
    """The second line has the handler's frame, the trampoline's, and that of the crash."""
    lines = [line.split("/", 1)[-1] for line in stamp.splitlines()[1:]]
    frames = [[frame for frame in line.split() if "+0x" in frame] for line in lines]
    return bool(frames) and all(len(f) > 2 and any(name in f[2] for name in THEIRS) for f in frames)


def judge(scene: Scene, place: Place, ended: Ended) -> str | None:
    if ended.status < 0 or ended.status >= 128:
        return f"ended by a signal, or not started: {ended.status}"
    if found := [word for word in CRASHES if word in ended.err]:
        return f"its words have {found}"
    if ended.status != 0 and not ended.err.strip() and b"FAIL" not in ended.out:  # doctor's words are its output
        return f"status {ended.status} without a word"
    return scene.check(place, ended)


def attempt(scene: Scene, place: Place, kind: str, n: int, ever: bool = False) -> Result:
    place.clear()
    scene.prepare(place)
    stamp, mark = place.root / "stamp", uuid.uuid4().hex
    stamp.unlink(missing_ok=True)
    names = set(os.listdir("/dev/shm"))  # noqa: PTH208
    environment = {
        **os.environ,
        **place.environment,
        **scene.environment,
        MARKER: mark,
        "LD_PRELOAD": str(LIBRARY),
        "TORTURE_PROGRAM": scene.program,
        "TORTURE_KIND": kind,
        "TORTURE_N": str(n),
        "TORTURE_STAMP": str(stamp),
        "STORAGE_EMULATOR_HOST": place.store.url,
        "AWS_ENDPOINT_URL_S3": place.store.url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "XDG_RUNTIME_DIR": str(place.runtime),
        "XDG_CACHE_HOME": str(place.root / "cache"),
        "PYTHONPATH": str(BUILD / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0:allocator_may_return_null=1",
    }
    if ever:
        environment["TORTURE_EVER"] = "1"
    if scene.program == "python":  # for its private supervisor: the default sizes take a second to reserve
        environment["MILLRACE_CONFIG"] = str(place.config("file"))
    if kind == "malloc-near":
        environment["PYTHONMALLOC"] = "malloc"
    began = time.monotonic()
    out_path, err_path = place.root / "stdout", place.root / "stderr"
    hung = False
    with out_path.open("wb") as out, err_path.open("wb") as err:
        process = subprocess.Popen(
            scene.command(place), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=place.root
        )
        try:
            process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            hung = True
            process.kill()
            process.wait()
    left = _await_end(mark, 0.0 if hung else 60.0)
    ended = Ended(process.returncode, out_path.read_bytes(), err_path.read_text(errors="replace"))
    seconds = time.monotonic() - began
    problem = f"still there after {HANG_S:.0f} s" if hung else judge(scene, place, ended)
    if not problem and left:
        problem = f"processes left: {sorted(left.values())}"
    fresh = set(os.listdir("/dev/shm")) - names  # noqa: PTH208
    if not problem and (ours := [name for name in fresh if "millrace" in name]):
        problem = f"left in /dev/shm: {ours}"
    hit = stamp.read_text().strip() if stamp.exists() else None
    if problem and hit and (crashed_in_theirs(hit) or TLS in ended.err):
        return Result(hit, None, seconds, ended, theirs=True)
    return Result(hit, problem, seconds, ended)


@contextlib.contextmanager
def a_place():
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        store = Store()
        place = Place(Path(folder), store)
        place.clear()
        socket = Path(folder) / "served"
        command = [BIN / "millrace", "serve", "-q", "-c", place.config("file"), "--socket", socket]
        runtime = Path(folder) / "served-r"
        runtime.mkdir(mode=0o700)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "XDG_CACHE_HOME": str(runtime)}
        served = subprocess.Popen(
            [str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert served.stdout is not None
        served.stdout.readline()
        ask = [str(BIN / "millrace"), "stat", "--json", "--socket", str(socket)]
        while True:  # what it starts shall not be taken for a test's
            workers = json.loads(subprocess.run(ask, capture_output=True, check=True).stdout)["workers"]
            states = {(worker["role"], worker["state"]) for worker in workers if worker["role"] != "write"}
            if states == {("fetch", "running"), ("list", "none")}:
                break
            time.sleep(0.02)
        place.environment["SERVED"] = str(socket)
        try:
            yield place
        finally:
            served.terminate()
            served.wait()
            served.stdout.close()
            store.stop()
