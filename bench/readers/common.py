"""What every reader of the benchmark does: it waits for a command, reads for a while, and says what it has read.

A reader prints "ready" when its data set is open and its workers run. Then for each line on standard input, a JSON
object {"skip": objects, "seconds": s, "verify": bool}, it reads `skip` objects, goes on for `seconds`, and prints a
line {"objects", "bytes": all of this round, "timed_objects", "wall_s": without the skipped ones, "checks"}. With
verify it computes the crc32c of everything: "checks" are [name or null, crc32c, size]; such a round is no measurement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

PIECE = 1 << 20
Batch = Sequence[Any]  # of (name or None, buffer), or buffers


def sample_name(sample: Any) -> str | None:
    return sample[0] if isinstance(sample, tuple) else getattr(sample, "name", None)


def sample_data(sample: Any) -> Any:
    return sample[1] if isinstance(sample, tuple) else sample


def crc32c(data: Any) -> int:
    import google_crc32c

    crc = 0
    view = memoryview(data)
    for at in range(0, len(view), PIECE):  # in pieces: what a reader holds is measured, and a copy is not its own
        crc = google_crc32c.extend(crc, bytes(view[at : at + PIECE]))
    return int(crc)


def forever(make: Callable[[], Iterable[Batch]]) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        empty = True
        for batch in make():
            empty = False
            yield batch
        if empty:
            raise SystemExit("an epoch without objects")


def serve(batches: Iterator[Batch]) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(read(batches, **json.loads(line))), flush=True)


def read(batches: Iterator[Batch], skip: int, seconds: float, verify: bool) -> dict[str, Any]:
    objects = size = skipped = 0
    checks: list[tuple[str | None, int, int]] = []
    begun: float | None = None
    while True:
        if begun is None and objects >= skip:
            begun, skipped = time.monotonic(), objects
        batch = next(batches)
        for sample in batch:
            objects += 1
            size += len(sample_data(sample))
        if verify:
            checks += [(sample_name(s), crc32c(sample_data(s)), len(sample_data(s))) for s in batch]
        del batch, sample  # some own shared memory until they go
        now = time.monotonic()
        if begun is not None and now - begun >= seconds:
            break
    return {
        "objects": objects,
        "bytes": size,
        "timed_objects": objects - skipped,
        "wall_s": now - begun,
        "checks": checks,
    }


def groups(names: Sequence[str], batch: int) -> Iterator[list[str]]:
    for at in range(0, len(names), batch):
        yield list(names[at : at + batch])


def made_up_names(count: int) -> list[str]:
    """Names of the development store's synthetic objects."""
    return [f"obj-{number:09}" for number in range(count)]
