"""Listings of many objects: time, requests, CPU and bytes an object by number of list workers; and opening the result.

    .venv/bin/python -m bench.listing_scale [--objects 10000000] [--shapes flat,hashes] [--workers 1,2,4]

Objects are made up by millrace-devstore (--synthetic), whose own CPU is not counted. CPU is that of the supervisor and
its list workers, putting the parts together and saving the index included. Prints one Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.process import devstore
from bench.systems import BIN

URI = "gs://bench/"


def made_up(shape: str, objects: int, page_size: int, latency_ms: float) -> list[str]:
    """Flags of a development store with objects whose names have this shape."""
    what = f"bench:{objects}:100" if shape == "flat" else f"bench:{shape}:{objects}:100"
    return ["--synthetic", what, "--page-size", str(page_size), "--latency-ms", str(latency_ms)]


def measured(command: list[str], env: dict[str, str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds of the command and all its children, standard error."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        pid = subprocess.Popen(command, env=env, stderr=errors, stdout=subprocess.DEVNULL).pid
        _, status, usage = os.wait4(pid, 0)
        errors.seek(0)
        text = errors.read()
    assert status == 0, text
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, text


def one(endpoint: str, objects: int, page_size: int, workers: int, folder: Path) -> dict[str, Any]:
    config, index = folder / "c.toml", folder / "index.mri"
    text = f'[gcs]\nendpoint = "{endpoint}"\nauth = "anonymous"\n[list]\nworkers = {workers}\ncache_files = 0\n'
    config.write_text(text)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    wall, cpu, log = measured([str(BIN / "millrace"), "index", URI, "-o", str(index), "-c", str(config)], env)
    listed = re.search(r"listed in ([0-9.]+) s by (\d+) requests", log)
    assert listed, log
    described = subprocess.run([str(BIN / "millrace"), "index", "--json", str(index)], capture_output=True, check=True)
    facts = json.loads(described.stdout)
    config.write_text(text + f'[dataset.x]\nuri = "{URI}"\nindex = "{index}"\n')
    opened = re.search(r"opened in ([0-9.]+) s", open_index(config, env))
    assert opened
    pages = -(-facts["objects"] // page_size)
    return {
        "objects": facts["objects"],
        "workers": workers,
        "wall_s": wall,
        "list_s": float(listed[1]),
        "requests": int(listed[2]),
        "pages": pages,
        "cpu_us": cpu / facts["objects"] * 1e6,
        "index_bytes": facts["image_bytes"] / facts["objects"],
        "file_bytes": facts["file_bytes"] / facts["objects"],
        "open_s": float(opened[1]),
    }


def open_index(config: Path, env: dict[str, str]) -> str:
    """A supervisor that opens the saved index; its log up to there."""
    command = [str(BIN / "millrace"), "serve", "-c", str(config)]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "opened in" in line or "error" in line:
                return line
    finally:
        process.terminate()
        process.communicate()
    raise AssertionError("the supervisor ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--shapes", default="flat")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--page-size", type=int, default=1000)
    parser.add_argument("--latency-ms", type=float, default=0)
    options = parser.parse_args()
    heads = ["names", "objects", "list workers", "listing, s", "requests (least)", "CPU us an object"]
    heads += ["bytes an object: index / file", "opening, s"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|", flush=True)
    for shape in options.shapes.split(","):
        with devstore(*made_up(shape, options.objects, options.page_size, options.latency_ms)) as endpoint:
            for workers in map(int, options.workers.split(",")):
                with tempfile.TemporaryDirectory(prefix="millrace-listing-") as folder:
                    r = one(endpoint, options.objects, options.page_size, workers, Path(folder))
                cells = [shape, f"{r['objects']:,}", workers, f"{r['list_s']:.1f}"]
                cells += [f"{r['requests']:,} ({r['pages']:,})", f"{r['cpu_us']:.2f}"]
                cells += [f"{r['index_bytes']:.1f} / {r['file_bytes']:.1f}", f"{r['open_s']:.2f}"]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
