"""A training job in the chaos: its supervisor, its ranks, their meeting after each step, and what they saw.

It runs in a thread of its own. A training is a few epochs; when a rank ends before its time all of them end, as under
torchrun, and the next ones continue from the last checkpoint that is there, perhaps with another number of ranks and
workers, perhaps with another supervisor.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import time
import traceback
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forked
from tests.chaos.plan import Place, Training
from tests.chaos.scene import CHECKPOINTS, Scene
from tests.conftest import BIN, our_processes
from tests.e2e.kill_history import NOTHING, Look, Save
from tests.serve import Supervisor, alive, children, start_supervisor
from tests.stores import delete

RANK = Path(__file__).with_name("rank.py")
JOB_VARIABLE = "MILLRACE_TEST_JOB"
STUCK_S = 60  # nothing moves for so long: every strike is over after a few seconds
TOGETHER_S = 6  # a worker that is killed so long before its supervisor may not be started again yet
SAVE_EVERY = 4  # steps

TOML = """[memory]
arena_bytes = "{arena}"
[lanes]
window = 32
[list]
workers = 2
[fetch]
workers = 2
connections = 8
compose = "{compose}"
range_threshold_bytes = "1MiB"
range_bytes = "512KiB"
[checkpoint]
arena_bytes = "40MiB"
part_bytes = "5MiB"
drain_s = 60
[retry]
base_ms = 5
cap_ms = 200
[http]
connect_timeout_ms = 2000
stall_timeout_ms = 1500
stall_min_ms = 500
"""

# What is flipped in an upload has to be found by the store.
S3_TOML = """[s3]
checksums = "always"
"""

# How a rank may end by itself: pattern of what it writes -> what has to have happened.
EXCUSES = {
    r"SupervisorGone|no millrace supervisor listens": "supervisor",
    r"DataLoader worker .*(exited unexpectedly|is killed by signal)": "reader",
    # What came was not what was asked for, and no part of it was handed out.
    r"the crc32c of its \d+ bytes is .* and should be|its bytes have crc32c": "flip",
    # The sessions of the development store end with it, and with them what an upload had sent.
    r"its unfinished upload was removed by another program": "store",
}


@dataclass
class Link:
    """A rank's connection to the meeting; whose it is, the first line says."""

    socket: socket.socket
    rank: Rank | None = None
    buffer: bytes = b""
    ended: bool = False

    def lines(self) -> list[dict[str, Any]]:
        """What has come, at least something or the end."""
        data = b""
        with contextlib.suppress(OSError):
            data = self.socket.recv(1 << 20)
        self.ended = not data
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass
class Rank:
    number: int
    process: forked.Process
    errors: Path
    link: Link | None = None
    report: dict[str, Any] | None = None  # of the step that it waits after
    done: bool = False


@dataclass
class Run:
    """The ranks from one start to their end."""

    at: Place
    world: int
    ranks: list[Rank]
    steps: list[tuple[list[list[int]], int]]
    saver: Rank
    step: int = 0
    last_move: float = field(default_factory=time.monotonic)


class Job:
    def __init__(self, scene: Scene, number: int, seed: int) -> None:
        self.scene, self.number, self.rng = scene, number, random.Random(seed)
        self.folder = scene.folder / f"job-{number}"
        self.folder.mkdir()
        self.prefix = f"{scene.checkpoints}/job-{number}/"
        self.meeting = self.folder / "meeting"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.meeting))
        self.listener.listen(16)
        self.environment = {
            "XDG_RUNTIME_DIR": str(scene.runtime),
            **scene.environment,
            JOB_VARIABLE: f"{scene.folder.name}-{number}",
        }
        self.supervisor: Supervisor | None = None
        self.supervisors = self.runs = self.saves = 0
        self.run: Run | None = None
        self.saved: dict[str, tuple[Save, Place]] = {}  # by sum
        self.under_way: dict[int, Save] = {}
        self.places: dict[int, Place] = {}
        self.begun = time.monotonic()
        self.doing = "nothing yet"
        self.left: list[int] = []  # ranks of the run before

    # ---- the thread ----

    def work(self) -> None:
        try:
            while not self.scene.done():
                self.train()
            self.last_checkpoint()
        except BaseException:
            self.scene.violate(f"job {self.number}: {traceback.format_exc()}")
        finally:
            self.end_supervisor()
            self.kill_left()
            self.kill_all()

    def train(self) -> None:
        """One training, with a seed of its own."""
        scene = self.scene
        training = Training(scene.digests, self.rng.randrange(1 << 40), self.rng.choice([3, 4, 5]), scene.epochs)
        scene.trainings.append(training)
        self.forget_saves()
        ended = False
        while not ended and not scene.done():
            ended = self.one_run(training)
        scene.counts["trainings to their end"] += ended

    # ---- one run ----

    def one_run(self, training: Training) -> bool:
        """Until all ranks have ended, or one of them; whether the training is over."""
        self.runs += 1
        self.begun = time.monotonic()
        self.doing = "starting a supervisor"
        self.need_supervisor()
        self.doing = "looking for a checkpoint"
        at, resume = self.last_checkpoint()
        training.resume(at)
        self.kill_left()
        run = self.run = self.start_ranks(training, at, resume)
        self.doing = f"run {self.runs} from {at}"
        try:
            self.meet(training, run)
        finally:
            self.end_ranks(run)
            self.run = None
        self.left = [rank.process.pid for rank in run.ranks]
        self.doing = "waiting for its saves"
        self.wait_for_saves()
        return all(rank.done for rank in run.ranks)

    def need_supervisor(self) -> None:
        if self.supervisor is not None and alive(self.supervisor.process.pid) and self.rng.random() < 0.6:
            return
        self.end_supervisor()
        folder = self.folder / f"supervisor-{self.supervisors}"
        folder.mkdir()
        self.supervisors += 1
        arena = self.rng.choice(["16MiB", "24MiB", "48MiB", "auto"])
        toml = TOML.format(compose=self.rng.choice(["always", "never"]), arena=arena)
        toml += S3_TOML if self.scene.store == "s3" else ""
        while self.supervisor is None:
            try:
                self.supervisor = start_supervisor(BIN / "millrace", folder, self.scene.url, toml, **self.environment)
            except AssertionError:
                self.scene.violate(f"job {self.number}: a supervisor did not start: {folder}")
                raise

    def end_supervisor(self) -> None:
        """With SIGTERM where it lives; nothing of it is left afterwards."""
        supervisor, self.supervisor = self.supervisor, None
        if supervisor is None:
            return
        status = supervisor.stop()
        self.scene.counts["supervisors ended by SIGTERM"] += status in (0, 1)
        if status not in (0, 1, -signal.SIGKILL):
            self.scene.violate(f"job {self.number}: supervisor ended with {status}: {supervisor.log}")
        text = supervisor.log.read_text(errors="replace")
        for sign in ("does not come to rest", "AddressSanitizer", "please report"):
            if sign in text:
                self.scene.violate(f"job {self.number}: {supervisor.log} has '{sign}'")

    def start_ranks(self, training: Training, at: Place, resume: str | None) -> Run:
        world = self.rng.choice([2, 2, 3])
        assert self.supervisor is not None
        ranks = []
        for number in range(world):
            options = {
                "meeting": str(self.meeting),
                "uri": f"{self.scene.store}://{self.scene.bucket}/train/",
                "seed": training.seed,
                "batch": training.batch,
                "workers": self.rng.choice([1, 1, 2]) if self.scene.workers is None else self.scene.workers,
                "epochs": training.epochs,
                "resume": resume,
            }
            environment = {
                **self.supervisor.environment,
                **self.environment,
                "RANK": str(number),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "OMP_NUM_THREADS": "1",
            }
            errors = self.folder / f"run-{self.runs}-rank-{number}.log"
            with errors.open("wb") as file, Path(os.devnull).open() as nothing:
                descriptors = (nothing.fileno(), file.fileno(), file.fileno())
                process = forked.start([RANK, json.dumps(options)], self.folder, environment, descriptors)
            ranks.append(Rank(number, process, errors))
        steps = training.steps(at, world) if training.digest else []
        return Run(at, world, ranks, steps, self.rng.choice(ranks))

    # ---- the meeting ----

    def meet(self, training: Training, run: Run) -> None:
        """Hears the ranks, and lets them go on when all have made a step. Until all are done, or one has ended."""
        with selectors.DefaultSelector() as events:
            events.register(self.listener, selectors.EVENT_READ)
            while not self.scene.done():
                for key, _ in events.select(0.2):
                    link: Link | None = key.data
                    if link is None:
                        connection, _ = self.listener.accept()
                        events.register(connection, selectors.EVENT_READ, Link(connection))
                        continue
                    run.last_move = time.monotonic()
                    for words in link.lines():
                        if "hello" in words:
                            # Nobody's: of a run before, killed before it was heard.
                            link.rank = next((r for r in run.ranks if r.process.pid == words["hello"]), None)
                            if link.rank is not None:
                                link.rank.link = link
                        elif link.rank is not None:
                            self.hear(training, run, link.rank, words)
                    if link.ended:
                        events.unregister(link.socket)
                        if link.rank is not None:
                            return
                        link.socket.close()  # of a run before
                if all(rank.report for rank in run.ranks):
                    self.go_on(training, run)
                if all(rank.done for rank in run.ranks):
                    return
                if any(rank.link is None and not alive(rank.process.pid) for rank in run.ranks):
                    return
                if time.monotonic() - run.last_move > STUCK_S:
                    seen = "\n".join([self.state(), *map(self.stack, run.ranks)])
                    self.scene.violate(f"job {self.number}: STUCK: {self.doing} step {run.step}: {seen}")
                    return

    def state(self) -> str:
        """For the message of a job that is stuck."""
        text = [f"supervisor {self.supervisor.process.pid}" if self.supervisor else "no supervisor"]
        for pid, line in our_processes().items():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
                text.append(f"{pid} {status} {line[:60]}")
        if self.supervisor:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                text.append(str(self.supervisor.stat())[:4000])
        return "\n".join(text)

    def stack(self, rank: Rank) -> str:
        """Where a rank is: it writes that down when it is asked."""
        status = Path(f"/proc/{rank.process.pid}/status")
        if not status.exists():
            return "it has gone"
        os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(1)
        return status.read_text()[:300] + rank.errors.read_text(errors="replace")

    def hear(self, training: Training, run: Run, rank: Rank, words: dict[str, Any]) -> None:
        """One line of a rank."""
        if "samples" in words:
            self.check(training, run, rank, words)
            rank.report = words
        elif "resumed" in words:
            known = self.saved.get(words["resumed"])
            if known is None or known[0].name != words["uri"]:
                self.scene.violate(f"job {self.number}: WRONG: {words['uri']} was read back as {words['resumed'][:16]}")
            self.scene.counts["checkpoints read back"] += 1
        elif "done" in words:
            rank.done = True
        else:
            self.hear_of_save(words)

    def hear_of_save(self, words: dict[str, Any]) -> None:
        scene = self.scene
        if "begin" in words:
            save = Save(words["uri"], words["sha256"], self.number, words["t"])
            scene.history.add(save)
            self.under_way[words["begin"]] = save
            place = Place(words["state"]["epoch"], words["state"]["cursor"])
            self.saved[save.sha] = save, place
            scene.counts["saves"] += 1
        elif "sealed" in words:
            self.under_way[words["sealed"]].sealed = True
            scene.counts["saves promised"] += 1
        elif "saved" in words:
            save = self.under_way.pop(words["saved"])
            save.over, save.must = words["t"], True
            scene.counts["saves confirmed"] += 1
        else:
            save = self.under_way.pop(words["failed"])
            scene.counts[f"saves failed: {words['kind']}"] += 1
            if words["at"] == "write":
                save.never, save.over = True, words["t"]
            elif words["kind"] != "SupervisorGone":
                save.sealed, save.over = False, words["t"]  # reported

    def check(self, training: Training, run: Run, rank: Rank, words: dict[str, Any]) -> None:
        state = words["state"]
        if not training.digest:
            training.digest = state["digest"]
            run.steps = training.steps(run.at, run.world)
        if state["digest"] != training.digest:
            self.scene.violate(f"job {self.number}: another listing: {state['digest']}, not {training.digest}")
            return
        epoch, step = state["epoch"], words["step"]
        if step == 0 and epoch != run.at.epoch:
            run.at, run.step = Place(epoch, 0), 0
            run.steps = training.steps(run.at, run.world)
            training.resume(run.at)
        if epoch != run.at.epoch or step != run.step or step >= len(run.steps):
            self.scene.violate(f"job {self.number}: rank {rank.number} is at {epoch}, {step}, not {run.at}, {run.step}")
            return
        shares, cursor = run.steps[step]
        wrong = training.check(epoch, shares[rank.number], words["samples"])
        if wrong is None and state["cursor"] != cursor:
            wrong = f"cursor {state['cursor']} after step {step} from {run.at}, not {cursor}"
        if wrong is not None:
            self.scene.violate(f"job {self.number}: WRONG: rank {rank.number}: {wrong}")
        self.scene.counts["samples"] += len(words["samples"])

    def go_on(self, training: Training, run: Run) -> None:
        """All have made this step."""
        shares, _ = run.steps[run.step]
        epoch, order = run.at.epoch, training.order(run.at.epoch)
        training.give(epoch, [order[p] for share in shares for p in share])
        run.step += 1
        self.scene.counts["steps"] += 1
        if run.step == len(run.steps):
            self.scene.counts["epochs"] += 1
            wrong = training.end_epoch(epoch, run.world)
            if wrong is not None:
                self.scene.violate(f"job {self.number}: {wrong}")
        saver, order_of_save = None, {}
        if run.step % SAVE_EVERY == 0:
            saver = run.saver  # the same one in a run: two saves of a name at a time would be nobody's promise
            k, self.saves = self.saves, self.saves + 1
            name = self.rng.choice(["state.pt", f"new-{k}.pt"])
            size = self.rng.randrange(1 << 17) if self.rng.random() < 0.7 else self.rng.randrange(12 << 20)
            uri = f"{self.prefix}{name}"
            order_of_save = {"save": k, "uri": uri, "size": size, "wait": self.rng.random() < 0.5}
        for rank in run.ranks:
            rank.report = None
            with contextlib.suppress(OSError):
                assert rank.link is not None
                rank.link.socket.sendall(json.dumps(order_of_save if rank is saver else {}).encode() + b"\n")

    # ---- the end of a run ----

    def end_ranks(self, run: Run) -> None:
        """Those that are left are killed, and what all have said is heard."""
        complete = all(rank.done for rank in run.ranks)
        if not complete:
            time.sleep(self.rng.choice([0, 0.02, 0.3]))
        for rank in run.ranks:
            if complete and rank.link is not None:
                with contextlib.suppress(OSError):
                    rank.link.socket.shutdown(socket.SHUT_WR)
            elif rank.link is None or not rank.link.ended:  # an ended one is on its way out with an exception
                rank.process.kill()
        for rank in run.ranks:
            try:
                status = rank.process.wait(STUCK_S)
            except TimeoutError:
                seen = self.stack(rank)
                self.scene.violate(f"job {self.number}: STUCK: rank {rank.process.pid} does not end: {seen}")
                rank.process.kill()
                status = rank.process.wait()
            self.hear_the_rest(rank)
            self.judge_end(rank, status)

    def hear_the_rest(self, rank: Rank) -> None:
        link = rank.link
        if link is None:
            return
        link.socket.settimeout(10)
        while not link.ended:
            for words in link.lines():
                if words.keys() & {"begin", "sealed", "saved", "failed"}:
                    self.hear_of_save(words)
        link.socket.close()

    def judge_end(self, rank: Rank, status: int) -> None:
        if status in (0, -signal.SIGKILL):
            return
        text = rank.errors.read_text(errors="replace")
        for pattern, cause in EXCUSES.items():
            if re.search(pattern, text) and self.scene.happened(cause, self.number, self.begun):
                self.scene.counts[f"ranks ended: {cause}"] += 1
                return
        self.scene.violate(f"job {self.number}: UNEXPECTED: rank {rank.number} ended with {status}: {text[-3000:]}")

    # ---- checkpoints ----

    def wait_for_saves(self) -> None:
        """Nothing of a save is under way. Then what was promised is there, or was reported."""
        deadline = time.monotonic() + STUCK_S
        while not self.scene.stopping() and not self.is_idle():
            if time.monotonic() > deadline:
                self.scene.violate(f"job {self.number}: STUCK: saves are not finished: {self.state()}")
                return
            time.sleep(0.05)
        if self.scene.stopping():
            return
        log = self.supervisor.log.read_text(errors="replace") if self.supervisor else ""
        for save in self.under_way.values():
            short = save.name.rsplit("/", 2)[1] + "/" + save.name.rsplit("/", 1)[1]
            if save.sealed and any(short in line and "error" in line for line in log.splitlines()):
                self.scene.counts["promises reported as failed"] += 1
                if not self.scene.happened("store", self.number, self.begun):
                    self.scene.violate(f"job {self.number}: {save} failed, and the store was never killed: see its log")
                save.sealed = False
        keeps = not self.scene.died_together(self.number, self.begun, TOGETHER_S)
        self.scene.history.settle(self.number, time.monotonic(), keeps)
        self.under_way.clear()

    def is_idle(self) -> bool:
        supervisor = self.supervisor
        if supervisor is not None and alive(supervisor.process.pid):
            with contextlib.suppress(subprocess.SubprocessError, OSError, ValueError):
                command = [str(BIN / "millrace"), "stat", "--json", "--socket", str(supervisor.socket)]
                shown = subprocess.run(command, capture_output=True, check=True, timeout=15)
                return not json.loads(shown.stdout)["checkpoint"]["writers"]
            return False
        return not self.processes()

    def last_checkpoint(self) -> tuple[Place, str | None]:
        """Every name is judged; the newest one is where the training goes on."""
        best, uri, remove = Place(), None, []
        names = [n for n in list(self.scene.history.saves) if n.startswith(self.prefix)]
        for name in names:
            seen = self.see(name)
            if seen is None:
                return best, uri  # the end
            self.scene.counts["looks at checkpoints"] += 1
            wrong = self.scene.history.wrong(seen)
            if wrong is not None:
                self.scene.violate(f"job {self.number}: {wrong}")
                continue
            if seen.sha == NOTHING:
                continue
            place = self.saved[seen.sha][1]
            if (place.epoch, place.cursor) >= (best.epoch, best.cursor):
                if uri is not None:
                    remove.append(uri)
                best, uri = place, name
            else:
                remove.append(name)
        self.remove([name for name in remove if "/new-" in name])
        return best, uri

    def see(self, name: str) -> Look | None:
        """Past the network, but the store itself may be gone for a moment."""
        while not self.scene.stopping():
            since = time.monotonic()
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self.scene.store_port}/{name.removeprefix(f'{self.scene.store}://')}"
                try:
                    with urllib.request.urlopen(url, timeout=10) as reply:
                        body = reply.read()
                        if len(body) == int(reply.headers["Content-Length"]):
                            return Look(name, hashlib.sha256(body).hexdigest(), since, time.monotonic())
                except urllib.error.HTTPError as error:
                    error.close()
                    if error.code == 404:
                        return Look(name, NOTHING, since, time.monotonic())
            time.sleep(0.05)
        return None

    def remove(self, names: list[str]) -> None:
        store = f"http://127.0.0.1:{self.scene.store_port}"
        for name in names:
            for _ in range(100):
                try:
                    delete(store, CHECKPOINTS, name.removeprefix(f"{self.scene.checkpoints}/"))
                    break
                except urllib.error.HTTPError as error:
                    error.close()
                    if error.code == 404:
                        break
                except OSError:
                    time.sleep(0.05)
        self.scene.history.forget(names)

    def forget_saves(self) -> None:
        """A new training begins with nothing."""
        names = [n for n in list(self.scene.history.saves) if n.startswith(self.prefix)]
        self.remove(names)
        self.saved.clear()

    # ---- processes ----

    def processes(self, role: str = "") -> list[int]:
        """The millrace programs of this job (or those of a role), however they were reparented."""
        marker = f"{JOB_VARIABLE}={self.environment[JOB_VARIABLE]}".encode()
        found = []
        for pid, line in our_processes().items():
            with contextlib.suppress(OSError):
                if (
                    (not role or f" {role} " in f"{line} ")
                    and marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    and alive(pid)
                ):
                    found.append(pid)
        return found

    def victims(self, role: str) -> list[int]:
        """Processes of a role, at this moment."""
        supervisor, run = self.supervisor, self.run
        if role == "supervisor":
            return [supervisor.process.pid] if supervisor and alive(supervisor.process.pid) else []
        if role in ("rank", "reader"):
            ranks = [rank.process.pid for rank in run.ranks] if run else []
            return ranks if role == "rank" else [pid for rank in ranks for pid in children(rank)]
        if supervisor is None:
            return []
        found = [pid for pid, words in children(supervisor.process.pid).items() if role in words[1:2]]
        if role == "write" and not alive(supervisor.process.pid):  # they outlive it for what was promised
            found = self.processes("write")
        return sorted(found)

    def kill_left(self) -> None:
        """A DataLoader worker whose rank was killed in its first instant stays for ever: torch asks who its parent is
        too late, and believes that it is process 1."""
        left, self.left = self.left, []
        for group in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
                self.scene.counts["ranks whose DataLoader workers were still there"] += 1

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
