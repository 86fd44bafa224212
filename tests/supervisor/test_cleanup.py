"""What a run that was killed has left in a store, and the runs after it on the same machine."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

from tests.serve import StartServe, wait_for, workers
from tests.stores import put, temporary

from .test_write_workers import MIB, PART, StartSaver, StartStore, Store, config, kill, saver, store

__all__ = ["config", "saver", "store"]  # fixtures


def uploads(bucket: Store) -> list[str]:
    """Names of the unfinished multipart uploads."""
    with urllib.request.urlopen(f"{bucket.server.url}/bucket?uploads") as reply:
        return re.findall("<Key>(.*?)</Key>", reply.read().decode())


def test_what_a_killed_run_left_goes_with_the_next_save(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver
) -> None:
    """However short the next run is: nobody of the dead one can go on with anything, so nothing has to be waited for."""
    bucket = store()
    put(bucket.server.url, "bucket", "old")
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    for number, name in enumerate(["old", "new"]):
        trainer.ok("open", number, f"gs://bucket/{name}", 0, 1)
        trainer.ok("write", number, 2 * PART)
    wait_for(lambda: len(temporary(bucket.server.url, "bucket")) == 2, "no part of it was stored")
    wait_for(lambda: uploads(bucket) == ["new"], "no upload was begun")
    one.process.send_signal(signal.SIGSTOP)  # so that nobody is started again, and nobody takes anything back
    for pid in workers(one.process.pid, "write"):
        kill(pid)
    one.kill()
    trainer.kill()
    assert uploads(bucket) == ["new"] and temporary(bucket.server.url, "bucket")

    two = serve(config, **bucket.env)
    trainer = saver(two.socket)
    assert trainer.save(0, "gs://bucket/other", MIB) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done"
    assert two.stop() == 0
    assert uploads(bucket) == [] and temporary(bucket.server.url, "bucket") == []
    assert sorted(bucket.names()) == ["old", "other"]
