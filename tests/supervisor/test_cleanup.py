"""What a run that was killed has left in a store, and the runs after it on the same machine."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

from tests.serve import StartServe, Supervisor, kill_and_wait, wait_for, workers
from tests.stores import put, temporary
from tests.supervisor.saver import Saver

from .test_write_workers import MIB, PART, StartSaver, StartStore, Store, config, saver, store

__all__ = ["config", "saver", "store"]  # fixtures


def uploads(bucket: Store) -> list[str]:
    """Names of the unfinished multipart uploads."""
    with urllib.request.urlopen(f"{bucket.server.url}/bucket?uploads") as reply:
        return re.findall("<Key>(.*?)</Key>", reply.read().decode())


def kill_run(one: Supervisor, trainer: Saver) -> None:
    """All at once: nobody is started again, and nobody takes anything back."""
    one.process.send_signal(signal.SIGSTOP)
    kill_and_wait(*workers(one.process.pid, "write"))
    one.kill()
    trainer.kill()


def test_what_a_killed_run_left_goes_with_the_next_save(
    serve: StartServe, config: Path, store: StartStore, saver: StartSaver
) -> None:
    """Nobody of the dead one can go on with anything, so nothing is waited for."""
    bucket = store()
    put(bucket.server.url, "bucket", "old")
    one = serve(config, **bucket.env)
    trainer = saver(one.socket)
    for number, name in enumerate(["old", "new"]):
        trainer.ok("open", number, f"gs://bucket/{name}", 0, 1)
        trainer.ok("write", number, 2 * PART)
    wait_for(lambda: len(temporary(bucket.server.url, "bucket")) == 2, "no part of it was stored")
    wait_for(lambda: uploads(bucket) == ["new"], "no upload was begun")
    kill_run(one, trainer)
    assert uploads(bucket) == ["new"] and temporary(bucket.server.url, "bucket")

    two = serve(config, **bucket.env)
    trainer = saver(two.socket)
    assert trainer.save(0, "gs://bucket/other", MIB) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done"
    wait_for(lambda: uploads(bucket) == [] and temporary(bucket.server.url, "bucket") == [], "it is still there")
    assert two.stop() == 0
    assert sorted(bucket.names()) == ["old", "other"]


def test_five_jobs_with_one_name(serve: StartServe, config: Path, store: StartStore, saver: StartSaver) -> None:
    """Two die, one has a dead write worker and a stopped supervisor, two live: a sixth one takes away what the dead
    have left, and nothing else."""
    config.write_text(config.read_text().replace("workers = 2", "workers = 1"))
    bucket = store()
    jobs = []
    for _ in range(5):
        one = serve(config, **bucket.env)
        trainer = saver(one.socket)
        trainer.ok("open", 0, "gs://bucket/same", 0, 1)
        trainer.ok("write", 0, 2 * PART)
        jobs.append((one, trainer))
    wait_for(lambda: uploads(bucket) == ["same"] * 5, "not all have begun")
    for one, trainer in jobs[:2]:
        kill_run(one, trainer)
    stopped = jobs[2][0]
    stopped.process.send_signal(signal.SIGSTOP)
    kill_and_wait(*workers(stopped.process.pid, "write"))

    sixth = serve(config, **bucket.env)
    trainer = saver(sixth.socket)
    assert trainer.save(0, "gs://bucket/other", MIB) == ["sealed"]
    assert trainer.ok("wait", 0)[0] == "done"
    wait_for(lambda: len(uploads(bucket)) <= 3, "the dead's are still there")
    assert sixth.stop() == 0
    assert uploads(bucket) == ["same"] * 3

    stopped.process.send_signal(signal.SIGCONT)
    for _, trainer in jobs[2:]:
        assert trainer.ok("seal", 0) == ["sealed"]
        assert trainer.ok("wait", 0)[0] == "done"
    assert uploads(bucket) == []
