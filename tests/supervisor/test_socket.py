"""What a stranger may send to the socket: it gets an error and is cut off, and nobody else notices."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace._ring import BatchArena, Meter
from tests.serve import DEADLINE_S, StartServe, connect, wait_for

VERSION = 1
OK, ERROR, HELLO, OPEN_DATASET, INDEX, PRODUCERS, PRODUCER, OPEN_LANE, CLOSE_LANE, PUT_LOOP, STAT = range(1, 12)
BATCHES = 43
METER = 45
SETUP = 13
PROTOCOL, USAGE, BUSY = 8, 1, 11


def pack(value: Any) -> bytes:
    """As much msgpack as the messages need."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return b"\xde" + struct.pack(">H", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())
    return b"\xdc" + struct.pack(">H", len(value)) + b"".join(pack(v) for v in value)


def message(kind: int, **fields: Any) -> bytes:
    return pack([VERSION, kind, fields])


HELLO_MESSAGE = message(HELLO, pid=1, role="tool", image=1)


def answer(client: socket.socket) -> int:
    """The type of the answer; 0 at the end of the connection. Its descriptors are closed."""
    data, fds, _, _ = socket.recv_fds(client, 65536, 32)
    for fd in fds:
        os.close(fd)
    return data[2] if data else 0


@pytest.mark.parametrize(
    "packet",
    [
        b"\xc1",
        b"garbage",
        b"x" * 65536,
        b"x" * 70000,
        pack([VERSION, HELLO]),
        pack([VERSION + 1, HELLO, {}]),
        pack([VERSION, 0, {}]),
        pack([VERSION, 99, {}]),
        pack([VERSION, HELLO, []]),
        pack({}),
        message(HELLO),
        message(HELLO, pid="1", role=2),
        message(OPEN_DATASET, name="train"),
        message(SETUP, role="list"),
        message(STAT),
    ],
    ids=lambda packet: packet[:12].hex(),
)
def test_garbage_before_hello(serve: StartServe, config: Path, packet: bytes) -> None:
    one = serve(config)
    with connect(one.socket) as client:
        client.send(packet)
        assert answer(client) == ERROR
        assert answer(client) == 0, "the connection is over"
    assert one.stat()["state"] == "running"


def test_wrong_requests(serve: StartServe, config: Path) -> None:
    """A request that makes no sense is an answer with an error; one that breaks the protocol ends the connection."""
    one = serve(config)
    one.wait_ready()
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        assert answer(client) == OK
        for packet in (
            message(OPEN_DATASET, name="no such"),
            message(OPEN_DATASET, uris=[]),
            message(OPEN_DATASET, uris=["http://x"]),
            message(OPEN_DATASET, uris=["gs://a/", "gs://b/"]),
            message(OPEN_DATASET, uris=["gs://a/", "file:///b"]),
            message(INDEX, dataset=7),
            message(INDEX, dataset=1 << 63),
            message(PRODUCER, slot=1 << 40),
            message(OPEN_LANE, dataset=9, window=4, loop=""),
            message(PUT_LOOP, loop="x" * 65, epoch=0, cursor=0, seed=0, batch=1, world=1, rank=0, block=0, mix=0),
            message(PUT_LOOP, loop="", epoch=0, cursor=0, seed=0, batch=1, world=1, rank=0, block=0, mix=0),
        ):
            client.send(packet)
            assert answer(client) == ERROR, packet
        client.send(message(CLOSE_LANE, lane=4000))
        assert answer(client) == OK, "a lane that is gone already"
        client.send(message(OPEN_LANE, dataset=0, window="4", loop=""))
        assert answer(client) == ERROR
        assert answer(client) == 0
    assert one.stat()["lanes"] == []


def test_arenas_that_are_not_there_are_asked_for_again(serve: StartServe, tmp_path: Path) -> None:
    """Between a client's two questions they may begin to be divided anew: no mistake of its own."""
    (tmp_path / "empty.toml").write_text("[memory]\narena_bytes = '8MiB'\n")  # no data set: no arenas
    one = serve(tmp_path / "empty.toml")
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        assert answer(client) == OK
        for packet, code in (
            (message(PRODUCERS), BUSY),
            (message(PRODUCER, slot=0), BUSY),
        ):
            client.send(packet)
            data = client.recv(65536)
            assert data[2] == ERROR
            assert b"\xa4code" + bytes([code]) in data, data


def test_list_of_names_must_be_a_file(serve: StartServe, config: Path, tmp_path: Path) -> None:
    one = serve(config)
    reader, writer = os.pipe()
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        assert answer(client) == OK
        for fd in (reader, os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)):
            socket.send_fds(client, [message(OPEN_DATASET, objects=True)], [fd])
            os.close(fd)
            assert answer(client) == ERROR
    os.close(writer)
    assert one.stat()["state"] == "running"


def test_a_batch_arena_must_be_one(serve: StartServe, config: Path, tmp_path: Path) -> None:
    """It is mapped by the supervisor: nothing that could shrink under it, or whose head says what is not so."""
    one = serve(config)
    arena = BatchArena(2, 4, 1 << 20)
    damaged = os.memfd_create("damaged", os.MFD_ALLOW_SEALING)
    os.write(damaged, os.pread(arena.fileno(), 1 << 16, 0).replace(b"\x04\x00\x00\x00", b"\x40\x00\x00\x00", 1))
    fcntl.fcntl(damaged, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    zeros = os.memfd_create("zeros", os.MFD_ALLOW_SEALING)
    os.truncate(zeros, 1 << 20)
    fcntl.fcntl(zeros, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    (tmp_path / "file").write_bytes(os.pread(arena.fileno(), 1 << 16, 0))
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        assert answer(client) == OK
        for fd in (damaged, zeros, os.open(tmp_path / "file", os.O_RDWR), os.open("/dev/null", os.O_RDWR)):
            socket.send_fds(client, [message(BATCHES)], [fd])
            os.close(fd)
            assert answer(client) == ERROR
        for count in range(1, 65):
            socket.send_fds(client, [message(BATCHES)], [arena.fileno()])
            assert answer(client) == OK
            assert one.stat()["batches"]["arenas"] == count
        socket.send_fds(client, [message(BATCHES)], [arena.fileno()])
        assert answer(client) == ERROR
        del arena  # who counts it hears of its end
        wait_for(lambda: one.stat()["batches"]["arenas"] == 0, "an arena that has ended is counted")
        again = BatchArena(2, 4, 1 << 20)
        socket.send_fds(client, [message(BATCHES)], [again.fileno()])
        assert answer(client) == OK
    wait_for(lambda: one.stat()["batches"]["arenas"] == 0, "an arena of a client that has gone is counted")
    assert one.stat()["state"] == "running"


def test_a_meter_must_be_one(serve: StartServe, config: Path, tmp_path: Path) -> None:
    """The counters of a loader: mapped read-only, and read by `stat` until it has ended."""
    one = serve(config)
    meter = Meter(2, 3, 8)
    small = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    os.truncate(small, 64)
    fcntl.fcntl(small, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    (tmp_path / "file").write_bytes(os.pread(meter.fileno(), 1 << 16, 0))
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        assert answer(client) == OK
        for fd in (small, os.open(tmp_path / "file", os.O_RDWR), os.open("/dev/null", os.O_RDWR)):
            socket.send_fds(client, [message(METER)], [fd])
            os.close(fd)
            assert answer(client) == ERROR
        for count in range(1, 65):
            socket.send_fds(client, [message(METER)], [meter.fileno()])
            assert answer(client) == OK
            assert len(one.stat()["loops"]) == count
        socket.send_fds(client, [message(METER)], [meter.fileno()])
        assert answer(client) == ERROR
        meter.begin(7, 1, 1, (0, 0, 0), None)
        meter.take(1, 2, 0, 0, (0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        meter.take(3, 9, 0, 0, (1, 3, 5, 5, 6, 9, 9, 0, 0, 0, 0))
        wait_for(lambda: one.stat()["loops"][0]["epoch"] == 7, "nobody reads the counters")
        found = one.stat()["loops"][0]
        assert (found["rank"], found["world"], found["num_workers"], len(found["loaders"])) == (3, 8, 2, 2)
        assert found["counters"]["wait_ns"] == 6 and found["loaders"][1]["counters"]["transform_ns"] == 2
        del meter  # the supervisor hears of its end
        wait_for(lambda: not one.stat()["loops"], "a loader that has ended is shown")
        again = Meter(1)
        socket.send_fds(client, [message(METER)], [again.fileno()])
        assert answer(client) == OK
    wait_for(lambda: not one.stat()["loops"], "the loader of a client that has gone is shown")
    assert one.stat()["state"] == "running"


def test_descriptors_do_not_pile_up(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_settled()

    def count() -> int:
        return len(list(Path(f"/proc/{one.process.pid}/fd").iterdir()))

    before = count()
    fds = array.array("i", [0] * 40)
    for _ in range(20):
        with connect(one.socket) as client:
            client.sendmsg([message(HELLO)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])
            assert answer(client) == ERROR
        with connect(one.socket) as client:
            client.send(HELLO_MESSAGE)
            assert answer(client) == OK
            socket.send_fds(client, [message(STAT)], [0, 1, 2])
            assert answer(client) == OK
    wait_for(lambda: count() <= before, "descriptors leak")


def test_clients_beyond_the_descriptor_limit_are_told(serve: StartServe, config: Path) -> None:
    """Left in the queue they would keep the supervisor busy, and never learn why."""
    one = serve(config)
    one.wait_settled()
    folder = Path(f"/proc/{one.process.pid}/fd")
    before = {entry.name for entry in folder.iterdir()}
    highest = max(map(int, before))
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (highest + 8, highest + 8))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(one.socket)) for _ in range(40)]
        for client in clients[20:]:
            client.settimeout(DEADLINE_S)
            data = client.recv(65536)
            assert data[2] == ERROR and b"ulimit -n" in data, data
    wait_for(lambda: len(list(folder.iterdir())) <= len(before), "descriptors leak")
    assert one.stat()["state"] == "running"


def test_a_client_that_has_ended_while_nobody_accepted_it(serve: StartServe, config: Path) -> None:
    """As `millrace stat` does, which gives up on a supervisor that is stopped: it is no stranger."""
    one = serve(config)
    one.wait_ready()
    os.kill(one.process.pid, signal.SIGSTOP)
    try:
        code = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, str(one.socket)], check=True, timeout=DEADLINE_S)
    finally:
        os.kill(one.process.pid, signal.SIGCONT)
    one.stat()  # it is accepted after the other
    assert "warning: connection refused" not in one.log.read_text()


@pytest.mark.random
def test_noise(serve: StartServe, config: Path) -> None:
    one = serve(config)
    one.wait_ready()
    noise = random.Random(1)
    valid = [
        message(OPEN_DATASET, name="train"),
        message(OPEN_LANE, dataset=0, window=4, loop="k"),
        message(PUT_LOOP, loop="k", epoch=0, cursor=0, seed=0, batch=1, world=1, rank=0, block=0, mix=0),
        message(CLOSE_LANE, lane=0),
        message(PRODUCER, slot=0),
    ]
    for _ in range(300):
        with connect(one.socket) as client:
            client.send(HELLO_MESSAGE)
            assert answer(client) == OK
            for _ in range(5):
                packet = bytearray(noise.choice(valid))
                for _ in range(noise.randrange(3)):
                    packet[noise.randrange(len(packet))] = noise.randrange(256)
                try:
                    client.send(packet)
                    if answer(client) == 0:
                        break
                except (BrokenPipeError, ConnectionResetError):
                    break
    assert one.stat()["state"] == "running"
    assert one.stop() == 0


def test_a_client_that_never_reads(serve: StartServe, config: Path) -> None:
    """Its answers fill its buffer, and then it is cut off; others are served all the time."""
    one = serve(config)
    with connect(one.socket) as client:
        client.send(HELLO_MESSAGE)
        client.setblocking(False)
        cut_off = False
        for _ in range(5000):
            try:
                client.send(message(PRODUCERS))
            except BlockingIOError:
                assert one.stat()["state"] == "running"
            except (BrokenPipeError, ConnectionResetError):
                cut_off = True
                break
        assert cut_off
    assert one.stat()["state"] == "running"


CONNECT_AS = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.settimeout(100)
try:
    client.connect(sys.argv[1])
except PermissionError:
    print("denied")
else:
    print(client.recv(65536).decode("latin1"))
"""


def test_other_users(serve: StartServe, config: Path) -> None:
    """The file's mode keeps them out, and where somebody has changed that, the check of the peer's user does."""
    one = serve(config)
    assert one.socket.stat().st_mode & 0o777 == 0o600
    if os.geteuid() != 0:  # only root can become another user; nobody can, so the mode is all there is to look at
        return
    for parent in one.socket.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o111)

    def as_nobody() -> str:
        command = [sys.executable, "-c", CONNECT_AS, str(one.socket)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout

    assert as_nobody() == "denied\n"
    one.socket.chmod(0o666)
    assert "may not connect" in as_nobody()
