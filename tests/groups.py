"""Control groups with little memory, of either version."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.serve import wait_for


def removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
        return True
    return False


def made(size_bytes: int) -> Path | None:
    name = f"millrace-test-{uuid.uuid4().hex[:8]}"
    for parent, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(parent) / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(size_bytes))
            for swap, most in (("memory.memsw.limit_in_bytes", size_bytes), ("memory.swap.max", 0)):
                if (group / swap).exists():
                    (group / swap).write_text(str(most))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


@contextlib.contextmanager
def memory_group(size_bytes: int) -> Iterator[Path | None]:
    """The folder of a new group; None where none can be made. Whoever is in it ends with the block, or soon after."""
    group = made(size_bytes)
    try:
        yield group
    finally:
        if group:
            wait_for(functools.partial(removed, group), "processes stay in the group")
