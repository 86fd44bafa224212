"""20,000 objects of 0 B to 1 MiB with odd names, read plain, composed and composed with small limits: the same bytes.

python -m tests.e2e.compose_equal [OBJECTS]         (about a minute and 1.5 GB of disk)
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import BIN, start_devstore
from tests.e2e.test_compose import ODD, READER
from tests.serve import start_supervisor
from tests.stores import create_bucket, put, temporary

LARGEST = 1 << 20
WAYS = {
    "never": '[fetch]\ncompose = "never"\n',
    "always": '[fetch]\ncompose = "always"\n',
    "small limits": '[fetch]\ncompose = "always"\ncompose_max_bytes = 300000\ncompose_max_objects = 25\n',
}


def make(url: str, count: int) -> dict[str, str]:
    """Sizes are 0, 1 MiB, and between them evenly on a logarithmic scale."""
    rng = random.Random(5)
    pool = rng.randbytes(2 * LARGEST)
    digests: dict[str, str] = {}
    create_bucket(url, "odd")
    for i in range(count):
        size = 0 if i % 50 == 0 else LARGEST if i % 1000 == 1 else int(math.exp(rng.uniform(0, math.log(LARGEST))))
        start = rng.randrange(LARGEST)
        name = f"{rng.choice(ODD)}-{i:05}"
        data = pool[start : start + size]
        digests[name] = hashlib.sha256(data).hexdigest()
        put(url, "odd", name, data)
    return digests


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    folder = Path(tempfile.mkdtemp())
    (folder / "store").mkdir()
    (folder / "runtime").mkdir(mode=0o700)
    server = start_devstore("--root", folder / "store")
    bad = False
    try:
        wanted = make(server.url, count)
        for way, toml in WAYS.items():
            supervisor = start_supervisor(
                BIN / "millrace", folder, server.url, toml, XDG_RUNTIME_DIR=str(folder / "runtime")
            )
            try:
                begun = time.monotonic()
                reader = subprocess.run(
                    [sys.executable, READER, "gs://odd/"], env=supervisor.environment, capture_output=True, text=True
                )
                seconds = time.monotonic() - begun
                assert reader.returncode == 0, reader.stderr
                time.sleep(0.2)
                operations = supervisor.stat()["operations"]
            finally:
                assert supervisor.stop() == 0
            same = json.loads(reader.stdout)["objects"] == wanted
            left = len(temporary(server.url, "odd"))
            bad |= not same or left > 0
            print(
                f"compose {way}: {'the same' if same else 'OTHER'} bytes of {count} objects in {seconds:.1f} s, "
                f"{operations['composites']} composed objects of {operations['objects_a_compose']:.1f}, {left} left"
            )
    finally:
        server.stop()
        shutil.rmtree(folder)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
