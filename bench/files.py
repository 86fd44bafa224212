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
from pathlib import Path

from bench.meter import Family
from bench.process import Failed, Process, devstore
from bench.run import Figures, commit, start
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


def system(way: str, scheme: str, bucket: str, count: int, mount: Path, url: str) -> System:
    client = {"gcsfs": "clients", "s3fs": "s3", "aws s3 cp": "s3"}.get(way)
    python = str(PEERS / client / "bin" / "python") if client else sys.executable
    command = [python, "-m", "bench.readers.file_reader", "--way", way, "--scheme", scheme, "--bucket", bucket]
    command += ["--count", str(count), "--mount", str(mount)]
    environment = {**KEYS, "AWS_ENDPOINT_URL_S3": url, "PATH": f"{BIN}:{os.environ['PATH']}"}
    if not client:
        environment |= {"PYTHONPATH": str(BUILD / "python"), "MILLRACE_BIN": str(BIN)}
    return System(way, scheme, 0, command, 0, environment)


def cpu_s(process: Process, mount: Family | None) -> float:
    """Of the reader with its private supervisor; of the mount."""
    return process.family.settled_cpu_s(2.0) + (mount.settled_cpu_s(2.0) if mount else 0.0)


def measure(kind: str, latency_ms: int, rounds: int, only: str, folder: Path) -> list[str]:
    bucket, count, size = SHAPES[kind]
    with ExitStack() as stack:
        url = stack.enter_context(devstore("--synthetic", f"{bucket}:{count}:{size}", "--latency-ms", str(latency_ms)))
        place = folder / f"{kind}-{latency_ms}"
        place.mkdir()
        mount = Family(stack.enter_context(mounted(bucket, url, place / "mounted")).pid)
        found = [
            system(way, scheme, bucket, count, place / "mounted", url)
            for scheme, ways in WAYS[kind].items()
            for way in ways
            if only in way
        ]
        figures = {each.key: Figures() for each in found}
        readers = start(found, url, place, figures, stack)
        for _ in range(rounds):
            for each in readers:
                beside = mount if "mount" in each.system.name else None
                before = cpu_s(each, beside)
                result = each.command({}, 120)
                used = cpu_s(each, beside) - before
                figures[each.system.key].cpu_us.append(used / count * 1e6)
                figures[each.system.key].rate.append(count / result["wall_s"])
                assert result["bytes"] == count * size, result
    return table(kind, latency_ms, [(each, figures[each.key]) for each in found])


def table(kind: str, latency_ms: int, found: list[tuple[System, Figures]]) -> list[str]:
    _, count, size = SHAPES[kind]
    latency = f"{latency_ms} ms" if latency_ms else "no latency"
    if kind == "one":
        lines = [f"**One file of 1 GiB, {latency}**", "", "| way | store | MiB/s | CPU s/GiB |", "|---|---|---:|---:|"]
    else:
        lines = [f"**{count:,} files of 4 KiB, {latency}**", "", "| way | store | files/s | CPU us a file |"]
        lines.append("|---|---|---:|---:|")
    for each, one in found:
        row = f"| {each.name} | {each.style} |"
        if one.error is not None:
            lines.append(f"{row} {one.error} | |")
            continue
        rate, cpu_us = statistics.median(one.rate), statistics.median(one.cpu_us)
        if kind == "one":
            lines.append(f"{row} {rate * size / (1 << 20):,.0f} | {cpu_us / 1e6 * GIB / size:.2f} |")
        else:
            lines.append(f"{row} {rate:,.0f} | {cpu_us:,.0f} |")
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
