"""The memory divided anew: whoever has mapped the arenas of the last division must not read the new one's samples
there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.serve import StartServe, Supervisor, wait_for

from .test_workers import MakeProgram, shm_of, with_worker

__all__ = ["with_worker"]  # a fixture

ARENA_BYTES = 4 << 20
LARGE = 1 << 20  # more than a sixteenth of the arena


class Run(NamedTuple):
    one: Supervisor
    client: Any
    broken: Path  # while it exists no fetch worker can start


@pytest.fixture
def run(serve: StartServe, config: Path, tmp_path: Path, millrace_bin: Path, ring: Any) -> Run:
    """A supervisor with one arena, and a process that has read samples out of it and mapped it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    broken = folder / "broken"
    shutil.copy(millrace_bin, folder / "millrace")
    worker = folder / "millrace-worker"
    worker.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            [ "$1" = fetch ] && [ -e {broken} ] && exit 2
            exec {millrace_bin.with_name("millrace-worker")} "$@"
        """)
    )
    worker.chmod(0o755)
    config.write_text(
        config.read_text().replace("8MiB", str(ARENA_BYTES)) + 'backing = "memfd"\n[fetch]\nworkers = 1\n'
    )
    one = serve(config, program=folder / "millrace")
    return Run(one, ring(one), broken)


def fill(folder: Path, count: int, size: int, tag: int) -> str:
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:03}").write_bytes(bytes([tag + i]) * size)
    return f"file://{folder}/"


def listed(run: Run, uri: str) -> int:
    number = int(run.client.open_dataset(uris=(uri,))[0])
    wait_for(lambda: run.client.dataset_listed(number)[0], "never listed")
    return number


def open_lane(run: Run, number: int) -> Any:
    wait_for(run.client.ready, "no arenas")
    return run.client.open_lane(number, run.client.index(number), 8, 0)[0]


def read(run: Run, number: int, count: int) -> list[bytes]:
    """The objects of a data set, in the order of their names."""
    lane = open_lane(run, number)
    for i in range(count):
        lane.feed(i, i)
    found = [bytes(lane.next()) for _ in range(count)]
    lane.close()
    return found


def read_range(run: Run, uri: str, size: int) -> bytes:
    """An object as a checkpoint reader reads it."""
    fd = os.memfd_create("names", os.MFD_CLOEXEC)
    os.write(fd, f"{uri}\n".encode())
    number = wait_for(lambda: run.client.open_ranged(fd, 1 << 16), "no number")
    os.close(fd)
    wait_for(lambda: run.client.dataset_listed(number)[0], "never looked up")
    reader = run.client.range_reader(number, run.client.index(number), 0, uri)
    data = bytes(reader.read(size, 0))
    reader.close()
    run.client.close_dataset(number)
    return data


def divide_anew(run: Run, tmp_path: Path) -> None:
    """Data sets up to now fail with their arenas, which could not be given a larger reserve."""
    wait_for(lambda: run.one.stat()["lanes"] == [], "a lane stays")
    run.broken.touch()
    number = int(run.client.open_dataset(uris=(fill(tmp_path / "large", 1, LARGE, 0),))[0])
    with pytest.raises(OSError, match="fetch worker 0 cannot work"):
        wait_for(lambda: run.client.dataset_listed(number)[0], "not given up")
    run.broken.unlink()


def mapped_arenas() -> int:
    """Arenas of any division that this process maps."""
    sizes = re.findall(r"(?m)^([0-9a-f]+)-([0-9a-f]+) r--s .*/memfd:millrace", Path("/proc/self/maps").read_text())
    return sum(int(end, 16) - int(start, 16) == ARENA_BYTES for start, end in sizes)


def test_arenas_that_were_divided_anew_are_mapped_anew(run: Run, tmp_path: Path) -> None:
    first = fill(tmp_path / "first", 10, 3000, 1)
    assert read(run, listed(run, first), 10) == [bytes([1 + i]) * 3000 for i in range(10)]
    divide_anew(run, tmp_path)
    third = fill(tmp_path / "third", 20, 5000, 101)
    wrong = [i for i, data in enumerate(read(run, listed(run, third), 20)) if data != bytes([101 + i]) * 5000]
    assert not wrong, f"{len(wrong)} of 20 files have wrong bytes"
    assert mapped_arenas() == 1, "the arena that nobody reads any more stays mapped"


def test_a_range_is_read_in_the_arenas_of_its_division(run: Run, tmp_path: Path) -> None:
    size = 200_000
    first = fill(tmp_path / "first", 2, size, 1)
    assert read_range(run, first + "001", size) == bytes([2]) * size
    divide_anew(run, tmp_path)
    third = fill(tmp_path / "third", 2, size, 101)
    assert read_range(run, third + "001", size) == bytes([102]) * size
    assert mapped_arenas() == 1


def test_a_full_dev_shm_is_left_for_another_division(
    serve: StartServe, config: Path, tmp_path: Path, millrace_bin: Path, ring: Any
) -> None:
    """When the reserve is to grow: whoever has mapped the arenas must not look for the next samples there."""
    program = tmp_path / "millrace"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(shm_of("64g"))} {millrace_bin} "$@"\n')
    program.chmod(0o755)
    config.write_text('[memory]\narena_bytes = "auto"\n[fetch]\nworkers = 8\n')
    one = serve(config, program=program)
    run = Run(one, ring(one), tmp_path)
    small = listed(run, fill(tmp_path / "small", 10, 3000, 1))
    assert read(run, small, 10) == [bytes([1 + i]) * 3000 for i in range(10)]
    assert re.search(r" r--s .*/dev/shm/", Path("/proc/self/maps").read_text()), "they are to be there at first"
    enter = ["nsenter", "-t", str(one.process.pid), "-U", "-m", "--preserve-credentials"]
    used = int(subprocess.check_output([*enter, "df", "-B1", "--output=used", "/dev/shm"], text=True).split()[1])
    subprocess.run([*enter, "mount", "-o", f"remount,size={used}", "/dev/shm"], check=True)
    wait_for(lambda: one.stat()["lanes"] == [], "a lane stays")
    size = int(one.stat()["memory"]["reserve_bytes"]) + (1 << 20)
    large = listed(run, fill(tmp_path / "large", 2, size, 101))
    assert "memfd instead" in one.log.read_text()
    assert [set(data) for data in read(run, large, 2)] == [{101}, {102}]
    assert read(run, small, 10) == [bytes([1 + i]) * 3000 for i in range(10)]


def test_a_reload_does_not_start_who_was_to_end(
    serve: StartServe, config: Path, tmp_path: Path, millrace_bin: Path, with_worker: MakeProgram, ring: Any
) -> None:
    """Of an abandoned division, whose workers end before there is another one."""
    busy, broken = tmp_path / "busy", tmp_path / "broken"
    program = with_worker(
        f"""\
            #!/bin/sh
            if [ "$1" = fetch ] && [ -e {broken} ]; then
                [ "$3" = 0 ] && exit 2
                touch {busy}
                while [ -e {busy} ]; do sleep 0.1; done
                exit 0
            fi
            exec {millrace_bin.with_name("millrace-worker")} "$@"
        """
    )
    config.write_text(config.read_text() + "[fetch]\nworkers = 2\n")
    broken.touch()
    one = serve(config, program=program)
    run = Run(one, ring(one), broken)
    wait_for(lambda: one.stat()["datasets"][0]["state"] == "failed", "not given up")
    wait_for(busy.exists, "worker 1 never started")
    config.write_text(config.read_text() + "connections = 3\n")
    one.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "applied: fetch.connections" in one.log.read_text(), one.log.read_text)
    broken.unlink()
    busy.unlink()
    assert len(read(run, listed(run, fill(tmp_path / "more", 3, 100, 1)), 3)) == 3
