"""What was saved under each name, by whom and when, and what may be found there: for checkpoint_kills.py and chaos/.

A name is a register that several processes write. Each save takes effect at one moment between its beginning and the
time from which it can have no effect any more, or never. What is found must be what one save wrote, whole, and not
older than another one that had to take effect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

EVER = float("inf")
NOTHING = "-"  # in place of a sum: no object


@dataclass
class Save:
    name: str
    sha: str
    job: int
    begin: float
    over: float = EVER  # it has no effect after this
    sealed: bool = False
    must: bool = False  # confirmed, or promised and nothing stood in its way: it took effect before `over`
    never: bool = False  # it failed before its end: it may not be found at all


@dataclass
class Look:
    """What was found under a name, at some time between two."""

    name: str
    sha: str
    since: float
    until: float


@dataclass
class History:
    saves: dict[str, list[Save]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, save: Save) -> None:
        with self.lock:
            first = Save(save.name, NOTHING, -1, -EVER, -EVER, must=True)
            self.saves.setdefault(save.name, [first]).append(save)

    def settle(self, job: int, now: float, keeps_promises: bool) -> None:
        """Nothing of the job is under way. What it promised has taken effect, unless another's save could stop it."""
        with self.lock:
            for saves in self.saves.values():
                ended = [save for save in saves if save.job == job and save.over == EVER]
                for save in ended:
                    save.over = now
                for save in ended:
                    alone = not any(o is not save and o.begin < save.over and o.over > save.begin for o in saves)
                    save.must = save.must or (save.sealed and keeps_promises and alone)

    def wrong(self, look: Look) -> str | None:
        """Why this cannot be, or None. Certain once all that began before look.until is noted."""
        with self.lock:
            saves = self.saves.get(look.name, [])
            found = [save for save in saves if save.sha == look.sha and save.begin < look.until and not save.never]
            if not found:
                return f"{look.name}: HALF or foreign: {look.sha[:16]} is there, which no save wrote"
            over = max(save.over for save in found)
            later = [s for s in saves if s.must and s.over <= look.since and s.begin > over]
            if later:
                lost = later[-1]
                return (
                    f"{look.name}: LOST: {look.sha[:16]} of {over:.3f} is there, but {lost.sha[:16]} of job {lost.job} "
                    f"from {lost.begin:.3f} had to be at {lost.over:.3f} ({'promised' if lost.sealed else 'confirmed'})"
                )
            return None

    def forget(self, names: Iterable[str]) -> None:
        """They were looked at and removed."""
        with self.lock:
            for name in names:
                self.saves.pop(name, None)
