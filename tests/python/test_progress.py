"""Where a loop stands (`_progress.py`), by itself: no supervisor, no torch."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millrace._arguments import MAX_SEED
from millrace._connection import Source
from millrace._errors import Error
from millrace._progress import MAX_EPOCH, Progress, listing_of, number

DIGEST = "0123456789abcdef" * 4


class Listing:
    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __len__(self) -> int:
        return 10


class Opened:
    """A source that opens `digest`, whatever it is asked for."""

    def __init__(self, digest: str = DIGEST) -> None:
        self.digest = digest
        self.asked: list[str] = []

    def use_listing(self, digest: str) -> None:
        self.asked.append(digest)

    def index(self) -> Listing:
        return Listing(self.digest)


def source(digest: str = DIGEST) -> Source:
    return cast(Source, Opened(digest))


def state(**changed: Any) -> dict[str, Any]:
    return {"digest": DIGEST, "seed": 7, "epoch": 2, "cursor": 4} | changed


def test_a_new_loop() -> None:
    progress = Progress(7)
    assert progress.state(DIGEST) == {"digest": DIGEST, "seed": 7, "epoch": 0, "cursor": 0}
    assert progress.begin() == 1
    progress.check(1)
    progress.give(3)
    assert (progress.epoch, progress.cursor) == (0, 3)
    progress.finish()
    assert (progress.epoch, progress.cursor) == (1, 0)


def test_an_iteration_that_was_left_is_over() -> None:
    progress = Progress(0)
    assert progress.begin() == 1
    assert progress.begin() == 2  # nothing of the first one was given: the same epoch
    assert progress.epoch == 0
    progress.give(3)
    assert progress.begin() == 3
    assert (progress.epoch, progress.cursor) == (1, 0)
    assert progress.begin() == 4
    assert progress.epoch == 1
    for serial in (3, 5):
        with pytest.raises(RuntimeError, match="is over"):
            progress.check(serial)


def test_set_epoch_keeps_a_loaded_position() -> None:
    progress = Progress(0)
    progress.load(state(), source())
    progress.set_epoch(2)
    assert (progress.epoch, progress.cursor, progress.serial) == (2, 4, 2)
    progress.set_epoch(3)
    assert (progress.epoch, progress.cursor, progress.serial) == (3, 0, 3)
    progress.load(state(), source())
    progress.set_epoch(1)  # back
    assert (progress.epoch, progress.cursor, progress.serial) == (1, 0, 5)
    progress.set_epoch(3)
    progress.give(5)
    progress.set_epoch(3)  # begun: it begins again
    assert (progress.epoch, progress.cursor) == (3, 0)
    assert progress.begin() == 8
    assert progress.epoch == 3


def test_load() -> None:
    progress = Progress(0)
    progress.give(1)
    opened = Opened()
    progress.load(state(cursor=10), cast(Source, opened))
    assert (progress.seed, progress.epoch, progress.cursor, progress.serial) == (7, 2, 10, 1)
    assert opened.asked == [DIGEST]
    progress.begin()
    assert progress.epoch == 2  # what was given before does not count
    with pytest.raises(ValueError, match="cursor is 11, the data set has 10 objects"):
        progress.load(state(cursor=11), source())


def test_blocks_of_a_state() -> None:
    progress = Progress(7)
    assert progress.state(DIGEST, (4, 2)) == {
        "digest": DIGEST,
        "seed": 7,
        "epoch": 0,
        "cursor": 0,
        "block": 4,
        "mix": 2,
    }
    progress.load(state(block=8, mix=3), source(), in_blocks=True)
    assert progress.state(DIGEST, (4, 2)) == state(block=8, mix=3)
    for in_blocks, change in ((True, {}), (False, {"block": 8, "mix": 3})):
        with pytest.raises(ValueError, match="needs the shuffle that it was begun with"):
            progress.load(state(**change), source(), in_blocks)
        assert progress.state(DIGEST)["block"] == 8
        progress.load(state(cursor=0, **change), source(), in_blocks)  # of this epoch nothing was given
        assert "block" not in progress.state(DIGEST)
        progress.load(state(block=8, mix=3), source(), in_blocks=True)


@pytest.mark.parametrize("key", ["seed", "epoch", "cursor"])
def test_numbers_of_a_state(key: str) -> None:
    limit = MAX_SEED if key == "seed" else MAX_EPOCH
    assert MAX_EPOCH == 2**63 - 1
    assert [number(state(**{key: value}), key) for value in (0, 1, limit)] == [0, 1, limit]
    for value in (-1, limit + 1, True, False, 1.0, "1", None):
        with pytest.raises(ValueError, match=f"{key}.*integer from 0 to {limit}"):
            number(state(**{key: value}), key)
    with pytest.raises(ValueError, match=f"no '{key}'"):
        number({}, key)
    with pytest.raises(TypeError, match="not list"):
        number(cast("dict[str, Any]", []), key)


def test_the_listing_of_a_state() -> None:
    assert listing_of(state(), source()).digest == DIGEST
    for digest in (None, 7, "", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"):
        with pytest.raises(ValueError, match="must be 64 hex digits"):
            listing_of({"digest": digest}, source())
    with pytest.raises(ValueError, match="must be 64 hex digits"):
        listing_of({}, source())
    for other in "f", "0":
        with pytest.raises(
            Error, match=rf"has opened the listing {other}{{16}}\.\.\. for the state's 0123456789abcdef\.\.\."
        ):
            listing_of(state(), source(other * 64))
