"""A sample of compose_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.compose_kills import kill_runs


@pytest.mark.nightly
@pytest.mark.random
def test_kills_leave_nothing(tmp_path: Path) -> None:
    done, left, _ = kill_runs(tmp_path, 8, seed=7)
    assert done >= 8
    assert left == []
