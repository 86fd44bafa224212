"""A sample of writer_kills.py."""

from __future__ import annotations

from pathlib import Path

from .writer_kills import kill_saves


def test_kills_leave_nothing_half(tmp_path: Path, runtime: Path) -> None:
    ends, _ = kill_saves(tmp_path, 8, seed=5)
    assert ends.whole + ends.absent + ends.old == 8
