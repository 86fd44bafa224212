"""Processes: private supervisors, forks, supervisors and parents that die, and what 100 epochs leave behind."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data

import millrace
from tests.conftest import BIN, ROOT, StartDevstore, our_processes
from tests.python.conftest import CONFIG, Folder, MakeFolder
from tests.python.helpers import keep, name_of, pair
from tests.serve import DEADLINE_S, Supervisor, alive, start_supervisor, wait_for


def start(code: str, *arguments: str, within: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*within, sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def result(process: subprocess.Popen[str], status: int = 0) -> str:
    out, errors = process.communicate(timeout=100)
    assert process.returncode == status, errors
    return out


def supervisors() -> list[int]:
    """Without their children that have not become another program yet."""
    found = [pid for pid, line in our_processes().items() if " serve " in line]
    return [pid for pid in found if parent_of(pid) not in found]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


# ---- a private supervisor ----


def test_the_first_data_set_starts_one_for_the_process(hundred: Folder) -> None:
    one = millrace.IterableDataset(hundred.uri, transform=pair)
    two = millrace.MapDataset(hundred.uri, transform=pair)
    assert len(supervisors()) == 1
    assert dict(sample for batch in one.batches(8) for sample in batch) == hundred.contents
    loader = millrace.DataLoader(one, batch_size=8, num_workers=2, collate_fn=keep)
    assert dict(sample for batch in loader for sample in batch) == hundred.contents
    assert two[5] == list(hundred.contents.items())[5]
    del one, two, loader  # and it ends with them, as the fixture checks


def test_it_ends_with_its_process_however_that_ends(hundred: Folder) -> None:
    code = """
        import sys, millrace
        ds = millrace.IterableDataset(sys.argv[1])
        batch = next(iter(ds.batches(8)))
        print(len(batch), flush=True)
        sys.stdin.read()
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = start(code, hundred.uri)
        assert process.stdout is not None and process.stdout.readline() == "8\n"
        assert len(supervisors()) == 1
        process.send_signal(number)
        result(process, -number)
        wait_for(lambda: not supervisors())


def test_the_ranks_of_a_node_share_one(hundred: Folder, tmp_path: Path) -> None:
    code = """
        import sys, time, millrace
        ds = millrace.IterableDataset(sys.argv[1], transform=lambda lease: lease.name, shuffle=True)
        names = [name for batch in ds.batches(8) for name in batch]
        print(ds._source.connection().client.pid, *names, flush=True)
        sys.stdin.read()
    """
    job = {"LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": f"test-{os.getpid()}"}
    ranks = [start(code, hundred.uri, RANK=str(rank), **job) for rank in range(3)]
    outs = []
    for process in ranks:
        assert process.stdout is not None
        outs.append(process.stdout.readline().split())
    for process in ranks:  # the supervisor keeps the standard error of the rank that started it: none ends first
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    errors = "".join(process.communicate(timeout=100)[1] for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0, 0], errors
    assert len({out[0] for out in outs}) == 1
    names = [name for out in outs for name in out[1:]]
    assert len(names) == len(set(names)) == 99 or sorted(names) == sorted(hundred.names)
    assert errors.count("millrace run") == 1


def states(base: Path) -> list[str]:
    """Of the supervisors whose run folders lie there."""
    commands: list[list[str | Path]] = [
        [BIN / "millrace", "stat", "--json", "--socket", socket] for socket in base.glob("run-*/socket")
    ]
    done = [subprocess.run(command, capture_output=True, timeout=DEADLINE_S) for command in commands]
    return sorted(json.loads(each.stdout)["state"] for each in done if each.returncode == 0)


def test_a_job_that_is_started_again_while_its_last_save_goes_on(
    hundred: Folder, tmp_path: Path, devstore: StartDevstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks have died, and while their supervisor saves, torchrun's next attempt has another one."""
    (tmp_path / "root" / "bkt").mkdir(parents=True)
    store = devstore("--root", tmp_path / "root")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    job = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "again"}
    code = """
        import os, signal, sys, millrace
        from millrace import checkpoint
        print(len(millrace.MapDataset(sys.argv[1])), flush=True)
        file = checkpoint.writer(sys.argv[2])
        file.write(bytes(1 << 20))
        file.close(wait=False)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    store.process.send_signal(signal.SIGSTOP)
    try:
        for count, name in enumerate(("first", "second"), 1):
            with start(code, hundred.uri, f"gs://bkt/{name}", **job) as process:
                assert process.wait(DEADLINE_S) == -signal.SIGKILL
                assert process.stdout is not None and process.stdout.read() == "100\n"
            wait_for(lambda: states(tmp_path / "millrace") == ["draining"] * count)  # noqa: B023
    finally:
        store.process.send_signal(signal.SIGCONT)
    wait_for(lambda: not any((tmp_path / "millrace").glob("run-*")))
    assert {path.name for path in (tmp_path / "root" / "bkt").glob("[!.]*")} == {"first", "second"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
@pytest.mark.parametrize("job", [{}, {"LOCAL_WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1"}])
def test_containers_that_share_the_folder_of_run_folders(folder: MakeFolder, job: dict[str, str]) -> None:
    """Each is process 1 of its own, of the same job or of another."""
    code = "import sys, millrace; print(len(millrace.MapDataset(sys.argv[1])), flush=True); sys.stdin.read()"
    uri = folder(3).uri
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    each = [start(code, uri, within=inside, **job) for _ in range(2)]
    try:
        for process in each:
            assert process.stdout is not None and process.stdout.readline() == "3\n"
    finally:
        for process in each:
            result(process)


def test_a_start_removes_the_folders_of_the_dead_alone(
    hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code = """
        import sys, millrace
        ds = millrace.IterableDataset(sys.argv[1])
        print(ds._source.connection().client.pid, ds._source._path, flush=True)
        sys.stdin.read()
    """
    jobs, sockets = [], []

    def begin() -> int:
        jobs.append(start(code, hundred.uri))
        assert jobs[-1].stdout is not None
        pid, socket = jobs[-1].stdout.readline().split()
        sockets.append(Path(socket))
        return int(pid)

    killed = begin()
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in our_processes())
    begin()
    begin()
    assert [socket.exists() for socket in sockets] == [False, True, True]
    for job in jobs:
        result(job)
    wait_for(lambda: not any((tmp_path / "millrace").iterdir()))


def test_not_in_a_data_loader_worker(hundred: Folder) -> None:
    loader: Any = torch.utils.data.DataLoader([0], num_workers=1, collate_fn=MakeDataset(hundred.uri))  # type: ignore[arg-type]
    with pytest.raises(millrace.Error, match="main process"):
        list(loader)


class MakeDataset:
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __call__(self, samples: list[Any]) -> int:
        return len(millrace.IterableDataset(self.uri))


def test_no_program_to_start(hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace import _supervisor

    monkeypatch.setattr(_supervisor, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BIN", str(tmp_path))
    with pytest.raises(millrace.Error, match="MILLRACE_BIN"):
        millrace.IterableDataset(hundred.uri)


def test_a_private_supervisor_that_cannot_start(
    hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.toml").write_text("[memory]\narena_byte = 3\n")
    monkeypatch.setenv("MILLRACE_CONFIG", str(tmp_path / "bad.toml"))
    with pytest.raises(millrace.Error, match=r"MILLRACE_CONFIG: .*bad.toml: line 2: unknown key 'arena_byte'"):
        millrace.IterableDataset(hundred.uri)


def test_a_run_folder_that_others_may_enter(hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "millrace").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(PermissionError, match="0700"):
        millrace.IterableDataset(hundred.uri)


def test_no_folder_for_run_folders(hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nothing"))
    with pytest.raises(millrace.Error, match=r"cannot make the run folder .*nothing.*set XDG_RUNTIME_DIR"):
        millrace.IterableDataset(hundred.uri)


def test_nobody_at_the_socket(hundred: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SOCKET", str(tmp_path / "nobody"))
    with pytest.raises(millrace.SupervisorGone, match="nobody"):
        millrace.IterableDataset(hundred.uri)
    monkeypatch.setenv("MILLRACE_SOCKET", "/" + "x" * 200)
    with pytest.raises(ValueError, match="socket path"):
        millrace.IterableDataset(hundred.uri)


# ---- forks ----


def test_a_forked_child_connects_by_itself(socket: str, hundred: Folder) -> None:
    ds = millrace.IterableDataset(hundred.uri, transform=name_of)
    parents = iter(ds.batches(8))
    first = next(parents)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        seen = pool.map(names_of, [ds, ds])
    assert seen == [hundred.names, hundred.names]
    assert first + [name for batch in parents for name in batch] == hundred.names


def names_of(ds: millrace.IterableDataset) -> list[str]:
    return [name for batch in ds.batches(8) for name in batch]


def test_an_inherited_iteration_is_an_error_in_the_child(socket: str, hundred: Folder) -> None:
    batches = iter(millrace.IterableDataset(hundred.uri, transform=name_of).batches(8))
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            next(batches)
            os._exit(1)
        except ValueError as error:
            os._exit(0 if "fork" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len([name for batch in batches for name in batch]) == 92


def test_a_pickle_is_small_and_holds_no_connection(socket: str, hundred: Folder) -> None:
    listed = millrace.MapDataset.from_objects([f"file://{name}" for name in hundred.names], transform=pair)
    assert listed[3] == list(hundred.contents.items())[3]
    for ds in (listed, millrace.IterableDataset(hundred.uri, transform=pair)):
        assert len(pickle.dumps(ds)) < 1500
    assert pickle.loads(pickle.dumps(listed))[3] == listed[3]


# ---- deaths ----


@pytest.fixture
def slow(
    millrace_bin: Path, tmp_path: Path, devstore: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Supervisor]]:
    """A bucket that takes its time, so that a loop over it waits nearly always."""
    store = devstore("--synthetic", "slow:2000:1000", "--latency-ms", "300")
    supervisor = start_supervisor(millrace_bin, tmp_path, store.url, CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    yield "gs://slow/", supervisor
    supervisor.stop()


def wait_for_lanes(supervisor: Supervisor, count: int) -> None:
    """Until that many readers wait for their first batch, which takes the slow bucket a while."""
    wait_for(lambda: sum(lane["filling"] > 0 for lane in supervisor.stat()["lanes"]) == count, "nobody reads")


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_supervisor_is_named(slow: tuple[str, Supervisor], workers: int) -> None:
    uri, supervisor = slow
    ds = millrace.IterableDataset(uri, transform=name_of, window=4)
    loader = millrace.DataLoader(ds, batch_size=2, num_workers=workers, collate_fn=keep)
    steps = iter(loader)
    for _ in range(4):
        next(steps)
    supervisor.process.kill()
    supervisor.process.wait()
    with pytest.raises(millrace.SupervisorGone, match=rf"\(pid {supervisor.process.pid}\) has ended"):
        list(steps)
    with pytest.raises(millrace.SupervisorGone):
        iter(loader)


def test_views_outlive_the_supervisor(
    millrace_bin: Path, tmp_path: Path, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    kept = next(iter(millrace.IterableDataset(hundred.uri).batches(8)))
    supervisor.process.kill()
    supervisor.process.wait()
    gc.collect()
    assert {lease.name: bytes(lease) for lease in kept} == {n: hundred.contents[n] for n in hundred.names[:8]}


def test_what_a_stopped_thread_holds_at_the_end(
    millrace_bin: Path, tmp_path: Path, hundred: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter ends in the middle of a daemon thread's call, and stops it there. What is freed after that wants
    the connection too, and must not wait for it."""
    supervisor = start_supervisor(millrace_bin, tmp_path, "http://127.0.0.1:9", CONFIG)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    code = """
        import os, signal, sys, threading, time
        import millrace
        from millrace import _supervisor, checkpoint
        samples = millrace.MapDataset(sys.argv[1])
        samples[0]
        file = millrace.open(f"file://{samples.objects[0][0]}", "rb")
        file.read(1)
        writer = checkpoint.writer(f"file://{sys.argv[2]}/state.pt")
        client = _supervisor.connection().client
        os.kill(int(sys.argv[3]), signal.SIGSTOP)  # which then has no answer for it
        thread = threading.Thread(target=client.config, daemon=True)
        thread.start()
        def waits():
            time.sleep(0.01)
            return open(f"/proc/self/task/{thread.native_id}/stat").read().rsplit(")", 1)[1].split()[0] == "S"
        while not all(waits() for _ in range(30)):
            pass
    """
    process = start(code, hundred.uri, str(tmp_path), str(supervisor.process.pid))
    try:
        result(process)
    finally:
        process.kill()
        supervisor.process.send_signal(signal.SIGCONT)
        supervisor.stop()


def test_a_worker_that_waits_ends_soon_after_its_main_process(slow: tuple[str, Supervisor]) -> None:
    code = """
        import sys, millrace
        ds = millrace.IterableDataset(sys.argv[1], transform=bytes, window=4)
        steps = iter(millrace.DataLoader(ds, batch_size=100, num_workers=2, collate_fn=list))
        print(*[worker.pid for worker in steps._batches._workers], flush=True)
        for _ in steps:
            pass
    """
    process = start(code, slow[0])
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    wait_for_lanes(slow[1], 2)
    process.kill()
    process.communicate(timeout=100)
    wait_for(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("loader", ["millrace.DataLoader", "torch.utils.data.DataLoader"])
def test_a_worker_with_a_batch_for_a_dead_main_process_ends(
    socket: str, hundred: Folder, loader: str, late: bool
) -> None:
    """It does not fit the pipe, whose other end the workers have too: torch waits for ever until it is read. Late: one
    begins after that death, and torch takes whom it sees then for its main process."""
    code = f"""
        import os, sys, time, millrace, torch
        main = os.getpid()
        def begin(worker):
            while {late} and worker == 1 and os.getppid() == main:
                time.sleep(0.01)
        ds = millrace.IterableDataset(sys.argv[1], transform=lambda lease: bytes(2000), batch_size=50)
        arguments = dict(batch_size=50) if {loader!r}.startswith("millrace") else dict(batch_size=None)
        steps = iter({loader}(ds, num_workers=2, collate_fn=list, worker_init_fn=begin, **arguments))
        inner = getattr(steps, "_batches", steps)
        print(*[worker.pid for worker in inner._workers], flush=True)
        time.sleep(1000)
    """
    process = start(code, hundred.uri)
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    try:
        wait_for(lambda: any(writes_to_a_pipe(pid) for pid in workers))
        process.kill()
        process.communicate(timeout=100)
        wait_for(lambda: not any(alive(pid) for pid in workers))
    except BaseException:  # nothing else would ever end them
        process.kill()
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)
        raise


def writes_to_a_pipe(pid: int) -> bool:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if "pipe_write" in (task / "wchan").read_text():
                return True
    return False


@pytest.mark.parametrize("workers", [0, 2])
def test_control_c_while_waiting(slow: tuple[str, Supervisor], workers: int) -> None:
    code = """
        import signal, sys, millrace
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ds = millrace.IterableDataset(sys.argv[1], window=4, batch_size=100)
        loader = ds.batches() if sys.argv[2] == "0" else millrace.DataLoader(ds, num_workers=int(sys.argv[2]))
        try:
            print("ready", flush=True)
            list(loader)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = start(code, slow[0], str(workers))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    wait_for_lanes(slow[1], max(workers, 1))
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    result(process)


# ---- what stays the same ----


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def of_supervisor(pid: int) -> tuple[int, int]:
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), len(Path(f"/proc/{pid}/maps").read_text().splitlines())


@pytest.mark.parametrize("stop_after", [None, 3])
def test_100_epochs_leave_nothing(socket: str, supervisor: Any, folder: MakeFolder, stop_after: int | None) -> None:
    ds = millrace.IterableDataset(folder(24, 150 << 10).uri, shuffle=True, transform=name_of)
    loader = millrace.DataLoader(ds, batch_size=4, collate_fn=keep)

    def epoch() -> None:
        for step, _ in enumerate(loader):
            if step + 1 == stop_after:
                break

    def free_bytes() -> dict[int, int]:
        """Of each fetch worker's arena, once all that was asked for has come back."""
        wait_for(lambda: json.loads(ds._source.connection().client.stat())["lanes"] == [])
        stat = json.loads(ds._source.connection().client.stat())
        return {w["slot"]: w["counters"]["arena_free_bytes"] for w in stat["workers"] if w["role"] == "fetch"}

    for _ in range(5):
        epoch()
    supervisor.wait_settled()
    # Once nothing is leased, the workers say that all is free but what each keeps.
    wait_for(lambda: len(set(free_bytes().values())) == 1, "two workers with equal arenas")
    free_before = free_bytes()
    before = (descriptors(), mappings(), *of_supervisor(supervisor.process.pid))
    for _ in range(100):
        epoch()
    gc.collect()
    assert len(free_before) == 2 and all(size > 0 for size in free_before.values())

    def is_all_back() -> bool:  # if they had as little when it was read first, there may be more
        now = free_bytes()
        return all(now[slot] >= size for slot, size in free_before.items())

    wait_for(is_all_back, lambda: f"{free_before} -> {free_bytes()}")

    # A lane that was closed lingers until the workers have unmapped it. malloc may map a block more or less; an epoch
    # that left something would show as 100.
    def as_before() -> bool:
        after = (descriptors(), mappings(), *of_supervisor(supervisor.process.pid))
        return all(now <= was + more for now, was, more in zip(after, before, (0, 10, 0, 10)))

    wait_for(as_before, lambda: f"{before} -> {descriptors(), mappings(), *of_supervisor(supervisor.process.pid)}")
    assert loader.state_dict()["epoch"] >= 104
