"""How often this process has made or removed objects: what was listed before is of no use."""

from __future__ import annotations

count = 0


def note() -> None:
    global count
    count += 1
