"""torch's DCP round trip by millrace.dcp: 4 ranks save, 2 and 3 load; async_save ten times in a row under training.

python -m tests.python.show_dcp     (after `make build`; ends with 1 where something is not equal)
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.conftest import BIN
from tests.python import ranks
from tests.python.test_dcp import CONFIG, start_store
from tests.serve import start_supervisor

SAVES = 10


def main() -> int:
    store = start_store()
    with tempfile.TemporaryDirectory() as folder:
        supervisor = start_supervisor(BIN / "millrace", Path(folder), store.url, CONFIG)
        around = {"MILLRACE_SOCKET": str(supervisor.socket), "STORAGE_EMULATOR_HOST": store.url}
        began = time.monotonic()
        ranks.good(4, ranks.save_sharded, "gs://bkt/round", 5, 2, **around)
        equal = [all(ranks.good(count, ranks.load_sharded, "gs://bkt/round", 5, **around)) for count in (2, 3)]
        saved = ranks.good(2, ranks.async_saves, "gs://bkt/async", SAVES, {}, **around)
        took = time.monotonic() - began
        status = supervisor.stop()
    store.stop()
    good = [sum(of_rank) for of_rank in saved]
    print(
        f"dcp: saved by 4 ranks, loaded by 2 ({'equal' if equal[0] else 'NOT EQUAL'}) and by 3 "
        f"({'equal' if equal[1] else 'NOT EQUAL'}); async_save {SAVES} times in a row under training, loaded again: "
        f"{min(good)} of {SAVES} equal on every rank; supervisor's exit status {status}; {took:.1f} s"
    )
    return 0 if all(equal) and good == [SAVES] * len(good) and status == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
