"""Objects of 100 KiB from S3, beside boto3, s3torchconnector, obstore and s3fs, and as samples in shards beside
webdataset and streaming: one run, each server in its turn.

    .venv/bin/python -m bench.s3 [--rounds 3] [--seconds 1.0] [--only shards]     about 6 minutes; prints tables

The servers are the development store (which checks no signature), with 20 ms of latency and over TLS too, and
versitygw, which checks them. The floor is bench/floor.c: GETs that are not signed. `bench/peers --s3` installs the
other systems; scripts/test-servers builds versitygw.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.process import Failed, Process, devstore
from bench.run import Figures, commit, start, verify
from bench.systems import BIN, BUILD, FLOOR, ROOT, SHAPES, Cell, System, peers_folder

PEERS = peers_folder()
SHAPE = SHAPES[0]
BUCKET, SIZE, COUNT, FEW = "bench", SHAPE.size, 50_000, 2_000
OF_SHARDS = "shards"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1"}


@dataclass
class Server:
    label: str
    url: str
    count: int
    latency_ms: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    floor: str = ""  # its pattern for bench/floor.c

    def __post_init__(self) -> None:
        self.floor = self.floor or f"{self.url}/{BUCKET}/obj-%09u"
        self.environment = {**KEYS, "AWS_ENDPOINT_URL_S3": self.url, **self.environment}


SHARDS, EACH = 20, 500  # samples in a shard
WINDOW_BYTES, WINDOWS = 4 << 20, 1000
STREAMS = (
    "millrace",
    "millrace, blocks",
    "millrace, shuffled",
    "webdataset, pipe:curl",
    "webdataset, pipe:aws",
    "webdataset, s3fs",
    "streaming",
)


def shard_systems(server: Server, folder: Path) -> list[System]:
    python = str(PEERS / "s3" / "bin" / "python")
    aws = str(PEERS / "aws" / "bin")
    floor = [str(BIN / "millrace-bench-floor"), server.floor, str(WINDOWS), "8"]
    found = [System(FLOOR, "", 0, floor, 0, server.environment)]
    config = folder / "shards.toml"
    config.write_text('[memory]\narena_bytes = "512MiB"\n')
    for client in STREAMS:
        command = [python, "-m", "bench.readers.shard_reader", "--client", client, "--shards", str(SHARDS)]
        environment = {**server.environment, "S3_ENDPOINT_URL": server.url, "PATH": f"{aws}:{os.environ['PATH']}"}
        if client.startswith("millrace"):
            command = [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable, *command[1:]]
            environment |= {"PYTHONPATH": str(BUILD / "python"), "XDG_CACHE_HOME": str(folder / "cache")}
        found.append(System(client, "", 0, command, 0, environment))
    return found


def make_shards(root: Path) -> None:
    """As many samples as tar shards, and as streaming writes them."""
    (root / BUCKET / "wds").mkdir(parents=True)
    for number in range(SHARDS):
        with tarfile.open(root / BUCKET / "wds" / f"{number:03}.tar", "w") as tar:
            for sample in range(EACH):
                member = tarfile.TarInfo(f"{number}-{sample:06}.jpg")
                member.size = SIZE
                tar.addfile(member, io.BytesIO(os.urandom(SIZE)))
    program = (
        "import os; from streaming import MDSWriter; w = MDSWriter(out='mds', columns={'jpg': 'bytes'}); "
        f"[w.write({{'jpg': os.urandom({SIZE})}}) for _ in range({SHARDS * EACH})]; w.finish()"
    )
    python = str(PEERS / "s3" / "bin" / "python")
    subprocess.run([python, "-c", program], cwd=root / BUCKET, check=True, capture_output=True)


@contextmanager
def of_shards(folder: Path) -> Iterator[Server]:
    root = folder / "root"
    make_shards(root)
    with devstore("--root", str(root), "--synthetic", f"windows:{WINDOWS}:{WINDOW_BYTES}") as url:
        yield Server(OF_SHARDS, url, 0, floor=f"{url}/windows/obj-%09u")


def systems(server: Server, folder: Path) -> list[System]:
    if server.label == OF_SHARDS:
        return shard_systems(server, folder)
    python = str(PEERS / "s3" / "bin" / "python")
    cell = Cell(SHAPE, server.latency_ms)
    floor = [str(BIN / "millrace-bench-floor"), server.floor, str(server.count), str(cell.floor_connections)]
    found = [System(FLOOR, "", 0, floor, 0, server.environment)]
    config = folder / "millrace.toml"
    extra = f"[fetch]\nconnections = {cell.connections}\n" if server.latency_ms else ""
    if "AWS_CA_BUNDLE" in server.environment:
        extra += f"[http]\nca_bundle = {json.dumps(server.environment['AWS_CA_BUNDLE'])}\n"
    config.write_text(f"[memory]\narena_bytes = {SHAPE.arena}\n{extra}")
    for workers in (0, 2):
        ours = [str(BIN / "millrace"), "run", "-q", "-c", str(config), "--", sys.executable]
        command = [*ours, "-m", "bench.readers.millrace_reader", "--uri", f"s3://{BUCKET}/", "--style", "iterable"]
        command += ["--workers", str(workers), "--batch", str(SHAPE.batch), "--window", str(cell.window)]
        skip = max(workers, 1) * cell.window + SHAPE.ahead(workers)
        environment = {"PYTHONPATH": str(BUILD / "python"), **server.environment}
        found.append(System("millrace", "", workers, command, skip, environment))
        for client in ("boto3", "s3torchconnector", "millrace.s3torchconnector", "obstore", "s3fs"):
            parallel = cell.parallel if client == "boto3" else SHAPE.parallel
            command = [*(ours if client.startswith("millrace") else [python]), "-m", "bench.readers.s3_reader"]
            command += ["--client", client, "--bucket", BUCKET]
            command += ["--count", str(server.count), "--workers", str(workers), "--batch", str(SHAPE.batch)]
            command += ["--parallel", str(parallel)]
            found.append(System(client, "", workers, command, SHAPE.ahead(workers), environment))
    return found


@contextmanager
def development(label: str, latency_ms: int, tls: bool, folder: Path) -> Iterator[Server]:
    flags = ["--synthetic", f"{BUCKET}:{COUNT}:{SIZE}", "--latency-ms", str(latency_ms)]
    authority = folder / "authority.pem"
    trusted = {name: str(authority) for name in ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")} if tls else {}
    with devstore(*flags, *(["--tls", str(authority)] if tls else [])) as url:
        yield Server(label, url, COUNT, latency_ms, trusted)


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """With objects of random bytes, which anybody may read: the floor signs nothing."""
    from tests.store.s3_servers import start_versitygw

    s3 = start_versitygw(folder / "versitygw")
    try:
        s3.put(BUCKET, {f"obj-{number:09}": os.urandom(SIZE) for number in range(FEW)})
        allow = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "s3:GetObject",
            "Resource": f"arn:aws:s3:::{BUCKET}/*",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        s3.client().put_bucket_policy(Bucket=BUCKET, Policy=policy)
        yield Server("versitygw", s3.server.url, FEW, environment=s3.environment)
    finally:
        s3.server.stop()


def measure(server: Server, folder: Path, rounds: int, seconds: float) -> list[tuple[System, Figures]]:
    """Each reads in its turn, round after round. The first is not counted."""
    found = systems(server, folder)
    figures = {system.key: Figures() for system in found}
    with ExitStack() as stack:
        readers = start(found, server.url, folder, figures, stack)
        for turn in range(rounds + 1):
            for reader in list(readers):
                try:
                    read(reader, figures[reader.system.key], server, seconds, turn > 0)
                except Failed as error:
                    figures[reader.system.key].error = str(error)
                    readers.remove(reader)
    return [(system, figures[system.key]) for system in found]


def read(reader: Process, figures: Figures, server: Server, seconds: float, counts: bool) -> None:
    each = WINDOW_BYTES if server.label == OF_SHARDS and reader.system.name == FLOOR else SIZE
    before = reader.family.settled_cpu_s(2.0)
    result = reader.read(seconds, reader.system.skip, False)
    used = reader.family.settled_cpu_s(2.0) - before
    verify(result, each, {})
    if counts:  # a window has as many samples as fit it
        figures.cpu_us.append(used / result["objects"] * 1e6 * SIZE / each)
        figures.rate.append(result["timed_objects"] / result["wall_s"] * each / SIZE)


def rows(label: str, found: list[tuple[System, Figures]]) -> list[str]:
    floor = statistics.median(found[0][1].cpu_us)
    lines = [f"**{label}**", "", "| system | form | CPU us an object | x floor | objects/s |"]
    lines.append("|---|---|---:|---:|---:|")
    for system, figures in found:
        form = f"{system.workers} workers" if system.workers else "one process"
        if figures.error is not None:
            lines.append(f"| {system.name} | {form} | | | {figures.error} |")
            continue
        cpu, rate = statistics.median(figures.cpu_us), statistics.median(figures.rate)
        lines.append(f"| {system.name} | {form} | {cpu:.1f} | {cpu / floor:.2f} | {rate:,.0f} |")
    return [*lines, ""]


def signing(folder: Path) -> list[str]:
    """millrace's engine alone, with and without signatures."""
    best: dict[str, float] = {}
    with development("", 0, False, folder) as server:
        for _ in range(5):
            for name, keys in (("signed", server.environment), ("not signed", {"AWS_EC2_METADATA_DISABLED": "true"})):
                command = [str(BIN / "millrace-bench-transfer"), server.url, f"s3://{BUCKET}", "obj-%09u"]
                environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, **keys}
                out = subprocess.run(
                    [*command, "30000", "16", str(SIZE)], env=environment, check=True, capture_output=True, text=True
                ).stdout
                cpu = float(out.split("CPU ")[1].split(" us")[0])
                best[name] = min(cpu, best.get(name, cpu))
    return [
        "**A signature**: CPU of a GET by `millrace-bench-transfer`, the best of five: "
        f"{best['not signed']:.1f} us without, {best['signed']:.1f} us with one.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="servers whose name has this in it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    subprocess.run([str(ROOT / "bench" / "peers"), "--s3"], check=True)
    lines = [f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} at {commit()}, {os.cpu_count()} cores", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = {
            label: development(label, latency_ms, tls, folder)
            for label, latency_ms, tls in (
                ("development store, no latency", 0, False),
                ("development store, 20 ms", 20, False),
                ("development store, TLS", 0, True),
            )
        }
        servers |= {"versitygw": versitygw(folder), OF_SHARDS: of_shards(folder)}
        for label, opened in servers.items():
            if options.only not in label:
                continue
            with opened as server:
                lines += rows(server.label, measure(server, folder, options.rounds, options.seconds))
        lines += signing(folder)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
