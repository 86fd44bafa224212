"""What the ranks of a job must see: the objects, and the order of each epoch by the model in tests/property."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.property.order_model import deal, epoch_order

BUCKET = "data"
SMALL, LARGE, LARGEST = 60_000, 400_000, 3 << 20  # LARGEST: several ranges


def make_objects(root: Path, count: int, seed: int) -> dict[str, str]:
    """Files below root/BUCKET; name -> sha256. A few are empty, a few large; no two are alike."""
    rng = random.Random(seed)
    digests = {}
    for i in range(count):
        size = 0 if i % 97 == 5 else LARGEST + i if i % 101 == 7 else rng.randrange(LARGE) if i % 10 == 0 else 0
        size = size or (0 if i % 97 == 5 else int(math.exp(rng.uniform(0, math.log(SMALL)))))
        name = f"train/{'äö'[i % 2] if i % 7 == 0 else 'x'}{rng.randrange(100):02}/{i:05}"
        data = rng.randbytes(size)
        digests[name] = hashlib.sha256(data).hexdigest()
        file = root / BUCKET / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return digests


@dataclass
class Place:
    """Epoch and cursor: how much of a training the loop has been given."""

    epoch: int = 0
    cursor: int = 0


@dataclass
class Training:
    """One training from its first epoch to its last, over any number of runs; what it was given is compared."""

    digests: dict[str, str]
    seed: int
    batch: int
    epochs: int
    digest: str = ""  # of the listing, as the first rank says it: all must say the same
    given: list[list[str]] = field(default_factory=list)  # by epoch
    lost: int = 0
    repeated: int = 0
    wrong: int = 0

    def __post_init__(self) -> None:
        self.names = sorted(self.digests, key=lambda name: name.encode())
        self._orders: dict[int, list[str]] = {}

    def order(self, epoch: int) -> list[str]:
        if epoch not in self._orders:
            turn = epoch_order(len(self.names), self.seed, epoch, bytes.fromhex(self.digest))
            self._orders = {epoch: [self.names[turn(i)] for i in range(len(self.names))]}
        return self._orders[epoch]

    def resume(self, at: Place) -> None:
        del self.given[at.epoch + 1 :]
        while len(self.given) <= at.epoch:
            self.given.append([])
        del self.given[at.epoch][at.cursor :]

    def steps(self, at: Place, world: int) -> list[tuple[list[list[int]], int]]:
        return deal(len(self.names), world, self.batch, at.cursor)

    def check(self, epoch: int, positions: list[int], samples: list[list[str]]) -> str | None:
        """What a rank was given in a step, with the plan."""
        order = self.order(epoch)
        wanted = [[order[p], self.digests[order[p]]] for p in positions]
        if samples == wanted:
            return None
        self.wrong += 1
        return f"seed {self.seed} epoch {epoch}: positions {positions} are {samples}, and have to be {wanted}"

    def give(self, epoch: int, names: list[str]) -> None:
        """All ranks have this step."""
        self.given[epoch].extend(names)

    def end_epoch(self, epoch: int, world: int) -> str | None:
        """Each sample once; but for fewer than `world` at the end, which a short tail leaves out."""
        order, given = self.order(epoch), self.given[epoch]
        repeated = len(given) - len(set(given))
        lost = len(set(order) - set(given))
        if lost < world and given == order[: len(given)]:
            lost = 0
        self.lost += lost
        self.repeated += repeated
        if lost or repeated or given != order[: len(given)]:
            return f"seed {self.seed} epoch {epoch}: {lost} lost, {repeated} repeated, or in another order"
        return None
