"""`make demo`: an object store with 6,296 icons, two ranks that train on them, a stop in mid-epoch, and a resume.

With `--store s3` the icons are in tar shards, and the state is saved in the store. Leaves throughput.png in the output
folder. Ends its store and deletes its copy of the icons however it ends.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
ICONS = Path("/usr/share/icons/oxygen")
STORES = {"gs": "demo", "s3": "demo-s3"}  # and the name of the configuration and of the output folder
SHARDS = 21  # of 300 samples each; configs/demo-s3.toml names them


def icons() -> list[Path]:
    """The package's regular files below ICONS; its links are the same pictures under other names."""
    listed = subprocess.run(["dpkg", "-L", "oxygen-icon-theme"], capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines() if line.endswith(".png") and line.startswith(f"{ICONS}/base/")]
    return [path.relative_to(ICONS) for path in paths if not path.is_symlink()]


def copy(names: list[Path], bucket: Path) -> None:
    """An object for each icon."""
    for folder in {name.parent for name in names}:
        (bucket / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(ICONS / name, bucket / name)


def pack(names: list[Path], folder: Path) -> None:
    """A sample of a tar shard for each icon: the picture, and its name as a text.

    Its key is a number, since a key ends at the first dot, and icons' names have dots.
    """
    folder.mkdir(parents=True)
    samples = list(enumerate(names))
    for shard in range(SHARDS):
        first, end = (len(samples) * i // SHARDS for i in (shard, shard + 1))
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for key, name in samples[first:end]:
                add(tar, f"{key:06}.png", (ICONS / name).read_bytes())
                add(tar, f"{key:06}.txt", str(name).encode())


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def fill(store: str, bucket: Path) -> str:
    """Puts the icons there, and says what there is."""
    names = icons()
    if store == "gs":
        copy(names, bucket)
        return f"{len(names):,} objects"
    pack(names, bucket / "shards")
    return f"{len(names):,} samples in {SHARDS} tar shards"


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


def use_store(store: str, address: str) -> None:
    """Sends what starts from here on to this store. No AWS setting of the user's own is to lead to another one."""
    if store == "gs":
        os.environ["STORAGE_EMULATOR_HOST"] = address
        return
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_ENDPOINT_URL_S3"] = address
    os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "demo"  # this store takes any
    os.environ["AWS_REGION"] = "us-east-1"


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(options: argparse.Namespace, *arguments: str) -> None:
    configuration = f"configs/{STORES[options.store]}.toml"
    command = ["millrace", "run", "-c", configuration, "--", "torchrun", "--standalone", "--nproc-per-node", "2"]
    command += ["examples/train_icons.py", "--out", str(options.out), "--epochs", str(options.epochs), *arguments]
    if options.store == "s3":
        command += ["--state", "s3://icons/checkpoints/state.pt"]
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
    parser.add_argument("--store", choices=STORES, default="gs", help="gs: an object an icon; s3: tar shards")
    parser.add_argument("--out", type=Path, help="default: out/demo, with s3 out/demo-s3")
    options = parser.parse_args()
    options.out = options.out or Path("out", STORES[options.store])

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
        filled = fill(options.store, store_folder / "icons")
        store, address = start_store(store_folder)
        use_store(options.store, address)
        print(f"{filled} at {address}")
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
