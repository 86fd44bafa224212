"""Kills trainers, workers and supervisors while checkpoints are saved, and looks at each object afterwards.

    python -m tests.e2e.checkpoint_kills [KILLS] [SEED] [gs | s3 | versitygw]        (3,000 kills: see docs/testing.md)

Seven jobs at a time: five save to one bucket, two to one folder (file://). The bucket is the development store's, by
the protocol of GCS or of S3, or one of versitygw. All jobs of a place also save to one name
that they share, which is removed now and then, so that both kinds of uploads come to it (multipart uploads for a name
that is new, parts and composes for one that is taken). Some jobs have a runtime folder in common, as those of one
machine have, others have their own. Every kill is SIGKILL at a random moment, of
  trainer      a save that was promised (close(wait=False)) must come, any other one is whole or was never there
  write, fetch, list   a worker: its successor goes on; nobody notices
  supervisor   write workers finish what was promised; the trainer gets an error
  everything   supervisor and write workers at once: whole, or what was there before. So it is where the supervisor dies
               before a write worker was started again: the one documented case in which what was promised may be lost
After each an object is exactly what one save wrote (kill_history.py says which it may be); no save fails because
somebody else cleaned up; and after a later run that ends well nothing else is in the bucket and the folder: no
temporary object, no temporary file, and no unfinished upload but those that were begun by a request whose answer nobody
saw. These the log tells of, and `millrace clean` removes them. test_checkpoint_kills.py does a few.

Exit status 1 where something is wrong: the seed and the folder with all logs are printed, and the folder is kept.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forked
from tests.conftest import BIN, Server, our_processes, start_devstore
from tests.e2e.kill_history import NOTHING, History, Look, Save
from tests.serve import DEADLINE_S, Supervisor, alive, children, start_supervisor, wait_for
from tests.store.s3_servers import S3, start_versitygw
from tests.stores import TEMPORARY_PREFIX, delete, s3_environment, temporary

TRAINER = Path(__file__).with_name("checkpoint_trainer.py")
BUCKET = "ckpt"
STORES = ("gs", "s3", "versitygw")
TOML = """[checkpoint]
arena_bytes = "40MiB"
part_bytes = "5MiB"
drain_s = 60
[memory]
arena_bytes = "4MiB"
[fetch]
workers = 1
[list]
workers = 1
[retry]
base_ms = 5
cap_ms = 50
"""
LATENCY_MS = ["2", "initiate:5", "part:10", "complete:10", "compose:10", "upload:5"]
WORKERS = ["write"] * 6 + ["fetch", "list"]  # how often each is chosen
RESTART_S = 1.0  # a worker is in its slot again, and has got its lanes, after so long: else there are fewer of them
JOB_VARIABLE = "MILLRACE_TEST_JOB"
# An upload that may have been begun, and whose id nobody has.
UNKNOWN = "a run ended while it began an upload"
# A write worker died as it gave an upload its name; when its successor looked, another had written or removed that.
UNSURE = "is missing: it was removed, or it got the name and another writer has written"
# What the store's own faults cannot do here: somebody took a live save's parts away.
TOUCHED = "its unfinished upload was removed by another program"


@dataclass
class Place:
    """Where jobs save: a bucket, or a folder."""

    prefix: str
    shared: str
    url: str = ""
    root: Path = Path()

    def read(self, uri: str) -> str:
        """The sum of what is there."""
        if not self.url:
            try:
                return hashlib.sha256(Path(uri.removeprefix("file://")).read_bytes()).hexdigest()
            except FileNotFoundError:
                return NOTHING
        try:
            with urllib.request.urlopen(f"{self.url}/{uri.removeprefix('gs://')}") as reply:
                return hashlib.sha256(reply.read()).hexdigest()
        except urllib.error.HTTPError as error:
            assert error.code == 404, error
            error.close()
            return NOTHING

    def remove(self, uri: str) -> None:
        if not self.url:
            Path(uri.removeprefix("file://")).unlink(missing_ok=True)
            return
        try:
            delete(self.url, BUCKET, uri.removeprefix(f"gs://{BUCKET}/"))
        except urllib.error.HTTPError as error:
            assert error.code == 404, error
            error.close()

    def age(self, seconds: float) -> None:
        """Nobody saves: what the dead left in a folder, which has to be still for up to an hour first, has been."""
        for path in self.root.rglob(".millrace-*") if not self.url else ():
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    def left(self) -> tuple[list[str], int]:
        """Temporary objects (or files), and unfinished uploads."""
        if not self.url:
            return [str(path) for path in self.root.rglob(".millrace-*")], 0
        return temporary(self.url, BUCKET), unfinished(self.url)


class S3Place(Place):
    """A bucket of S3."""

    def __init__(self, s3: S3) -> None:
        super().__init__(f"s3://{BUCKET}/", f"s3://{BUCKET}/shared.pt", s3.server.url)
        self._client = s3.client()

    def _key(self, uri: str) -> dict[str, str]:
        return {"Bucket": BUCKET, "Key": uri.removeprefix(self.prefix)}

    def read(self, uri: str) -> str:
        try:
            return hashlib.sha256(self._client.get_object(**self._key(uri))["Body"].read()).hexdigest()
        except self._client.exceptions.NoSuchKey:
            return NOTHING

    def remove(self, uri: str) -> None:
        self._client.delete_object(**self._key(uri))

    def left(self) -> tuple[list[str], int]:
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=TEMPORARY_PREFIX).get("Contents", [])
        uploads = self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [one["Key"] for one in found], len(uploads)


@dataclass
class Scene:
    folder: Path
    wanted: int
    history: History = field(default_factory=History)
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    looks: list[tuple[Place, Look]] = field(default_factory=list)  # at shared names: judged when all have ended
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self) -> bool:
        return bool(self.wrong) or sum(self.kills.values()) >= self.wanted

    def killed(self, what: str) -> None:
        with self.lock:
            self.kills[what] += 1

    def violate(self, text: str) -> None:
        with self.lock:
            self.wrong.append(text)
        print(f"VIOLATION: {text}", flush=True)


def unfinished(url: str) -> int:
    with urllib.request.urlopen(f"{url}/{BUCKET}?uploads") as reply:
        return int(reply.read().count(b"<UploadId>"))


class Trainer:
    """A running checkpoint_trainer.py, and what it said."""

    def __init__(self, job: Job, supervisor: Supervisor, options: dict[str, Any]) -> None:
        self.job = job
        self.out = job.folder / f"out-{job.trainers}"
        job.trainers += 1
        with (
            self.out.open("wb") as out,
            (job.folder / "trainers.log").open("ab") as errors,
            Path(os.devnull).open() as no,
        ):
            descriptors = (no.fileno(), out.fileno(), errors.fileno())
            self.process = forked.start([TRAINER, json.dumps(options)], job.folder, supervisor.environment, descriptors)
        self.saves: dict[int, Save] = {}
        self.first = int(options["first"])
        self.wait_for_line()

    def wait_for_line(self) -> None:
        wait_for(
            lambda: self.out.stat().st_size or not alive(self.process.pid),
            lambda: f"job {self.job.number}: a trainer did not begin",
        )

    def kill(self) -> bool:
        if not alive(self.process.pid):
            return False
        self.process.kill()
        return True

    def end(self) -> None:
        """It has been killed or has failed: what it said is noted."""
        self.process.wait(DEADLINE_S)
        scene, job = self.job.scene, self.job
        for line in self.out.read_text().splitlines():
            words = json.loads(line)
            if "begin" in words:
                k = words["begin"]
                job.saves = max(job.saves, k + 1)
                self.saves[k] = Save(words["uri"], words["sha256"], job.number, words["t"])
                scene.history.add(self.saves[k])
                scene.counts["saves"] += 1
            elif "sealed" in words:
                self.saves[words["sealed"]].sealed = True
                scene.counts["promised"] += 1
            elif "saved" in words:
                save = self.saves[words["saved"]]
                save.over, save.must = words["t"], True
                scene.counts["confirmed"] += 1
            elif "read" in words:
                scene.counts["read back"] += 1
                if not words["good"]:
                    scene.violate(f"job {job.number}: {self.saves[words['read']].name} was read back with other bytes")
            else:
                self.note_failure(words)
        self.out.unlink()

    def note_failure(self, words: dict[str, Any]) -> None:
        scene, save = self.job.scene, self.saves[words["failed"]]
        scene.counts[f"failed: {words['kind']}"] += 1
        gone = words["kind"] == "SupervisorGone" and self.job.supervisor_killed
        shared = save.name == self.job.place.shared
        overtaken = shared and (words["kind"] in ("ChangedError", "FileExistsError") or UNSURE in words["error"])
        if not (gone or overtaken) or TOUCHED in words["error"]:
            scene.violate(f"job {self.job.number}: {words}, {save}")
        if words["at"] == "write":
            save.never, save.over = True, words["t"]
        elif overtaken:
            save.over = words["t"]


class Job:
    """One training job, over and over, in a thread of its own."""

    def __init__(self, scene: Scene, number: int, seed: int, place: Place, runtime: Path) -> None:
        self.scene, self.number, self.place = scene, number, place
        self.rng = random.Random(seed)
        self.folder = scene.folder / f"job-{number}"
        self.folder.mkdir()
        self.environment = {
            "XDG_RUNTIME_DIR": str(runtime),
            "STORAGE_EMULATOR_HOST": place.url,
            **s3_environment(place.url),
            JOB_VARIABLE: f"{scene.folder.name}-{number}",
        }
        self.saves = self.trainers = self.runs = 0
        self.supervisor_killed = self.together = False
        self.write_killed = -1e9

    # ---- one run ----

    def work(self) -> None:
        try:
            while not self.scene.done():
                self.one_run()
        except BaseException:
            self.scene.violate(f"job {self.number}: {traceback.format_exc()}")

    def start(self) -> Supervisor:
        folder = self.folder / f"run-{self.runs}"
        folder.mkdir()
        self.runs += 1
        self.supervisor_killed = self.together = False
        return start_supervisor(BIN / "millrace", folder, self.place.url, TOML, **self.environment)

    def one_run(self) -> None:
        """Kills workers and trainers within a run, at last the supervisor or everything; looks after each."""
        supervisor = self.start()
        try:
            for _ in range(self.rng.randrange(1, 4)):
                self.one_round(supervisor, self.rng.choice(["trainer", "trainer", "worker"]))
                if self.scene.done():
                    break
            self.one_round(supervisor, self.rng.choice(["supervisor", "everything"]))
        finally:
            if self.left():  # after a failed assertion
                supervisor.kill()
            for pid in self.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        text = supervisor.log.read_text()
        if TOUCHED in text:
            self.scene.violate(f"job {self.number}: {supervisor.log} has '{TOUCHED}'")

    def one_round(self, supervisor: Supervisor, victim: str) -> None:
        trainers = [self.trainer(supervisor, i) for i in range(self.rng.choice([1, 1, 2]))]
        try:
            for _ in range(self.rng.randrange(4)):
                self.pause(0.15)
                self.kill_worker(supervisor)
            self.pause(0.3)
            if victim in ("supervisor", "everything"):
                self.kill_supervisor(supervisor, victim == "everything")
                self.pause(0.05)
            for trainer in trainers:
                if trainer.kill():
                    self.scene.killed("trainer")
                self.pause(0.05)
        finally:
            for trainer in trainers:
                trainer.process.kill()
                trainer.end()
        if victim in ("supervisor", "everything"):
            wait_for(lambda: not self.left(), lambda: f"job {self.number}: {self.left()} do not end")
        else:
            wait_for(
                lambda: not supervisor.stat()["checkpoint"]["writers"],
                lambda: f"job {self.number}: saves are not finished: {supervisor.log.read_text()[-2000:]}",
            )
        self.scene.history.settle(self.number, time.monotonic(), keeps_promises=not self.together)
        self.look()

    def pause(self, most: float) -> None:
        time.sleep(self.rng.uniform(0, most))

    def trainer(self, supervisor: Supervisor, number: int, **more: Any) -> Trainer:
        options = {
            "prefix": f"{self.place.prefix}job-{self.number}/{number}/",
            "shared": [self.place.shared],
            "seed": self.rng.randrange(1 << 30),
            "first": self.saves,
            **more,
        }
        return Trainer(self, supervisor, options)

    # ---- kills ----

    def kill_worker(self, supervisor: Supervisor) -> None:
        roles = {pid: words[1] for pid, words in children(supervisor.process.pid).items() if len(words) > 1}
        if roles:
            role = self.rng.choice(WORKERS)
            pid = self.rng.choice(sorted([p for p, r in roles.items() if r == role] or roles))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                if roles[pid] in ("write", "serve"):
                    self.write_killed = time.monotonic()
                self.scene.killed("a worker before its exec" if roles[pid] == "serve" else roles[pid])

    def kill_supervisor(self, supervisor: Supervisor, everything: bool) -> None:
        self.supervisor_killed = True
        # Stopped, so that it starts nobody between the look at its children and its end.
        supervisor.process.send_signal(signal.SIGSTOP)
        writers = supervisor.workers("write")
        # A write worker that was killed just before, and is not back or has not got its lanes yet, is as one that is
        # killed with the supervisor.
        self.together = everything or len(writers) < 2 or time.monotonic() - self.write_killed < RESTART_S
        supervisor.kill()
        self.scene.killed("supervisor")
        if everything:
            for pid in writers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.scene.killed("write")

    def left(self) -> list[int]:
        """Processes of this job, however they were reparented."""
        marker = f"{JOB_VARIABLE}={self.environment[JOB_VARIABLE]}".encode()
        found = []
        for pid in our_processes():
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and alive(pid):
                    found.append(pid)
        return found

    # ---- looks ----

    def look(self) -> None:
        """Nothing of this job is under way: each of its own names is judged, and a look at the shared one noted."""
        own = [
            name for name in list(self.scene.history.saves) if name.startswith(f"{self.place.prefix}job-{self.number}/")
        ]
        for name in own:
            seen = self.see(name)
            if wrong := self.scene.history.wrong(seen):
                self.scene.violate(wrong)
            self.scene.counts["looks"] += 1
        news = [name for name in own if "/new-" in name]
        for name in news:
            self.place.remove(name)
        self.scene.history.forget(news)
        self.scene.looks.append((self.place, self.see(self.place.shared)))

    def see(self, name: str) -> Look:
        since = time.monotonic()
        return Look(name, self.place.read(name), since, time.monotonic())


def is_tidy(scene: Scene, places: Iterable[Place]) -> bool:
    left = [place.left() for place in places]
    if any(objects for objects, _ in left):
        return False
    uploads = sum(count for _, count in left)
    logs = scene.folder.rglob("supervisor.log") if uploads else []
    return uploads <= sum(path.read_text(errors="replace").count(UNKNOWN) for path in logs)


def last_runs(jobs: list[Job]) -> None:
    """In peace, each job saves to all its names, until what the dead have left is gone too. All end well."""
    deadline = time.monotonic() + DEADLINE_S
    for place in {job.place.prefix: job.place for job in jobs}.values():
        place.age(7200)
    places = {job.place.prefix: job.place for job in jobs}.values()
    supervisors = [job.start() for job in jobs]
    try:
        while True:
            for job, supervisor in zip(jobs, supervisors):
                for number in range(2):
                    trainer = job.trainer(supervisor, number, once=True)
                    trainer.process.wait(DEADLINE_S)
                    trainer.end()
            # A folder's are removed by whoever writes into it, a bucket's while nobody does.
            again = time.monotonic() + 10
            while not is_tidy(jobs[0].scene, places) and time.monotonic() < again:
                time.sleep(0.2)
            if is_tidy(jobs[0].scene, places):
                break
            left = [place.left() for place in places]
            assert time.monotonic() < deadline, f"left: {left}"
    finally:
        ends = [(supervisor.stop(), supervisor) for supervisor in supervisors]
    for status, supervisor in ends:
        assert status == 0, supervisor.log.read_text()[-2000:]
    for place in places:
        if place.left()[1]:
            jobs[0].scene.counts["uploads whose id nobody saw, removed by millrace clean"] += place.left()[1]
            clean = [str(BIN / "millrace"), "clean", "--older-than", "0", place.prefix]
            subprocess.run(clean, env={**os.environ, **jobs[0].environment}, check=True, capture_output=True)
    for job in jobs:
        job.scene.history.settle(job.number, time.monotonic(), keeps_promises=True)
        job.look()


def remove_shared(scene: Scene, rng: random.Random, places: list[Place]) -> None:
    """In a thread: looks at the names that are shared, and removes them now and then."""
    try:
        while not scene.done():
            time.sleep(rng.uniform(0.2, 1.5))
            for place in places:
                since = time.monotonic()
                scene.looks.append((place, Look(place.shared, place.read(place.shared), since, time.monotonic())))
                gone = Save(place.shared, NOTHING, -1, time.monotonic(), must=True)
                place.remove(place.shared)
                gone.over = time.monotonic()
                scene.history.add(gone)
    except BaseException:
        scene.violate(traceback.format_exc())


def start_store(folder: Path, store: str) -> tuple[Server, Place]:
    """A server with an empty bucket."""
    if store == "versitygw":
        s3 = start_versitygw(folder)
    else:
        root = folder / "store"
        (root / BUCKET).mkdir(parents=True)
        latency = [word for ms in LATENCY_MS for word in ("--latency-ms", ms)]
        server = start_devstore("--root", root, "--no-md5", "--log", folder / "store.log", *latency)
        if store == "gs":
            return server, Place(f"gs://{BUCKET}/", f"gs://{BUCKET}/shared.pt", server.url)
        s3 = S3("devstore", server)
    s3.put(BUCKET, {})
    return s3.server, S3Place(s3)


def kill_runs(
    folder: Path, kills: int, seed: int, jobs: int = 5, folder_jobs: int = 2, store: str = STORES[0]
) -> Scene:
    rng = random.Random(seed)
    files = folder / "files"
    files.mkdir()
    server, bucket = start_store(folder, store)
    disk = Place(f"file://{files}/", f"file://{files}/shared.pt", root=files)
    scene = Scene(folder, kills)
    runtimes = []
    for number in range(3):
        runtimes.append(folder / f"runtime-{number}")
        runtimes[-1].mkdir(mode=0o700)
    try:
        all_jobs = [
            Job(scene, i, rng.randrange(1 << 30), bucket if i < jobs else disk, runtimes[i % len(runtimes)])
            for i in range(jobs + folder_jobs)
        ]
        places = [place for place in (bucket, disk) if any(job.place is place for job in all_jobs)]
        threads = [threading.Thread(target=job.work) for job in all_jobs]
        threads.append(threading.Thread(target=remove_shared, args=(scene, random.Random(seed + 1), places)))
        for thread in threads:
            thread.start()
        begun = said = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - said > 30:
                said = time.monotonic()
                done = sum(scene.kills.values())
                print(f"{said - begun:.0f} s: {done} kills, {scene.counts['saves']} saves", flush=True)
        for place in places:
            left, uploads = place.left()
            scene.counts["left by the dead"] += len(left) + uploads
        if not scene.wrong:
            last_runs(all_jobs)
        for _, seen in scene.looks:
            scene.counts["looks"] += 1
            if wrong := scene.history.wrong(seen):
                scene.violate(wrong)
        for place in places:
            left, uploads = place.left()
            scene.counts["left after a later run"] += len(left) + uploads
        if store != "versitygw":
            with urllib.request.urlopen(f"{server.url}/_devstore/stats") as reply:
                scene.counts.update({f"store: {k}": v for k, v in json.load(reply)["requests"].items()})
    except BaseException:
        scene.violate(traceback.format_exc())
    finally:
        server.stop()
    return scene


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    store = sys.argv[3] if len(sys.argv) > 3 else STORES[0]
    if store not in STORES:
        sys.exit(f"{store!r} is no store: choose one of {', '.join(STORES)}")
    forked.preload("millrace.checkpoint")
    print(f"seed {seed}, store {store}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="millrace-kills-"))
    begun = time.monotonic()
    scene = kill_runs(folder, kills, seed, store=store)
    for place_logs in ("kills", "counts"):
        for what, count in sorted(getattr(scene, place_logs).items()):
            print(f"  {what:>40} {count}")
    print(
        f"seed {seed}: {sum(scene.kills.values())} SIGKILLs in {time.monotonic() - begun:.0f} s over "
        f"{scene.counts['saves']} saves ({scene.counts['promised']} promised, {scene.counts['confirmed']} confirmed); "
        f"{scene.counts['looks']} looks, {len(scene.wrong)} violations; "
        f"{scene.counts['left after a later run']} uploads and temporary objects left after a later run"
    )
    if scene.wrong or scene.counts["left after a later run"]:
        print(f"all logs: {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
