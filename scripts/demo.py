"""`make demo`: an object store with 6,296 icons, two ranks that train on them, a stop in mid-epoch, and a resume.

Leaves throughput.png in the output folder. Ends its store and deletes its copy of the icons however it ends.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
ICONS = Path("/usr/share/icons/oxygen")


def icons() -> list[Path]:
    """The package's regular files below ICONS; its links are the same pictures under other names."""
    listed = subprocess.run(["dpkg", "-L", "oxygen-icon-theme"], capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines() if line.endswith(".png") and line.startswith(f"{ICONS}/base/")]
    return [path.relative_to(ICONS) for path in paths if not path.is_symlink()]


def fill(bucket: Path) -> int:
    names = icons()
    for folder in {name.parent for name in names}:
        (bucket / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(ICONS / name, bucket / name)
    return len(names)


def start_store(root: Path) -> tuple[subprocess.Popen[str], str]:
    """The store on a free port, and its address; it ends with this process at the latest."""
    command = ["millrace-devstore", "--root", str(root), "--listen", "127.0.0.1:0", "--exit-with-parent"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"http://\S+", line)
    if address is None:
        process.kill()
        sys.exit(f"demo: the store did not start (exit status {process.wait()}): {line}")
    return process, address[0]


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(options: argparse.Namespace, *arguments: str) -> None:
    command = ["millrace", "run", "-c", "configs/demo.toml", "--", "torchrun", "--standalone", "--nproc-per-node", "2"]
    command += ["examples/train_icons.py", "--out", str(options.out), "--epochs", str(options.epochs), *arguments]
    print(" ".join(command), flush=True)
    process = subprocess.Popen(command, text=True)
    try:
        status = process.wait()
    finally:
        end(process)
    if status:
        sys.exit(f"demo: the training ended with exit status {status}")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--stop-after", type=int, default=444, help="steps; an epoch has 99, so 444 is in the fifth")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    options = parser.parse_args()

    os.chdir(ROOT)
    build = ROOT / "build" / "release"
    os.environ["PATH"] = os.pathsep.join([str(build / "bin"), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    os.environ["PYTHONPATH"] = str(build / "python")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns when nobody has decided
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)

    store_folder = options.out / "store"
    store = None
    try:
        say("an object store with the icons of oxygen-icon-theme")
        shutil.rmtree(store_folder, ignore_errors=True)
        count = fill(store_folder / "icons")
        store, address = start_store(store_folder)
        os.environ["STORAGE_EMULATOR_HOST"] = address
        print(f"{count:,} objects at {address}")
        say(f"training on 2 ranks; it stops after step {options.stop_after}, in the middle of an epoch")
        train(options, "--stop-after", str(options.stop_after))
        say("the same command again, from the saved state")
        train(options, "--resume")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        if store is not None:
            end(store)
        shutil.rmtree(store_folder, ignore_errors=True)


if __name__ == "__main__":
    main()
