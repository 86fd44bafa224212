"""Saves to a few names over and over, and says on standard output how far each save is.

checkpoint_trainer.py '{"prefix": URI, "shared": [URI, ...], "seed": N, "first": N, "once": bool}',
run by checkpoint_kills.py with MILLRACE_SOCKET set. `shared` are names that others save to as well. With `once` it
saves to each name once, and ends. One JSON object a line, with the time "t", flushed before the next step:
  {"begin": k, "uri", "sha256", "size"}    nothing of save k was written yet
  {"sealed": k}                            close(wait=False) has returned: a promise
  {"saved": k}                             the store has confirmed it
  {"failed": k, "at": "write" | "close", "kind", "error"}
  {"read": k, "good": bool}                what was just confirmed was read back
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from typing import Any

from millrace import ChangedError, checkpoint

NAMES = ["new", "a/model.pt", "b.pt"]
LARGEST = 16 << 20  # of parts of 5 MiB
POOL = random.Random(1).randbytes(1 << 20) * 17


def say(**words: Any) -> None:
    # One write: a line is whole or not there when the process is killed.
    os.write(1, json.dumps({**words, "t": time.monotonic()}).encode() + b"\n")


class Trainer:
    def __init__(self, options: dict[str, Any]) -> None:
        self.rng = random.Random(options["seed"])
        self.prefix, self.shared = options["prefix"], options.get("shared", [])
        self.k = options.get("first", 0)
        self.pending: dict[str, tuple[int, Any]] = {}  # of two saves of a name under way nobody knows the last

    def fail(self, k: int, uri: str, at: str, error: OSError) -> None:
        """Raises it again, unless it is what somebody else's save to a shared name may do to ours."""
        say(failed=k, at=at, kind=type(error).__name__, error=str(error))
        if not (uri in self.shared and isinstance(error, ChangedError)):
            raise error

    def wait(self, uri: str) -> None:
        k, save = self.pending.pop(uri)
        try:
            save.result()
            say(saved=k)
        except OSError as error:
            self.fail(k, uri, "close", error)

    def uri(self, name: str) -> str:
        if name in self.shared:
            return name
        return str(self.prefix + (f"new-{self.k}" if name == "new" else name))

    def open(self, uri: str) -> Any:
        """A writer; the failure of a save before this one, which writer() raises too, is said as that one's."""
        while True:
            for other in [other for other, (_, save) in self.pending.items() if save.done()]:
                self.wait(other)
            try:
                return checkpoint.writer(uri)
            except ChangedError:
                if not any(save.done() for _, save in self.pending.values()):
                    raise

    def one_save(self, uri: str) -> None:
        k, rng = self.k, self.rng
        size = rng.choice([rng.randrange(1 << 16), rng.randrange(LARGEST)])
        # Its own bytes in front of every 64 KiB: no part is that of another save.
        data = bytearray(memoryview(POOL)[:size])
        for place in range(0, size, 1 << 16):
            data[place : place + 16] = rng.randbytes(min(16, size - place))
        say(begin=k, uri=uri, sha256=hashlib.sha256(data).hexdigest(), size=size)
        at = "write"
        try:
            file = self.open(uri)
            place = 0
            while place < size:
                step = min(size - place, rng.choice([10_000, 300_000, 3_000_000]) + rng.randrange(1000))
                file.write(memoryview(data)[place : place + step])
                place += step
            at = "close"
            if rng.random() < 0.5:
                save = file.close(wait=False)
                say(sealed=k)
                self.pending[uri] = (k, save)
                return
            file.close()
        except OSError as error:
            self.fail(k, uri, at, error)
            return
        say(saved=k)
        if uri not in self.shared and rng.random() < 0.2:
            with checkpoint.reader(uri) as reader:
                say(read=k, good=reader.read() == data)

    def run(self, names: Iterable[str]) -> None:
        for name in names:
            uri = self.uri(name)
            if uri in self.pending:
                self.wait(uri)
            self.one_save(uri)
            if len(self.pending) > 1:
                self.wait(next(iter(self.pending)))
            self.k += 1
        for uri in list(self.pending):
            self.wait(uri)


def main() -> None:
    options = json.loads(sys.argv[1])
    trainer = Trainer(options)
    names = [*NAMES, *trainer.shared]
    trainer.run(names if options.get("once") else iter(lambda: trainer.rng.choice(names), ""))


if __name__ == "__main__":
    main()
