"""Kills trainers, write workers and supervisors while checkpoints are saved, and looks at each object afterwards.

    python -m tests.e2e.checkpoint_kills [KILLS] [SEED]        (300 kills: about four minutes)

Every kill is SIGKILL at a random moment, of
  trainer      a save that was promised (close(wait=False)) must come, any other one is whole or was never there
  worker       its successor goes on; nobody notices
  supervisor   write workers finish what was promised; the trainer gets an error
  everything   supervisor and write workers at once: whole, or what was there before
After each an object is exactly what one save wrote; after a later run that ends well nothing else is in the bucket: no
temporary object, and no unfinished upload but those that were begun by a request whose answer nobody saw. These the log
tells of, and `millrace clean` removes them. test_checkpoint_kills.py does a few.
"""

from __future__ import annotations

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
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import BIN, our_processes, start_devstore
from tests.serve import DEADLINE_S, Supervisor, start_supervisor, wait_for
from tests.stores import temporary

TRAINER = Path(__file__).with_name("checkpoint_trainer.py")
BUCKET = "ckpt"
TOML = """[checkpoint]
arena_bytes = "40MiB"
part_bytes = "5MiB"
drain_s = 60
[retry]
base_ms = 5
cap_ms = 50
"""
VICTIMS = ["trainer", "worker", "supervisor", "everything"]


@dataclass
class Object:
    """What may be under a name: (sha256 or None for nothing), and what a kill of one process may not take back."""

    now: str | None = None
    maybe: list[str] = field(default_factory=list)
    promised: str | None = None


@dataclass
class Scene:
    folder: Path
    url: str
    rng: random.Random
    environment: dict[str, str]
    objects: dict[str, Object] = field(default_factory=dict)
    saves: int = 0
    promises: int = 0
    replaced: int = 0

    def kill(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def note(self, lines: list[str]) -> None:
        """What the trainer said."""
        of: dict[int, tuple[str, str]] = {}
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # the last one, cut by the kill
                words = json.loads(line)
                if "begin" in words:
                    k = words["begin"]
                    of[k] = (words["name"], words["sha256"])
                    self.saves = max(self.saves, k + 1)
                    self.objects.setdefault(words["name"], Object()).maybe.append(words["sha256"])
                    continue
                k = words.get("sealed", words.get("saved", words.get("failed")))
                name, sha = of[k]
                seen = self.objects[name]
                if "sealed" in words:
                    seen.promised = sha
                    self.promises += 1
                elif "saved" in words:
                    self.replaced += seen.now is not None
                    seen.now, seen.maybe, seen.promised = sha, [], None
                elif words["at"] == "write":
                    seen.maybe.remove(sha)

    def look(self, keeps_promises: bool) -> None:
        """Each object is whole: what one of the saves wrote. Afterwards what is there is certain."""
        for name, seen in self.objects.items():
            found = content(self.url, name)
            allowed = {seen.now, *seen.maybe}
            if keeps_promises and seen.promised is not None:
                allowed = {seen.promised}
            assert found in allowed, f"{name}: {found} is there, and not one of {allowed}"
            seen.now, seen.maybe, seen.promised = found, [], None


def content(url: str, name: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{url}/{BUCKET}/{name}") as reply:
            return hashlib.sha256(reply.read()).hexdigest()
    except urllib.error.HTTPError as error:
        assert error.code == 404
        error.close()
        return None


def unfinished(url: str) -> int:
    with urllib.request.urlopen(f"{url}/{BUCKET}?uploads") as reply:
        return int(reply.read().count(b"<UploadId>"))


def unknown(scene: Scene) -> int:
    """Uploads of which the logs say that they may have been begun, and that nobody has their ids."""
    words = "a run died while it began an upload"
    return sum(path.read_text(errors="replace").count(words) for path in scene.folder.rglob("*.log"))


def start_trainer(scene: Scene, supervisor: Supervisor, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, TRAINER, f"gs://{BUCKET}/", str(scene.rng.randrange(1 << 30)), str(scene.saves)],
        env=supervisor.environment,
        stdout=out.open("wb"),
        stderr=(scene.folder / "trainer.log").open("ab"),
    )


def wait_for_writers(pids: set[int]) -> None:
    """Until no write worker of this session is left: what was promised is done."""

    def gone() -> bool:
        return not any(" write " in f"{line} " for pid, line in our_processes().items() if pid not in pids)

    wait_for(gone, our_processes)


def one_run(scene: Scene, number: int, kills: int) -> int:
    """Kills workers and trainers within a run, at last the supervisor or everything; looks after each."""
    here = scene.folder / f"run-{number}"
    here.mkdir()
    before = set(our_processes())
    supervisor = start_supervisor(BIN / "millrace", here, scene.url, TOML, **scene.environment)
    done = 0
    try:
        while done < kills:
            last = done == kills - 1
            victim = scene.rng.choice(["supervisor", "everything"] if last else ["trainer", "worker"])
            done += one_trainer(scene, supervisor, here / f"out-{done}", victim)
            if last:
                wait_for_writers(before)
            else:
                wait_until_idle(supervisor)
            scene.look(keeps_promises=victim != "everything")
    finally:
        supervisor.process.kill()
        supervisor.process.wait()
    return done


def one_trainer(scene: Scene, supervisor: Supervisor, out: Path, victim: str) -> int:
    done = 0
    trainer = start_trainer(scene, supervisor, out)
    try:
        while not out.read_bytes():
            assert trainer.poll() is None, (scene.folder / "trainer.log").read_text()[-2000:]
            time.sleep(0.01)
        time.sleep(scene.rng.uniform(0, 0.4))
        workers = supervisor.workers("write")
        if victim in ("supervisor", "everything"):
            done += scene.kill(supervisor.process.pid)
            supervisor.process.wait()
        if victim == "everything":
            for worker in workers:
                scene.kill(worker)
        elif victim == "worker" and workers:
            done += scene.kill(scene.rng.choice(workers))
            time.sleep(scene.rng.uniform(0, 0.4))
            assert trainer.poll() is None, (scene.folder / "trainer.log").read_text()[-2000:]
        if victim not in ("supervisor", "everything"):
            done += scene.kill(trainer.pid)
    finally:
        if victim in ("trainer", "worker"):
            trainer.kill()  # once more after an assertion
        trainer.wait(timeout=DEADLINE_S)
        scene.note(out.read_text().splitlines())
    return done


def wait_until_idle(supervisor: Supervisor) -> None:
    """No save is under way in a living supervisor."""
    wait_for(
        lambda: not supervisor.stat()["checkpoint"]["writers"],
        lambda: "saves are not finished: " + supervisor.log.read_text()[-2000:],
    )


def kill_runs(folder: Path, kills: int, seed: int, say: bool = False) -> tuple[Scene, int, list[str], int]:
    """(what was seen, kills, temporary objects and unfinished uploads that are left after a later run)."""
    rng = random.Random(seed)
    root = folder / "store"
    (root / BUCKET).mkdir(parents=True)
    server = start_devstore("--root", str(root), "--latency-ms", "2")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    scene = Scene(folder, server.url, rng, {"XDG_RUNTIME_DIR": str(runtime)})
    done, run = 0, 0
    try:
        while done < kills:
            done += one_run(scene, run, min(rng.randrange(3, 8), kills - done))
            run += 1
            if say:
                left, uploads = len(temporary(server.url, BUCKET)), unfinished(server.url)
                print(f"{done} kills, {scene.saves} saves; left by the dead: {left} objects, {uploads} uploads")
        last_run(scene)
        return scene, done, temporary(server.url, BUCKET), unfinished(server.url)
    finally:
        server.stop()


def last_run(scene: Scene) -> None:
    """Saves in peace, and ends well."""
    supervisor = start_supervisor(BIN / "millrace", scene.folder, scene.url, TOML, **scene.environment)
    out = scene.folder / "last"
    trainer = start_trainer(scene, supervisor, out)
    try:
        while b'"saved"' not in out.read_bytes():
            assert trainer.poll() is None
            time.sleep(0.01)
    finally:
        trainer.kill()
        trainer.wait()
    wait_until_idle(supervisor)
    # The dead processes' requests may still be on their way: what is theirs is searched for twice.
    wait_for(
        lambda: not temporary(scene.url, BUCKET) and unfinished(scene.url) <= unknown(scene), "the dead left something"
    )
    assert supervisor.stop() == 0
    if unfinished(scene.url):
        print(f"{unfinished(scene.url)} uploads whose ids nobody saw: millrace clean removes them")
        clean = [str(BIN / "millrace"), "clean", "--older-than", "0", f"gs://{BUCKET}"]
        environment = {**os.environ, **scene.environment, "STORAGE_EMULATOR_HOST": scene.url}
        subprocess.run(clean, env=environment, check=True, capture_output=True)
    scene.note(out.read_text().splitlines())
    scene.look(keeps_promises=True)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    folder = Path(tempfile.mkdtemp())
    try:
        scene, done, left, uploads = kill_runs(folder, kills, seed, say=True)
    finally:
        shutil.rmtree(folder)
    print(
        f"seed {seed}: {done} kills, {scene.saves} saves ({scene.promises} promised), every object whole or as before; "
        f"{len(left)} temporary objects and {uploads} unfinished uploads after a later run"
    )
    sys.exit(1 if left or uploads else 0)


if __name__ == "__main__":
    main()
