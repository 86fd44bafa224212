"""Objects as files and streams: one of 1 GiB and 6,296 small ones, by every way of docs/files.md, beside the field.

    .venv/bin/python -m bench.files [--rounds 3] [--only WAY]

Each way reads all in its turn, round after round; the medians are printed. CPU is that of all processes on the reading
side, as in bench/run.py. `bench/peers --s3` installs the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.meter import Family
from bench.process import Failed, Process, devstore
from bench.run import commit
from bench.s3 import KEYS
from bench.systems import BIN, BUILD, ROOT, System, peers_folder

PEERS = peers_folder()
GIB = 1 << 30
ICONS = 6296
SHAPES = {"one": ("file", 1, GIB), "many": ("icons", ICONS, 4096)}  # bucket, objects, bytes of each
WAYS = {
    "one": {
        "gs": ("millrace.open", "millrace cat", "millrace mount", "gcsfs", "curl"),
        "s3": ("millrace.open", "millrace cat", "s3fs", "aws s3 cp"),
    },
    "many": {"gs": ("millrace.fs cat", "millrace mount", "data set", "gcsfs"), "s3": ("millrace.fs cat", "s3fs")},
}


@dataclass
class Figures:
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    error: str = ""


@contextmanager
def mounted(bucket: str, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url}
    command = [str(BIN / "millrace"), "mount", "-q", f"gs://{bucket}/", str(folder)]
    process = subprocess.Popen(command, env=environment)
    try:
        while not folder.is_mount():
            if process.poll() is not None:
                raise Failed("it cannot be mounted here")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


def reader(way: str, scheme: str, bucket: str, count: int, folder: Path, url: str) -> Process:
    client = {"gcsfs": "clients", "s3fs": "s3", "aws s3 cp": "s3"}.get(way)
    python = str(PEERS / client / "bin" / "python") if client else sys.executable
    command = [python, "-m", "bench.readers.file_reader", "--way", way, "--scheme", scheme, "--bucket", bucket]
    command += ["--count", str(count), "--mount", str(folder)]
    environment = {**KEYS, "AWS_ENDPOINT_URL_S3": url, "PATH": f"{BIN}:{os.environ['PATH']}"}
    if not client:
        environment |= {"PYTHONPATH": str(BUILD / "python"), "MILLRACE_BIN": str(BIN)}
    name = f"{way.replace(' ', '-')}-{scheme}-{count}.log"
    return Process(System(way, scheme, 0, command, 0, environment), url, folder.parent / name)


def cpu_of(process: Process, mount: Family | None) -> float:
    """Of the reader with its private supervisor; of the mount."""
    return process.family.settled_cpu_s(2.0) + (mount.settled_cpu_s(2.0) if mount else 0.0)


def measure(kind: str, latency_ms: int, rounds: int, only: str, folder: Path) -> list[str]:
    bucket, count, size = SHAPES[kind]
    figures: dict[tuple[str, str], Figures] = {}
    with ExitStack() as stack:
        url = stack.enter_context(devstore("--synthetic", f"{bucket}:{count}:{size}", "--latency-ms", str(latency_ms)))
        place = folder / f"{kind}-{latency_ms}"
        place.mkdir()
        mount = Family(stack.enter_context(mounted(bucket, url, place / "mounted")).pid)
        readers = []
        for scheme, ways in WAYS[kind].items():
            for way in ways:
                if only in way:
                    figures[way, scheme] = Figures()
                    readers.append(reader(way, scheme, bucket, count, place / "mounted", url))
                    stack.callback(readers[-1].end)
        for each in list(readers):
            try:
                each.wait_ready(time.monotonic() + 120)
            except Failed as error:
                figures[each.system.name, each.system.style].error = str(error)
                readers.remove(each)
        for _ in range(rounds):
            for each in readers:
                one = figures[each.system.name, each.system.style]
                beside = mount if "mount" in each.system.name else None
                before = cpu_of(each, beside)
                result = each.command({}, 120)
                one.cpu_s.append(cpu_of(each, beside) - before)
                one.wall_s.append(result["wall_s"])
                assert result["bytes"] == count * size, result
    return table(kind, latency_ms, figures)


def table(kind: str, latency_ms: int, figures: dict[tuple[str, str], Figures]) -> list[str]:
    _, count, size = SHAPES[kind]
    latency = f"{latency_ms} ms" if latency_ms else "no latency"
    if kind == "one":
        lines = [f"**One file of 1 GiB, {latency}**", "", "| way | store | MiB/s | CPU s/GiB |", "|---|---|---:|---:|"]
    else:
        lines = [f"**{count:,} files of 4 KiB, {latency}**", "", "| way | store | files/s | CPU us a file |"]
        lines.append("|---|---|---:|---:|")
    for (way, scheme), one in figures.items():
        if one.error:
            lines.append(f"| {way} | {scheme} | {one.error} | |")
            continue
        wall, cpu = statistics.median(one.wall_s), statistics.median(one.cpu_s)
        if kind == "one":
            lines.append(f"| {way} | {scheme} | {size / (1 << 20) / wall:,.0f} | {cpu * GIB / size:.2f} |")
        else:
            lines.append(f"| {way} | {scheme} | {count / wall:,.0f} | {cpu / count * 1e6:,.0f} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="ways whose name has this in it")
    options = parser.parse_args()
    subprocess.run([str(ROOT / "bench" / "peers"), "--s3"], check=True)
    lines = [f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} at {commit()}, {os.cpu_count()} cores", ""]
    with tempfile.TemporaryDirectory() as name:
        for kind in SHAPES:
            for latency_ms in (0, 20):
                lines += measure(kind, latency_ms, options.rounds, options.only, Path(name))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
