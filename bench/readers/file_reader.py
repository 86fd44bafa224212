"""One file, or many small ones, whole: by millrace's ways and by those of gcsfs, s3fs, curl and awscli.

Prints "ready"; then for each line on standard input it reads all once and prints {"bytes", "files", "wall_s"}.
--way names a function below; --scheme gs or s3; --mount a folder where the bucket is mounted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

STEP = 1 << 20
BATCH = 32
THREADS = 16  # that read small files from a mount


def drain(file: IO[bytes]) -> int:
    size = 0
    buffer = memoryview(bytearray(STEP))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        size += count
    return size


def from_mount(path: Path) -> int:
    """Past what the kernel has kept."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return drain(file) if path.stat().st_size > STEP else len(file.read())


def by_program(*command: str) -> int:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        size = drain(process.stdout)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return size


def s3fs_files() -> Any:
    from bench.readers.s3_reader import s3fs_files as files

    return files()


def peer(scheme: str) -> Any:
    if scheme == "s3":
        return s3fs_files()
    import gcsfs

    return gcsfs.GCSFileSystem(token="anon", skip_instance_cache=True)


def one(way: str, options: argparse.Namespace) -> int:
    uri = f"{options.scheme}://{options.bucket}/{options.names[0]}"
    if way == "millrace.open":
        import millrace

        with millrace.open(uri) as file:
            return drain(file)
    if way == "millrace cat":
        return by_program("millrace", "cat", uri)
    if way == "millrace mount":
        return from_mount(Path(options.mount, options.names[0]))
    if way == "curl":
        return by_program("curl", "-sf", f"{os.environ['STORAGE_EMULATOR_HOST']}/{options.bucket}/{options.names[0]}")
    if way == "aws s3 cp":
        program = str(Path(sys.executable).parent.parent.parent / "aws" / "bin" / "aws")
        return by_program(program, "s3", "cp", "--endpoint-url", os.environ["AWS_ENDPOINT_URL_S3"], uri, "-")
    with peer(options.scheme).open(f"{options.bucket}/{options.names[0]}", "rb") as file:
        return drain(file)


def many(way: str, options: argparse.Namespace) -> int:
    paths = [f"{options.bucket}/{name}" for name in options.names]
    if way == "millrace.fs cat":
        from millrace import fs

        system = (fs.S3FileSystem if options.scheme == "s3" else fs.GSFileSystem)()
        return sum(map(len, system.cat(paths).values()))
    if way == "millrace mount":
        with ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(lambda name: from_mount(Path(options.mount, name)), options.names))
    if way == "data set":
        import millrace

        dataset = millrace.IterableDataset(f"{options.scheme}://{options.bucket}/")
        return sum(len(lease) for batch in dataset.batches(BATCH) for lease in batch)
    return sum(map(len, peer(options.scheme).cat(paths).values()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", required=True)
    parser.add_argument("--scheme", choices=["gs", "s3"], required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--mount", default="")
    options = parser.parse_args()
    options.names = [f"obj-{number:09}" for number in range(options.count)]
    read: Callable[[str, argparse.Namespace], int] = one if options.count == 1 else many
    read(options.way, options)  # imports, connections, a supervisor
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        size = read(options.way, options)
        print(json.dumps({"bytes": size, "files": options.count, "wall_s": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
