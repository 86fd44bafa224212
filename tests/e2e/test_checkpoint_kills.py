"""A sample of checkpoint_kills.py, and what its judge of what is found would say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.checkpoint_kills import STORES, kill_runs
from tests.e2e.kill_history import NOTHING, History, Look, Save


@pytest.mark.nightly
@pytest.mark.random
@pytest.mark.parametrize("store", STORES)
def test_kills_leave_whole_checkpoints_or_none(tmp_path: Path, store: str) -> None:
    scene = kill_runs(tmp_path, 25, seed=5, jobs=2, folder_jobs=int(store == "gs"), store=store)
    assert scene.wrong == []
    assert sum(scene.kills.values()) >= 25
    assert scene.counts["saves"] > 0
    assert scene.counts["left after a later run"] == 0


def judged(found: str, *saves: Save, settled: bool = True) -> str | None:
    history = History()
    for save in saves:
        history.add(save)
    if settled:
        history.settle(0, 50, keeps_promises=True)
    return history.wrong(Look("n", found, 60, 61))


def test_what_is_confirmed_is_there() -> None:
    old, new = Save("n", "old", 0, 1, over=2, must=True), Save("n", "new", 0, 3, over=4, must=True)
    assert judged("new", old, new) is None
    assert "LOST" in str(judged("old", old, new))
    assert "LOST" in str(judged(NOTHING, old, new))
    assert "HALF" in str(judged("other", old, new))


def test_what_is_promised_is_there_unless_another_save_came_between() -> None:
    old = Save("n", "old", 0, 1, over=2, must=True)
    assert "LOST" in str(judged("old", old, Save("n", "new", 0, 3, sealed=True)))
    assert judged("old", old, Save("n", "new", 0, 3)) is None
    assert judged("old", old, Save("n", "new", 0, 3, sealed=True), Save("n", "x", 1, 4, over=5)) is None


def test_what_failed_before_its_end_is_not_there() -> None:
    assert "HALF" in str(judged("new", Save("n", "new", 0, 3, over=4, never=True)))
