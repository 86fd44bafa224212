"""What all jobs of a chaos share, and who is struck: every role, the supervisors, the store and the network."""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.plan import BUCKET, Training, make_objects
from tests.conftest import ROOT, Server, free_port, start_devstore
from tests.e2e.kill_history import History
from tests.stores import s3_environment

if TYPE_CHECKING:
    from tests.chaos.job import Job

CHECKPOINTS = "ckpt"  # their bucket
GRACE_S = 20  # what was struck so long before a run may still show in it

# Role -> how often it is killed, and stopped, in relation to the others.
KILLS = {"fetch": 50, "list": 12, "write": 40, "reader": 4, "rank": 4, "supervisor": 4, "store": 3, "network": 2}
STOPS = {"fetch": 16, "list": 8, "write": 12, "reader": 10, "rank": 8, "supervisor": 6, "store": 3, "network": 3}
OTHERS = {"slow": 10, "starve": 6, "weather": 14}
STORES = ("gs", "s3")
LATENCY_MS = ["1", "list:40", "part:5", "complete:5", "compose:5"]


@dataclass
class Scene:
    """What the jobs know of each other, and of what has been done to them."""

    folder: Path
    deaths_wanted: int
    until: float
    epochs: int
    workers: int | None
    digests: dict[str, str] = field(default_factory=dict)
    bucket: str = BUCKET
    store: str = STORES[0]  # and the scheme of its URIs
    store_port: int = 0
    wire_port: int = 0
    runtime: Path = Path()
    history: History = field(default_factory=History)
    trainings: list[Training] = field(default_factory=list)
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    stops: collections.Counter[str] = field(default_factory=collections.Counter)
    others: collections.Counter[str] = field(default_factory=collections.Counter)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    strikes: list[tuple[float, str, int]] = field(default_factory=list)  # when, what, of which job (-1: of all)
    peace: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.wire_port}"

    @property
    def checkpoints(self) -> str:
        return f"{self.store}://{CHECKPOINTS}"

    @property
    def environment(self) -> dict[str, str]:
        """With which millrace finds the store, past the network's weather."""
        return {"STORAGE_EMULATOR_HOST": self.url, **s3_environment(self.url)}

    @property
    def deaths(self) -> int:
        return sum(self.kills.values()) + sum(self.stops.values())

    def done(self) -> bool:
        """No further run."""
        if self.peace:
            return bool(self.wrong)
        return bool(self.wrong) or self.deaths >= self.deaths_wanted or time.monotonic() >= self.until

    def stopping(self) -> bool:
        return bool(self.wrong)

    def violate(self, text: str) -> None:
        with self.lock:
            self.wrong.append(text)
        print(f"VIOLATION after {self.deaths} deaths and stops: {text}", flush=True)

    def struck(self, what: str, job: int) -> None:
        self.strikes.append((time.monotonic(), what, job))

    def happened(self, what: str, job: int, since: float) -> bool:
        return any(w == what and j in (job, -1) and t > since - GRACE_S for t, w, j in self.strikes)

    def died_together(self, job: int, since: float, within: float) -> bool:
        """The supervisor, and a write worker that nobody could start again: documented to lose what was promised."""
        mine = [(t, w) for t, w, j in self.strikes if j == job and t > since - GRACE_S]
        ends = [t for t, w in mine if w == "supervisor"]
        return any(w == "write" and t > end - within for end in ends for t, w in mine)


class Monkey:
    """Strikes, in the main thread. What is done with a limit is undone by a heap of times."""

    def __init__(self, scene: Scene, seed: int, strikes_s: float, minutes_long: bool) -> None:
        self.scene, self.rng = scene, random.Random(seed)
        self.pause_s, self.minutes_long = 1 / strikes_s, minutes_long
        self.undo: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.jobs: list[Job] = []
        scene.store_port, scene.wire_port = free_port(), free_port()
        root = scene.folder / "store"
        (root / CHECKPOINTS).mkdir(parents=True)
        self.root = root
        self.store: Server | None = None
        self.wire: subprocess.Popen[bytes] | None = None

    # ---- the store and the network ----

    def start_store(self) -> None:
        latency = [word for ms in LATENCY_MS for word in ("--latency-ms", ms)]
        address = f"127.0.0.1:{self.scene.store_port}"
        self.store = start_devstore("--root", self.root, "--no-md5", "--page-size", "40", "--listen", address, *latency)

    def start_wire(self) -> None:
        words = [str(self.scene.wire_port), str(self.scene.store_port), str(self.rng.randrange(1 << 30))]
        self.wire = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.wire", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.scene.folder / "wire.log").open("ab"),
        )
        assert self.wire.stdout is not None
        assert self.wire.stdout.readline() == b"listening\n", (self.scene.folder / "wire.log").read_text()
        os.set_blocking(self.wire.stdout.fileno(), False)
        self.said: dict[str, int] = {}

    def weather(self, **words: object) -> None:
        assert self.wire is not None and self.wire.stdin is not None
        with contextlib.suppress(OSError):
            self.wire.stdin.write(json.dumps(words).encode() + b"\n")
            self.wire.stdin.flush()
        self.count_exchanges()

    def count_exchanges(self) -> None:
        """What the network has done by its own account, which it gives with each change of the weather."""
        assert self.wire is not None and self.wire.stdout is not None
        with contextlib.suppress(OSError, IndexError):
            said = json.loads((os.read(self.wire.stdout.fileno(), 1 << 16)).splitlines()[-1])
            for what, count in said.items():
                self.scene.counts[f"network: {what}"] += count - self.said.get(what, 0)
            self.said = said

    def begin(self, objects: int, seed: int) -> None:
        self.scene.digests = make_objects(self.root, objects, seed)
        self.start_store()
        self.start_wire()

    def end(self) -> None:
        """In peace: everything goes on."""
        while self.undo:
            heapq.heappop(self.undo)[2]()
        self.weather()

    def close(self) -> None:
        if self.wire is not None:
            self.wire.kill()
            self.wire.wait()
        if self.store is not None:
            self.store.stop()

    # ---- strikes ----

    def live(self, jobs: list[Job]) -> None:
        """Until the scene is done. The first strike comes when something has been seen."""
        self.jobs = jobs
        while not self.scene.counts["samples"] and not self.scene.done():
            time.sleep(0.05)
        said = begun = time.monotonic()
        strike = begun + 0.2
        while not self.scene.done():
            now = time.monotonic()
            while self.undo and self.undo[0][0] <= now:
                heapq.heappop(self.undo)[2]()
            if now >= strike:
                self.strike()
                strike = max(strike, now - 1) + self.rng.expovariate(1 / self.pause_s)
            if now - said > 30:
                said = now
                print(f"{now - begun:.0f} s: {summary(self.scene)}", flush=True)
            ahead = [strike - now, 0.1] + [t - now for t, _, _ in self.undo[:1]]
            time.sleep(max(0.002, min(ahead)))
        self.end()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.undo, (time.monotonic() + seconds, next(self.numbers), what))

    def strike(self) -> None:
        for _ in range(8):
            choices = [("kill", r) for r in KILLS] + [("stop", r) for r in STOPS] + [(o, "") for o in OTHERS]
            weights = [*KILLS.values(), *STOPS.values(), *OTHERS.values()]
            what, role = self.rng.choices(choices, weights)[0]
            if what == "weather":
                self.change_weather()
                return
            if what in ("slow", "starve"):
                role = self.rng.choice(["fetch", "write", "list", "rank", "reader", "supervisor"])
            victim = self.choose(role)
            if victim is not None and self.hit(what, role, *victim):
                return

    def choose(self, role: str) -> tuple[int, int] | None:
        """A process of that role, and its job."""
        if role == "store":
            return (self.store.process.pid, -1) if self.store else None
        if role == "network":
            return (self.wire.pid, -1) if self.wire else None
        for job in self.rng.sample(self.jobs, len(self.jobs)):
            pids = job.victims(role)
            if pids:
                return self.rng.choice(pids), job.number
        return None

    def hit(self, what: str, role: str, pid: int, job: int) -> bool:
        try:
            if what == "kill":
                self.scene.struck("supervisor" if role == "supervisor" else role, job)
                os.kill(pid, signal.SIGKILL)
                self.scene.kills[role] += 1
                self.restart(role)
            elif what == "stop":
                os.kill(pid, signal.SIGSTOP)
                self.scene.stops[role] += 1
                seconds = self.rng.choice([0.02, 0.1, 0.3, 1.0])
                if role == "supervisor" and self.minutes_long and self.rng.random() < 0.1:
                    seconds = 11.0  # clients give up after 10
                    self.scene.struck("supervisor", job)
                self.later(seconds, lambda: self.signal(pid, signal.SIGCONT))
            elif what == "slow":
                self.scene.others[f"slowed: {role}"] += 1
                os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
                self.later(self.rng.uniform(0.2, 3), lambda: self.schedule(pid))
            else:
                self.starve(role, pid)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def starve(self, role: str, pid: int) -> None:
        """No further descriptor, for a worker; the least CPU for anybody else."""
        self.scene.others[f"starved: {role}"] += 1
        if role not in ("fetch", "write"):
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            return
        old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (self.rng.randrange(8, 30), old[1]))

        def feed() -> None:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, old)

        self.later(self.rng.uniform(0.1, 1), feed)

    def signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def schedule(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))

    def restart(self, role: str) -> None:
        seconds = self.rng.choice([0, 0.05, 0.5])
        if role == "store" and self.store is not None:
            store, self.store = self.store, None
            store.stop()
            self.later(seconds, self.start_store)
        elif role == "network" and self.wire is not None:
            wire, self.wire = self.wire, None
            wire.wait()
            assert wire.stdin is not None and wire.stdout is not None
            wire.stdin.close()
            wire.stdout.close()
            self.later(seconds, self.start_wire)

    def change_weather(self) -> None:
        if self.wire is None:
            return
        kind = self.rng.choice(["flip", "cut", "stall", "slow", "refuse", "reset"])
        every: dict[str, dict[str, object]] = {
            "flip": {"flip": 0.05},
            "cut": {"cut": 0.2},
            "stall": {"stall": 0.05},
            "slow": {"kib_s": self.rng.choice([200, 2000])},
            "refuse": {"refuse": True},
            "reset": {"reset": True},
        }
        self.scene.others[f"network: {kind}"] += 1
        if kind == "flip":
            self.scene.struck("flip", -1)
        self.weather(**every[kind])
        self.later(self.rng.uniform(0.1, 1.5), lambda: self.clear() if self.wire else None)

    def clear(self) -> None:
        self.weather()


def summary(scene: Scene) -> str:
    return (
        f"{sum(scene.kills.values())} deaths, {sum(scene.stops.values())} stops, "
        f"{sum(scene.others.values())} other strikes; "
        f"{scene.counts['samples']} samples, {scene.counts['epochs']} epochs, {scene.counts['saves']} saves"
    )
