"""Two jobs on one line, and a neighbour: what each reads, second by second, and a picture.

    .venv/bin/python -m bench.neighbours [--mibps 200] [--picture docs/neighbours.svg]

A store that sends a number of MiB a second in all, 5 ms away. Job A reads from the beginning, job B from second 15 on,
each under a `millrace run` of its own, with compose = "never" and nothing else configured; from second 35 to 50 a
neighbour, who is none of ours, keeps 32 downloads under way. Prints the rates of each phase, and how far its seconds
are from their mean.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.process import devstore
from bench.systems import BIN, BUILD

SIZE_KIB = 200
B_STARTS, NEIGHBOUR, END = 15, (35, 50), 65
PHASES = {"A alone": (5, 15), "A and B": (20, 35), "with the neighbour": (38, 50), "without it again": (53, 65)}
JOB = """
import time, millrace
bytes_, second = 0, int(time.time())
while True:
    for batch in millrace.IterableDataset("gs://data/", shuffle=True).batches(16):
        bytes_ += sum(len(one) for one in batch)
        if int(time.time()) > second:
            print(second, bytes_, flush=True)
            bytes_, second = 0, int(time.time())
"""


class Job(threading.Thread):
    """A program under `millrace run`; `seconds` has the bytes that it read in each."""

    def __init__(self, url: str, config: Path) -> None:
        super().__init__(daemon=True)
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": url, "PYTHONPATH": str(BUILD / "python")}
        command = [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable, "-c", JOB]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.seconds: dict[int, int] = {}
        self.start()

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            second, count = map(int, line.split())
            self.seconds[second] = count


class Neighbour:
    """Threads that download over and over."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.ends, self.seconds = url, threading.Event(), dict[int, int]()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number: int) -> None:
        while not self.ends.is_set():
            name = f"obj-{number % 5000:09}"
            with urllib.request.urlopen(f"{self.url}/storage/v1/b/data/o/{name}?alt=media") as answer:
                while part := answer.read(1 << 16):
                    with self.lock:
                        second = int(time.time())
                        self.seconds[second] = self.seconds.get(second, 0) + len(part)
            number += len(self.threads)


def rates(seconds: dict[int, int], began: int) -> list[float]:
    """MiB/s of each second."""
    return [seconds.get(began + i, 0) / 2**20 for i in range(END)]


def measure(url: str, config: Path) -> dict[str, list[float]]:
    began = int(time.time()) + 1
    time.sleep(began - time.time())

    def until(second: float) -> None:
        time.sleep(max(0.0, began + second - time.time()))

    jobs = [Job(url, config)]
    until(B_STARTS)
    jobs.append(Job(url, config))
    until(NEIGHBOUR[0])
    neighbour = Neighbour(url, 32)
    until(NEIGHBOUR[1])
    neighbour.ends.set()
    until(END + 1)
    for job in jobs:
        job.process.send_signal(signal.SIGTERM)
        job.process.wait()
    found = {"job A": jobs[0].seconds, "job B": jobs[1].seconds, "a neighbour": neighbour.seconds}
    return {name: rates(seconds, began) for name, seconds in found.items()}


def table(found: dict[str, list[float]]) -> None:
    print("MiB/s, mean of a phase, and the standard deviation of its seconds in percent")
    print(f"{'':<20}" + "".join(f"{name:>20}" for name in found))
    for phase, (first, end) in PHASES.items():
        cells = []
        for values in found.values():
            mean = statistics.mean(values[first:end])
            cells.append(f"{mean:.0f} ({100 * statistics.pstdev(values[first:end]) / mean:.0f}%)" if mean > 1 else "")
        print(f"{phase:<20}" + "".join(f"{cell:>20}" for cell in cells))


def picture(found: dict[str, list[float]], mibps: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    axes.axvspan(*NEIGHBOUR, color="#eeeeee")
    for (name, values), colour in zip(found.items(), ("#1b6ca8", "#f0a030", "#888888")):
        shown: list[Any] = [value or None for value in values]
        axes.plot(range(END), shown, color=colour, label=name)
    axes.axhline(mibps, color="#333333", linewidth=1, linestyle="--")
    axes.set(xlabel="seconds", ylabel="MiB/s", xlim=(0, END), ylim=(0, mibps * 1.15))
    axes.legend(loc="upper right", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two jobs and a neighbour on one line.")
    parser.add_argument("--mibps", type=int, default=200, help="what the store sends in all")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "millrace.toml"
        config.write_text('[fetch]\ncompose = "never"\n')
        flags = ["--synthetic", f"data:200000:{SIZE_KIB}KiB", "--latency-ms", "5"]
        with devstore(*flags, "--download-mibps", f"0/{arguments.mibps}") as url:
            found = measure(url, config)
    table(found)
    if arguments.picture is not None:
        picture(found, arguments.mibps, arguments.picture)


if __name__ == "__main__":
    main()
