"""Where a training loop stands: the epoch, and how many samples of it the loop has been given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._arguments import MAX_SEED, digest
from ._errors import Error
from ._ring import Index
from ._shuffle import MAX_BLOCK, MAX_MIX

if TYPE_CHECKING:
    from ._connection import Loop, Source

MAX_EPOCH = (1 << 63) - 1
LIMITS = {"seed": (0, MAX_SEED), "block": (1, MAX_BLOCK), "mix": (1, MAX_MIX)}


class Progress:
    """Lives in the process that runs the loop, and nowhere else.

    `begin` is a new iteration, `give` a batch that the loop gets, `finish` the end of the epoch. An iteration that was
    left after its first batch is over: the next one begins the next epoch.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.cursor = 0
        self.steps = 0  # batches of this epoch that the loop was given, here and before a resume
        self.blocks: tuple[int, int] | None = None  # (objects of a block, blocks of a mix) of a loaded state
        self.before = 0  # where the last batch began
        self.serial = 0  # counts iterations: only the last one may continue
        self.is_chosen = True  # the program chose the next place, which the ranks have not compared yet
        self._begun = False
        self._is_put = False  # by set_epoch or load, since the last iteration

    def next(self) -> tuple[int, int]:
        """Epoch and cursor of the iteration that would begin now."""
        return (self.epoch + 1, 0) if self._begun else (self.epoch, self.cursor)

    def begin(self) -> int:
        self._is_put = False
        if self._begun:
            self.finish()
        if self.cursor == 0:
            self.steps = 0
        self.serial += 1
        return self.serial

    def check(self, serial: int) -> None:
        if serial != self.serial:
            raise RuntimeError(
                "this iteration is over: a new one of the same loader has begun, or set_epoch or load_state_dict has "
                "chosen another place"
            )

    def give(self, cursor: int) -> None:
        self.before, self.cursor = self.cursor, cursor
        self.steps += 1
        self._begun = True

    def take_back(self, before: tuple[int, int, int, bool]) -> None:
        """A batch that the loop did not get after all. before: `place()` as it was before give()."""
        if before[0] == self.serial:
            _, self.cursor, self.steps, self._begun = before

    def place(self) -> tuple[int, int, int, bool]:
        return self.serial, self.cursor, self.steps, self._begun

    def finish(self) -> None:
        self.epoch += 1
        self.cursor = self.steps = 0
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Chooses the next iteration. A loaded position in that very epoch is kept."""
        if epoch != self.epoch or self._begun:
            self.cursor = self.steps = 0
        self.epoch = epoch
        self._begun = False
        self._is_put = True
        self.serial += 1

    def begin_at(self, other: Progress) -> None:
        """Of a new loader: where its data set was put, if it was not iterated since."""
        if other._is_put:
            self.epoch, self.cursor, self.blocks = other.epoch, other.cursor, other.blocks

    def follow(self, loop: Loop) -> None:
        """Stands where the loop's process does."""
        self.epoch, self.cursor, self.seed = loop.epoch, loop.cursor, loop.seed
        self.blocks = (loop.block, loop.mix) if loop.block else None

    def state(self, digest: str, blocks: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """blocks: the data set's own, or (0, 0) where it is not shuffled in blocks."""
        state = {"digest": digest, "seed": self.seed, "epoch": self.epoch, "cursor": self.cursor}
        block, mix = self.blocks or blocks
        return {**state, "block": block, "mix": mix} if block else state

    def load(self, state: dict[str, Any], source: Source, in_blocks: bool = False) -> None:
        seed, epoch, cursor = (number(state, key) for key in ("seed", "epoch", "cursor"))
        if "world" in state:
            raise ValueError(
                "the state is of a loader with a sampler, whose cursor counts batches: load it into one with that "
                "sampler"
            )
        blocks = blocks_of(state)
        if cursor > 0 and in_blocks != (blocks is not None):
            with_blocks, without = ("data set", "state") if in_blocks else ("state", "data set")
            raise ValueError(
                f"the {with_blocks} has shuffle='block' and the {without} has not: the rest of an epoch needs the "
                "shuffle that it was begun with"
            )
        index = listing_of(state, source)
        if cursor > len(index):
            raise ValueError(f"the state's cursor is {cursor}, the data set has {len(index)} objects")
        self.seed, self.epoch, self.cursor = seed, epoch, cursor
        self.blocks = blocks if in_blocks else None
        self._begun = False
        self._is_put = True
        self.serial += 1
        self.is_chosen = True


def number(state: dict[str, Any], key: str) -> int:
    if not isinstance(state, dict):
        raise TypeError(f"a state is a dict, not {type(state).__name__}")
    if key not in state:
        raise ValueError(f"the state has no {key!r}: it is not one of this kind of loader")
    value = state[key]
    least, limit = LIMITS.get(key, (0, MAX_EPOCH))
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
        raise ValueError(f"the state's {key!r} is {value!r}, it must be an integer from {least} to {limit}")
    return value


def check_shuffle(state: dict[str, Any], on: bool) -> None:
    """ValueError for the rest of an epoch in another order than it was begun in. Older states do not say theirs."""
    was = state.get("shuffle", on) if isinstance(state, dict) else on
    if not isinstance(was, bool):
        raise ValueError(f"the state's 'shuffle' is {was!r}, it must be True or False")
    if was != on and number(state, "cursor") > 0:
        raise ValueError(
            f"the state is of an epoch with shuffle={was}, and shuffle={on} here: the rest of an epoch needs the "
            "shuffle that it was begun with"
        )


def blocks_of(state: dict[str, Any]) -> tuple[int, int] | None:
    """Of a state with shuffle="block"; None of any other, and of those of versions that had no blocks."""
    if "block" not in state and "mix" not in state:
        return None
    return number(state, "block"), number(state, "mix")


def digest_of(state: dict[str, Any]) -> str:
    return digest("the state's 'digest'", state.get("digest"))


def listing_of(state: dict[str, Any], source: Source) -> Index:
    """The listing that the state was saved over, which the source reads from now on."""
    saved = digest_of(state)
    source.use_listing(saved)
    index = source.index()
    if index.digest != saved:
        raise Error(f"the supervisor has opened the listing {index.digest[:16]}... for the state's {saved[:16]}...")
    return index
