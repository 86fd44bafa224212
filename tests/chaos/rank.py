"""One rank of a training job in the chaos: it hashes what it is given, meets the other ranks after each step, saves.

    rank.py '{"meeting": SOCKET, "uri": URI, "seed": N, "batch": N, "workers": N, "epochs": N, "resume": URI or null}'

with RANK, WORLD_SIZE and MILLRACE_SOCKET set. It says on the meeting's socket, a JSON object a line:
  {"hello": pid}  {"resumed": sha256}  {"step", "samples": [[name, sha256], ...], "state"}  {"done": true}
  {"begin": k, "sha256", ...}  {"sealed": k}  {"saved": k}  {"failed": k, ...}    as checkpoint_trainer.py
After each step it waits for a line, which may ask for a save: {"save": k, "uri", "size", "wait": bool} or {}.
A checkpoint begins with the loader's state: HEAD bytes of JSON, then bytes that only this save has.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import signal
import socket
import sys
import time
from typing import Any

import millrace

HEAD = 512


def look(lease: Any) -> tuple[str, str]:
    return lease.name, hashlib.sha256(lease).hexdigest()


def keep(samples: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return samples


def content(state: dict[str, Any], k: int, size: int) -> bytes:
    rng = random.Random(k)
    body = bytearray(rng.randbytes(min(size, 1 << 16)) * (size // (1 << 16) + 1))[:size]
    for place in range(0, size, 1 << 16):
        body[place : place + 8] = rng.randbytes(min(8, size - place))
    return json.dumps(state).encode().ljust(HEAD) + body


class Rank:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(options["meeting"])
        self.lines = self.socket.makefile("rb")
        self.pending: dict[int, Any] = {}
        self.say(hello=os.getpid())

    def say(self, **words: Any) -> None:
        self.socket.sendall(json.dumps({**words, "t": time.monotonic()}).encode() + b"\n")

    def finish_saves(self, at_most: int) -> None:
        for k in list(self.pending)[: max(0, len(self.pending) - at_most)]:
            save = self.pending.pop(k)
            try:
                save.result()
            except OSError as error:
                self.say(failed=k, at="close", kind=type(error).__name__, error=str(error))
                raise
            self.say(saved=k)

    def save(self, state: dict[str, Any], order: dict[str, Any]) -> None:
        self.finish_saves(0)  # of two under way the older one could come last
        k = order["save"]
        data = content(state, k, order["size"])
        self.say(begin=k, uri=order["uri"], sha256=hashlib.sha256(data).hexdigest(), state=state)
        at = "write"
        try:
            file = millrace.checkpoint.writer(order["uri"])
            for place in range(0, len(data), 1_000_000):
                file.write(memoryview(data)[place : place + 1_000_000])
            at = "close"
            if order["wait"]:
                file.close()
                self.say(saved=k)
            else:
                self.pending[k] = file.close(wait=False)
                self.say(sealed=k)
        except OSError as error:
            self.say(failed=k, at=at, kind=type(error).__name__, error=str(error))
            raise

    def resume(self, loader: millrace.DataLoader, uri: str) -> int:
        with millrace.checkpoint.reader(uri) as file:
            data = file.read()
        self.say(resumed=hashlib.sha256(data).hexdigest(), uri=uri)
        state = json.loads(data[:HEAD])
        loader.load_state_dict(state)
        return int(state["epoch"])

    def run(self) -> None:
        options = self.options
        ds = millrace.IterableDataset(options["uri"], transform=look, shuffle=True, seed=options["seed"])
        loader = millrace.DataLoader(ds, batch_size=options["batch"], num_workers=options["workers"], collate_fn=keep)
        epoch = self.resume(loader, options["resume"]) if options["resume"] else 0
        while epoch < options["epochs"]:
            for step, batch in enumerate(loader):
                state = loader.state_dict()
                self.say(step=step, samples=batch, state=state)
                line = self.lines.readline()
                if not line:
                    return  # the others are gone
                order = json.loads(line)
                if order:
                    self.save(state, order)
            epoch = loader.state_dict()["epoch"]
        self.finish_saves(0)
        self.say(done=True)
        self.lines.readline()


if __name__ == "__main__":
    os.setpgid(0, 0)  # with its DataLoader workers: job.py ends what it leaves
    faulthandler.register(signal.SIGUSR1)  # for job.py, where nothing moves
    Rank(json.loads(sys.argv[1])).run()
