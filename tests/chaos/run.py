"""python -m tests.chaos.run [--seed N] [--minutes M] [--deaths N] [--jobs N] [--store gs|s3]

make chaos MINUTES=60; README.md.

Exit status 0: nothing was lost, repeated, wrong or half. 1: something was; the seed and the folder that is kept with
all logs are printed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from pathlib import Path

from tests import forked
from tests.chaos.job import Job
from tests.chaos.scene import CHECKPOINTS, STORES, Monkey, Scene, summary
from tests.e2e.kill_history import NOTHING
from tests.stores import temporary

PATIENCE_S = 300  # for the jobs' last run, in peace


def chaos(
    folder: Path,
    seed: int,
    deaths: int = 1 << 60,
    minutes: float = 1e6,
    jobs: int = 3,
    objects: int = 300,
    epochs: int = 3,
    strikes_s: float = 8,
    workers: int | None = None,
    tidy: bool = True,
    store: str = STORES[0],
) -> Scene:
    """tidy: at last a training in peace, after which nothing of the dead may be left in the store."""
    rng = random.Random(seed)
    scene = Scene(folder, deaths, time.monotonic() + 60 * minutes, epochs, workers, store=store)
    scene.runtime = folder / "runtime"
    scene.runtime.mkdir(mode=0o700)
    monkey = Monkey(scene, rng.randrange(1 << 30), strikes_s, minutes_long=tidy)
    try:
        monkey.begin(objects, rng.randrange(1 << 30))
        all_jobs = [Job(scene, number, rng.randrange(1 << 30)) for number in range(jobs)]
        threads = [threading.Thread(target=job.work, daemon=True) for job in all_jobs]
        for thread in threads:
            thread.start()
        monkey.live(all_jobs)
        for thread in threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                scene.violate(f"STUCK: {[job.doing for job in all_jobs]}")
        if tidy and not scene.wrong:
            in_peace(scene, all_jobs)
        halves = count_halves(scene)
        if halves:
            scene.violate(f"HALF: {halves} objects are not what a save wrote")
    except BaseException:
        scene.violate(traceback.format_exc())
    finally:
        monkey.close()
    return scene


def in_peace(scene: Scene, jobs: list[Job]) -> None:
    """Each job trains once to its end; then nothing that the dead have left is in the store."""
    scene.peace = True
    for job in jobs:
        job.train()
    deadline = time.monotonic() + PATIENCE_S
    try:
        while any(left := left_over(scene)):
            if time.monotonic() > deadline:
                scene.violate(f"left after a training in peace: {left}")
                return
            jobs[0].train()
            time.sleep(1)
    finally:
        for job in jobs:
            job.end_supervisor()
    scene.counts["left over after a run in peace"] = 0


def left_over(scene: Scene) -> list[object]:
    url = f"http://127.0.0.1:{scene.store_port}"
    left: list[object] = [*temporary(url, CHECKPOINTS), *temporary(url, scene.bucket)]
    with urllib.request.urlopen(f"{url}/{CHECKPOINTS}?uploads") as reply:
        left += [b"upload"] * reply.read().count(b"<UploadId>")
    return left


def count_halves(scene: Scene) -> int:
    """Objects of the checkpoints' bucket that are not named by any save."""
    url = f"http://127.0.0.1:{scene.store_port}"
    if scene.wrong:
        return 0
    with urllib.request.urlopen(f"{url}/storage/v1/b/{CHECKPOINTS}/o") as reply:
        names = [item["name"] for item in json.load(reply).get("items", [])]
    known = {name.removeprefix(f"{scene.checkpoints}/") for name in scene.history.saves}
    known.update(temporary(url, CHECKPOINTS))
    return len([name for name in names if name not in known and name != NOTHING])


def report(scene: Scene, seed: int, seconds: float) -> str:
    lines = ["  deaths by role:   " + said(scene.kills), "  stops by role:    " + said(scene.stops)]
    lines += ["  other strikes:    " + said(scene.others), "  seen:             " + said(scene.counts)]
    lost = sum(t.lost for t in scene.trainings) + sum("LOST" in text for text in scene.wrong)
    half = sum("HALF" in text for text in scene.wrong)
    wrong = sum(t.wrong for t in scene.trainings)
    repeated = sum(t.repeated for t in scene.trainings)
    lines.append(
        f"seed {seed}: {seconds:.0f} s, {summary(scene)}: {lost} lost, "
        f"{repeated} repeated, {wrong} wrong, {half} half, {len(scene.wrong)} violations"
    )
    return "\n".join(lines)


def said(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.chaos.run")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--deaths", type=int, default=None, help="deaths and stops after which it ends")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--strikes", type=float, default=8, help="a second")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    minutes = options.minutes if options.minutes else 1e6 if options.deaths else 5
    forked.preload("numpy", "torch.utils.data", "millrace", "millrace.checkpoint")
    folder = Path(tempfile.mkdtemp(prefix="millrace-chaos-"))
    print(f"seed {seed}, in {folder}", flush=True)
    begun = time.monotonic()
    rates = {"jobs": options.jobs, "strikes_s": options.strikes}
    scene = chaos(folder, seed, options.deaths or 1 << 60, minutes, **rates, store=options.store)
    print(report(scene, seed, time.monotonic() - begun))
    if scene.wrong:
        print(f"what was seen is kept: {folder}")
        (folder / "violations.txt").write_text("\n\n".join(scene.wrong))
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
