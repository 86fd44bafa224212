"""Times next() of an IterableDataset for samples that are there: it lets a window fill, then takes half of it."""

from __future__ import annotations

import argparse
import json
import sys
import time

import millrace

WINDOW, TURNS, PAUSE_S = 256, 40, 0.1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", required=True)
    options = parser.parse_args()
    samples = iter(millrace.IterableDataset(f"gs://{options.bucket}/", window=WINDOW))
    next(samples)
    print("ready", flush=True)
    sys.stdin.readline()
    took: list[int] = []
    for _ in range(TURNS):
        time.sleep(PAUSE_S)
        for _ in range(WINDOW // 2):
            begun = time.perf_counter_ns()
            sample = next(samples)
            took.append(time.perf_counter_ns() - begun)
            del sample
    took.sort()
    p50, p99 = (took[len(took) * percent // 100] / 1000 for percent in (50, 99))
    print(json.dumps({"p50_us": p50, "p99_us": p99, "samples": len(took)}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
