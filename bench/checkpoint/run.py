"""Measures saving and loading of checkpoints, millrace beside its field: one run, one server program, on this machine.

    make bench-checkpoint                # under 10 minutes
    .venv/bin/python -m bench.checkpoint.run [--quick] [--bytes N ...] [--system NAME ...]

All savers of a server are started and wait. In each round of a size they take turns: make a state dict, save it, forget
it, load it, compare it bit for bit. The first round looks at the memory; the others are measured. What is counted, and
how, is in docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.checkpoint import simulated_nodes
from bench.checkpoint.systems import BUCKET, COPY, FILE, NULL, Catalogue, Client
from bench.process import Failed, Process, memory_watched
from bench.run import commit, get, machine, say
from bench.systems import BIN, ROOT, peers_folder

RESULTS = ROOT / "out" / "bench" / "checkpoint.json"
GIB = 1 << 30
START_LIMIT_S, TURN_LIMIT_S = 180, 300
MEMORY_LOOK_S = 0.05


@dataclass(frozen=True)
class Server:
    """How fast the store is. Rates are MiB/s: of a connection, and of all together."""

    label: str
    latency_ms: int = 0
    rate: str = ""

    def command(self) -> list[str]:
        limits = ["--upload-mibps", self.rate, "--download-mibps", self.rate] if self.rate else []
        # It gives way to those that are measured: a real one is on another machine.
        program = ["nice", "-n", "10", str(BIN / "millrace-devstore"), "--memory", "--no-md5"]
        program += ["--listen", "127.0.0.1:0", "--exit-with-parent"]
        return [*program, "--latency-ms", str(self.latency_ms), *limits]


FAST = Server("no limits")
SLOW = Server("20 ms, 100 MiB/s a connection, 1000 MiB/s together", 20, "100/1000")


@dataclass(frozen=True)
class Size:
    size: int
    rounds: int  # beside the first

    @property
    def label(self) -> str:
        return f"{self.size / 1e9:.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:.0f} MB"


@dataclass
class Part:
    """Save or load, of one system in one cell."""

    blocked_s: list[float] = field(default_factory=list)  # first the one of the first round
    total_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    over: int = 0  # bytes of memory over one state dict and the idle process

    def figures(self, size: int) -> dict[str, float]:
        return {
            "first_blocked_s": self.blocked_s[0],
            "blocked_s": statistics.median(self.blocked_s[1:] or self.blocked_s),
            "total_s": statistics.median(self.total_s[1:] or self.total_s),
            "cpu_s_per_gib": statistics.median(self.cpu_s[1:] or self.cpu_s) / size * GIB,
            "memory_over": self.over,
        }


@contextmanager
def started(server: Server) -> Iterator[str]:
    """A store with an empty bucket; its URL."""
    process = subprocess.Popen(server.command(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = process.stdout.readline().split()[-1]
        body = json.dumps({"name": BUCKET}).encode()
        request(f"{url}/storage/v1/b?project=bench", "POST", body)
        yield url
    finally:
        process.terminate()
        process.wait()


def request(url: str, method: str, body: bytes | None = None) -> None:
    asked = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60).close()


class Saver:
    """A client's process on one server."""

    def __init__(self, client: Client, url: str, log: Path) -> None:
        self.client, self.url, self.process = client, url, Process(client.system, url, log)
        self.idle = 0

    def ready(self, end: float) -> None:
        self.process.wait_ready(end)
        self.idle = self.process.family.memory().total
        self.idle_of_one = self.process.family.most_of_one() or 0

    def turn(self, name: str, size: int, save: Part, load: Part, first: bool) -> None:
        """One save and one load."""
        self._obey("make", bytes=size)
        self._measured("save", name, size, save, first)
        self._obey("drop")
        if self.client.stores:
            self._look(name, size)
        if self.client.loads:
            self._measured("load", name, size, load, first)
            self._obey("compare", bytes=size)
        if self.client.stores:
            request(self._address(name), "DELETE")

    def _obey(self, operation: str, **more: Any) -> dict[str, Any]:
        return self.process.command({"op": operation, **more}, TURN_LIMIT_S)

    def _measured(self, operation: str, name: str, size: int, into: Part, first: bool) -> None:
        family = self.process.family
        before = family.settled_cpu_s(2.0)
        if first:
            family.forget_most()
            with memory_watched(family, MEMORY_LOOK_S) as memory:
                answer = self._obey(operation, name=name)
            into.over = max(memory.total - self.idle, (family.most_of_one() or 0) - self.idle_of_one) - size
        else:
            answer = self._obey(operation, name=name)
        into.cpu_s.append(family.settled_cpu_s(2.0) - before)
        into.blocked_s.append(answer["blocked_s" if operation == "save" else "wall_s"])
        into.total_s.append(answer["total_s" if operation == "save" else "wall_s"])

    def _address(self, name: str) -> str:
        return f"{self.url}/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}"

    def _look(self, name: str, size: int) -> None:
        """The object is there, and has the size of a state dict with some words around it."""
        found = int(json.loads(get(self._address(name)))["size"])
        if not size <= found <= size * 1.02 + (1 << 20):
            raise Failed(f"wrong data: an object of {found} bytes where {size} were saved")


def start_all(clients: list[Client], url: str, folder: Path, stack: ExitStack, errors: dict[str, str]) -> list[Saver]:
    savers = []
    for client in clients:
        saver = Saver(client, url, folder / (client.name.replace(" ", "-").replace("/", "-") + ".log"))
        stack.callback(saver.process.end)
        savers.append(saver)
    end = time.monotonic() + START_LIMIT_S
    for saver in list(savers):
        try:
            saver.ready(end)
        except Failed as error:
            errors[saver.client.name] = str(error)
            savers.remove(saver)
            saver.process.end()
    return savers


def cell(
    savers: list[Saver], clients: list[Client], server: Server, size: Size, errors: dict[str, str], end: float
) -> Any:
    begun = time.monotonic()
    parts = {saver.client.name: (Part(), Part()) for saver in savers}
    rounds = 0
    for number in range(size.rounds + 1):
        if number and time.monotonic() + (time.monotonic() - begun) / number > end:
            break
        for saver in list(savers):
            name = saver.client.name
            try:
                saver.turn(f"{name.replace(' ', '-')}-{size.size}-{number}.pt", size.size, *parts[name], number == 0)
            except Failed as error:
                errors[name] = str(error)
                savers.remove(saver)
                saver.process.end()
        rounds = number
    say(f"{size.label}, {server.label}: {rounds} rounds beside the first, {time.monotonic() - begun:.0f} s")
    rows = []
    for client in clients:
        row: dict[str, Any] = {"system": client.name}
        save, load = parts.get(client.name, (Part(), Part()))
        if client.name in errors:
            row["error"] = errors[client.name]
        if save.blocked_s:
            row["save"] = save.figures(size.size)
        if load.blocked_s:
            row["load"] = load.figures(size.size)
        rows.append(row)
    return {
        "bytes": size.size,
        "label": size.label,
        "server": server.label,
        "latency_ms": server.latency_ms,
        "rate": server.rate,
        "rounds": rounds,
        "rows": rows,
    }


def machine_size() -> Size:
    """What this machine holds: the slowest of the systems has five times the state dict, the server included."""
    free = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    return Size(int(free["MemAvailable"]) * 1024 // 5 // (1 << 28) * (1 << 28), 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures saving and loading of checkpoints.")
    parser.add_argument("--quick", action="store_true", help="76 MB and 298 MB only: about 2 minutes")
    parser.add_argument("--bytes", type=int, action="append", help="of a state dict; may be repeated")
    parser.add_argument("--rounds", type=int, help="beside the first")
    parser.add_argument("--system", action="append", default=[], help="only this one and the floors; may be repeated")
    parser.add_argument("--minutes", type=float, default=8.0, help="when no further round is begun")
    parser.add_argument(
        "--without-peers", action="store_true", help="only what needs no packages beside those of .venv"
    )
    parser.add_argument("--without-floors", action="store_true", help="with --system: only these")
    parser.add_argument("--without-limits", action="store_true", help="only the server without limits")
    parser.add_argument("--without-nodes", action="store_true", help="only the single-node part")
    parser.add_argument("--nodes", type=int, default=4, help="of the simulated job")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else the machine did")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def plan(options: argparse.Namespace) -> list[tuple[Server, list[Size]]]:
    sizes, slow = [Size(76_000_000, 3), Size(298_000_000, 2)], [Size(298_000_000, 0)]
    if options.bytes:
        sizes = [Size(size, 3) for size in options.bytes]
        slow = [Size(size, 1) for size in options.bytes]
    elif not options.quick:
        sizes += [Size(2_500_000_000, 0), machine_size()]
        slow.append(Size(1_000_000_000, 0))
    if options.rounds is not None:
        sizes = [Size(size.size, options.rounds) for size in sizes]
        slow = [Size(size.size, options.rounds) for size in slow]
    return [(FAST, sizes)] if options.without_limits else [(SLOW, slow), (FAST, sizes)]


def measure(options: argparse.Namespace, folder: Path, results: dict[str, Any]) -> None:
    end = time.monotonic() + options.minutes * 60
    catalogue = Catalogue(folder, None if options.without_peers else peers_folder())
    clients = catalogue.clients()
    floors = () if options.without_floors else (COPY, NULL, FILE)
    if options.system:
        clients = [client for client in clients if client.name in (*floors, *options.system)]
    for server, sizes in plan(options):
        errors: dict[str, str] = {}
        with ExitStack() as stack:
            url = stack.enter_context(started(server))
            savers = start_all(clients, url, folder, stack, errors)
            for size in sizes:
                if time.monotonic() > end:
                    say(f"{size.label}, {server.label}: left out, the time is over")
                    continue
                results["cells"].append(cell(savers, clients, server, size, errors, end))
                options.output.write_text(json.dumps(results, indent=1) + "\n")
        if not options.without_nodes and (server.rate or options.without_limits):
            results["nodes"].append(nodes(server, catalogue.peers, options, folder))


def nodes(server: Server, peers: Path | None, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    begun = time.monotonic()
    shape = simulated_nodes.Shape(world=options.nodes)
    if options.quick or options.bytes:  # of about the same size
        size = min(sum(options.bytes or [64_000_000]), shape.size)
        shape = replace(shape, tensors=max(options.nodes, size // shape.tensor_size), samples=2)
    with started(server) as url:  # the savers of the first part are gone
        rows = simulated_nodes.rows(peers, options.system, shape, url, folder)
    say(f"{shape.world} nodes, {server.label}: {time.monotonic() - begun:.0f} s")
    return {"server": server.label, "latency_ms": server.latency_ms, "rate": server.rate, "rows": rows}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))  # savers and servers end too
    options = arguments()
    begun = datetime.datetime.now(datetime.timezone.utc)
    results: dict[str, Any] = {
        "date": begun.strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python -m bench.checkpoint.run", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "note": options.note,
        "cells": [],
        "nodes": [],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output.parent) as scratch:
        measure(options, Path(scratch), results)
    results["minutes"] = (datetime.datetime.now(datetime.timezone.utc) - begun).total_seconds() / 60
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
