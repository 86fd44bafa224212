"""CPU and wall time an object, in one run on one server: a bare libcurl loop, millrace, google-cloud-storage.

CPU is user and system time of every process on the reading side: for millrace the reader, the supervisor and the
workers. The server's is not counted. Start-up (imports, listing, arenas) is not counted either: each reader says when
it begins and ends, and the difference is taken from the kernel's run time of its processes.

    .venv/bin/python bench/objects.py [--size 102400] [--count 20000] [--latency-ms 0] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build" / "release"))
BIN = BUILD / "bin"
BUCKET = "bench"
BATCH_BYTES = 256 << 20
FLOOR = "bare libcurl multi loop"

# Each reader prints "go" when it is ready, waits for a line, reads, prints a JSON line {objects, bytes}, waits again.
MILLRACE = """
import json, sys, millrace
count = int(sys.argv[1])
ds = millrace.IterableDataset("gs://bench/", shuffle=False, window=int(sys.argv[2]))
assert len(ds) >= count
batches = iter(ds.batches(int(sys.argv[3])))
first = next(batches)
del first
print("go", flush=True); sys.stdin.readline()
objects = size = 0
while objects < count:
    for lease in next(batches):
        objects += 1
        size += lease.size
print(json.dumps({"objects": objects, "bytes": size}), flush=True); sys.stdin.readline()
"""

TORCH = """
import json, sys, millrace
from torch.utils.data import get_worker_info
count = int(sys.argv[1])
def load(lease): return bytes(lease)
ds = millrace.IterableDataset("gs://bench/", shuffle=False, transform=load)
loader = millrace.DataLoader(ds, batch_size=int(sys.argv[2]), num_workers=2, collate_fn=list)
batches = iter(loader)
next(batches)
print("go", flush=True); sys.stdin.readline()
objects = size = 0
while objects < count:
    for data in next(batches):
        objects += 1
        size += len(data)
print(json.dumps({"objects": objects, "bytes": size}), flush=True); sys.stdin.readline()
"""

GOOGLE = """
import json, os, sys
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
count = int(sys.argv[1])
client = storage.Client(project="none", credentials=AnonymousCredentials(),
                        client_options={"api_endpoint": os.environ["STORAGE_EMULATOR_HOST"]})
bucket = client.bucket("bench")
names = [blob.name for blob in client.list_blobs("bench", max_results=count)]
bucket.blob(names[0]).download_as_bytes()
print("go", flush=True); sys.stdin.readline()
objects = size = 0
for name in names:
    size += len(bucket.blob(name).download_as_bytes())
    objects += 1
print(json.dumps({"objects": objects, "bytes": size}), flush=True); sys.stdin.readline()
"""


@dataclass
class Figure:
    objects: int
    size: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.objects * 1e6


def family(root: int) -> list[int]:
    """root and all its living descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def cpu_s(pids: list[int]) -> float:
    """Time on a processor of all threads, from the scheduler, in seconds."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(task.read_text().split()[0])
    return total / 1e9


def measure(command: list[str | Path], environment: dict[str, str]) -> Figure:
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    line = process.stdout.readline()
    if line != "go\n":
        raise SystemExit(f"{command[0]}: did not start: {line!r}")
    pids = family(process.pid)
    before, begun = cpu_s(pids), time.monotonic()
    process.stdin.write("\n")
    process.stdin.flush()
    result = json.loads(process.stdout.readline())
    wall, after = time.monotonic() - begun, cpu_s(pids)
    process.stdin.write("\n")
    process.stdin.flush()
    process.communicate()
    return Figure(result["objects"], result["bytes"], after - before, wall)


def measure_floor(pattern: str, count: int, connections: int) -> Figure:
    """The C program times itself and prints a line."""
    command = [str(BIN / "millrace-bench-floor"), pattern, str(count), str(connections)]
    line = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = re.search(r"(\d+) objects, (\d+) bytes, ([\d.]+) s,.*CPU ([\d.]+) us", line)
    if not found:
        raise SystemExit(f"millrace-bench-floor printed {line!r}")
    objects = int(found[1])
    return Figure(objects, int(found[2]), float(found[4]) * objects / 1e6, float(found[3]))


def start_server(size: int, count: int, latency_ms: int) -> tuple[subprocess.Popen[str], str]:
    command: list[str | Path] = [BIN / "millrace-devstore", "--listen", "127.0.0.1:0", "--exit-with-parent"]
    command += ["--synthetic", f"{BUCKET}:{count}:{size}", "--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=100 * 1024, help="bytes an object (default 102400)")
    parser.add_argument("--count", type=int, default=20000, help="objects read by the fast readers (default 20000)")
    parser.add_argument("--slow-count", type=int, default=1500, help="objects read by google-cloud-storage")
    parser.add_argument("--latency-ms", type=int, default=0, help="added by the server to each answer")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1, help="fetch workers of millrace")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3, help="each round runs all readers once; medians are printed")
    options = parser.parse_args()

    server, url = start_server(options.size, options.count + 4096, options.latency_ms)
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url, "PYTHONPATH": str(BUILD / "python")}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.toml"
        config.write_text(f"[fetch]\nworkers = {options.workers}\nconnections = {options.connections}\n")
        run: list[str | Path] = [BIN / "millrace", "run", "-c", config, "--", sys.executable, "-c"]
        pattern = f"{url}/storage/v1/b/{BUCKET}/o/obj-%09u?alt=media"
        batch = str(max(1, min(32, BATCH_BYTES // options.size)))  # a batch is held whole, in each loader worker too
        readers: dict[str, list[str | Path]] = {
            "millrace, ds.batches": [*run, MILLRACE, str(options.count), str(options.window), batch],
            "millrace.DataLoader, 2 workers": [*run, TORCH, str(options.count), batch],
            "google-cloud-storage, a loop": [sys.executable, "-c", GOOGLE, str(options.slow_count)],
        }
        figures: dict[str, list[Figure]] = {FLOOR: [], **{name: [] for name in readers}}
        for _ in range(options.rounds):
            floor = measure_floor(pattern, options.count, options.connections)
            figures[FLOOR].append(floor)
            for name, command in readers.items():
                figures[name].append(measure(command, environment))
    server.terminate()
    server.wait()

    base = statistics.median(f.cpu_us for f in figures[FLOOR])
    print(
        f"{options.size} bytes an object, {options.latency_ms} ms latency, {options.workers} fetch worker(s), ", end=""
    )
    print(f"{options.connections} connections, medians of {options.rounds} rounds\n")
    print(f"{'reader':34}{'CPU us/object':>14}{'ratio':>8}{'CPU s/GiB':>11}{'objects/s':>11}")
    for name, rounds in figures.items():
        cpu = statistics.median(f.cpu_us for f in rounds)
        rate = statistics.median(f.objects / f.wall_s for f in rounds)
        print(f"{name:34}{cpu:14.1f}{cpu / base:8.2f}{cpu / 1e6 / options.size * 2**30:11.3f}{rate:11.0f}")


if __name__ == "__main__":
    main()
