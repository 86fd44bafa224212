"""Saves to a few names over and over, and says on standard output how far each save is.

checkpoint_trainer.py PREFIX SEED FIRST,
run by checkpoint_kills.py with MILLRACE_SOCKET set. One JSON object a line, flushed before the next step:
  {"begin": k, "name", "sha256", "size"}   nothing of save k was written yet
  {"sealed": k}                            close(wait=False) has returned: a promise
  {"saved": k}                             the store has confirmed it
  {"failed": k, "at": "write" | "close", "error"}
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from typing import Any

from millrace import checkpoint

NAMES = ["new", "a/model.pt", "b.pt"]
LARGEST = 24 << 20  # of parts of 5 MiB


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def wait(k: int, save: Any) -> None:
    try:
        save.result()
        say(saved=k)
    except OSError as error:
        say(failed=k, at="close", error=str(error))
        raise


def one_save(rng: random.Random, prefix: str, k: int, name: str) -> Any:
    """Its Save, or None when it is confirmed."""
    size = rng.choice([rng.randrange(1 << 16), rng.randrange(LARGEST)])
    data = rng.randbytes(size)
    say(begin=k, name=name, sha256=hashlib.sha256(data).hexdigest(), size=size)
    at = "write"
    try:
        file = checkpoint.writer(prefix + name)
        place = 0
        while place < size:
            step = min(size - place, rng.choice([100, 100_000, 3_000_000]) + rng.randrange(1000))
            file.write(memoryview(data)[place : place + step])
            place += step
        at = "close"
        if rng.random() < 0.5:
            file.close()
            say(saved=k)
            return None
        save = file.close(wait=False)
        say(sealed=k)
        return save
    except OSError as error:
        say(failed=k, at=at, error=str(error))
        raise


def main() -> None:
    prefix, seed, k = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    pending: dict[str, tuple[int, Any]] = {}  # by name: which of two saves under way comes last is nobody's promise
    while True:
        name = rng.choice(NAMES)
        name = f"new-{k}" if name == "new" else name
        if name in pending:
            wait(*pending.pop(name))
        save = one_save(rng, prefix, k, name)
        if save is not None:
            pending[name] = (k, save)
        if len(pending) > 1:
            wait(*pending.pop(next(iter(pending))))
        k += 1


if __name__ == "__main__":
    main()
