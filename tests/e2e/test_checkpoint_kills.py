"""A sample of checkpoint_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.checkpoint_kills import kill_runs


@pytest.mark.random
def test_kills_leave_whole_checkpoints_or_none(tmp_path: Path) -> None:
    scene, done, left, uploads = kill_runs(tmp_path, 12, seed=5)
    assert done >= 12
    assert scene.saves > 0
    assert left == []
    assert uploads == 0
