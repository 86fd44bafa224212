"""What an iteration has measured, told when it ends: to the log, to a file, to the other ranks, and to the next one."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any, Callable

from . import _agree
from ._timing import LoopMeter

log = logging.getLogger("millrace")
GATHER_S = 1.0  # that the first rank waits for what the others measured, once an epoch
BEFORE = ("epoch", "workers", "batches", "step_s", "wait_s", "wait_share", "stage", "cause", "verdict")

_last: dict[str, dict[str, Any]] = {}  # data set -> what its last iteration in this process measured
_loaders: dict[tuple[int, str], int] = {}  # (pid, data set) -> loaders that this process has iterated


class Epochs:
    """Of one loader. name: its data set's, once that is listed."""

    def __init__(self, meter: LoopMeter, name: Callable[[], str]) -> None:
        self._meter, self._named = meter, name
        self._name = self._key = ""
        self._waits = True  # for what the other ranks say
        self._rank = self._world = 0
        self._noted = True  # the present iteration was
        self._iteration = 0  # which one that is
        self.before: dict[str, Any] | None = None  # of the iteration before, of the same data set
        self.slowest: dict[str, Any] | None = None  # on the first rank, after an epoch of several

    def begin(self, epoch: int, rank: int, world: int) -> int:
        """An iteration begins: its number, for leave()."""
        self._note()
        if not self._name:
            self._name = self._named()
            nth = _loaders[os.getpid(), self._name] = _loaders.get((os.getpid(), self._name), 0) + 1
            self._key = hashlib.sha256(f"{self._name}\0{nth}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._rank, self._world, self.slowest = rank, world, None
        self._meter.begin(epoch, rank, world)
        found = _last.get(self._name) or self._from_file()
        self.before = {key: found[key] for key in BEFORE} if found is not None and found.keys() >= set(BEFORE) else None
        self._noted = False
        self._iteration += 1
        return self._iteration

    def leave(self, iteration: int) -> None:
        """That iteration was dropped, finished or not."""
        if iteration == self._iteration:
            self._note()

    def end(self) -> None:
        """An iteration has come to its end."""
        found = self._note()
        if found is None:
            return
        line = found["verdict"] + _compared(found, self.before)
        log.info("epoch %d: %s", found["epoch"], line)
        self.slowest = self._compare(found)
        self._write(found)

    def _note(self) -> dict[str, Any] | None:
        """What was measured since begin(); None: nothing, or it was noted already."""
        if self._noted:
            return None
        self._noted = True
        found = self._meter.report()
        if found["batches"] == 0:
            return None
        _last[self._name] = found
        return found

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self._note()
        except Exception:
            pass

    # ---- the file ----

    def _write(self, found: dict[str, Any]) -> None:
        path = self._meter.epochs
        if not path:
            return
        row = {
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "rank": self._rank,
            "world": self._world,
            "dataset": self._name,
            **found,
            **({"slowest": self.slowest} if self.slowest else {}),
        }
        text = json.dumps(row) + "\n"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            try:
                os.write(descriptor, text.encode("utf-8", "surrogateescape"))  # one call: lines of ranks do not mix
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("log.epochs: cannot write to %s: %s", path, error.strerror or error)
            self._meter.epochs = ""  # once is enough

    def _from_file(self) -> dict[str, Any] | None:
        """The last row of this data set and rank: of an earlier run."""
        path, found = self._meter.epochs, None
        if not path or not Path(path).is_file():
            return None
        with contextlib.suppress(OSError), Path(path).open(encoding="utf-8", errors="surrogateescape") as file:
            for text in file:
                with contextlib.suppress(ValueError):
                    row = json.loads(text)
                    if isinstance(row, dict) and (row.get("dataset"), row.get("rank")) == (self._name, self._rank):
                        found = row
        return found

    # ---- the other ranks ----

    def _compare(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Through torch.distributed's store: no rank waits but the first, and that not for long."""
        store = _agree.store() if self._world > 1 else None
        if store is None:
            return None
        mine = {key: found[key] for key in ("epoch", "step_s", "wait_s", "wait_share", "stage", "cause", "verdict")}
        mine |= {"rank": self._rank, "host": socket.gethostname()}
        prefix = f"epoch/{self._key}"  # each rank rewrites its own: the store does not grow
        try:
            store.set(f"{prefix}/{self._rank}", json.dumps(mine))
            if self._rank != 0:
                return None
            keys = [f"{prefix}/{rank}" for rank in range(1, self._world)]
            rows = [mine, *_gather(store, keys, found["epoch"], GATHER_S if self._waits else 0)]
        except (RuntimeError, OSError, ValueError) as error:  # the store has ended, and so does the job
            log.debug("the ranks' epochs are not compared: %s", error)
            return None
        self._waits = len(rows) == self._world  # ranks that do not go in step are not waited for again
        text, slowest = _slowest(rows, self._world)
        log.info("epoch %d: %s", found["epoch"], text)
        return slowest


def _gather(store: Any, keys: list[str], epoch: int, wait_s: float) -> list[dict[str, Any]]:
    """What the ranks have said of this epoch, or say within wait_s."""
    until, rows = time.monotonic() + wait_s, {}
    while True:
        for key in keys:
            if key not in rows and store.check([key]):
                row = json.loads(store.get(key))
                if row["epoch"] == epoch:
                    rows[key] = row
        if len(rows) == len(keys) or time.monotonic() >= until:
            return list(rows.values())
        time.sleep(0.01)


def _slowest(rows: list[dict[str, Any]], world: int) -> tuple[str, dict[str, Any]]:
    """The rank that waits for its batches most: where the ranks go in step, the others wait for it in their step."""
    slowest = max(rows, key=lambda row: row["wait_share"])
    others = [row["wait_share"] for row in rows if row is not slowest]
    missing = f"; {world - len(rows)} have not said" if len(rows) < world else ""
    if slowest["stage"] is None:
        return f"{len(rows)} ranks, none waits{missing}", slowest
    text = (
        f"the slowest of {len(rows)} ranks is rank {slowest['rank']} on {slowest['host']}, for its {slowest['stage']} "
        f"({slowest['cause'] or 'no cause is known'}): it waited {slowest['wait_share']:.0%} of the time"
    )
    if others:
        text += f", the others {statistics.median(others):.0%}"
    return f"{text}{missing}; {slowest['verdict'].rsplit('; ', 1)[-1]}", slowest


def _compared(found: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Behind the line, where the number of workers has changed: whether that helped."""
    if before is None or before["workers"] == found["workers"]:
        return ""
    return (
        f"; with num_workers={before['workers']} a step took {before['step_s'] * 1e3:.3g} ms and waited "
        f"{before['wait_share']:.0%}"
    )
