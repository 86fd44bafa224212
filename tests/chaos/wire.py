"""The network between millrace and its store: a relay that breaks, slows and changes what goes through.

    python -m tests.chaos.wire PORT STORE_PORT SEED

Weather comes on standard input, a JSON object a line; each holds until the next one:
  {"flip": P, "cut": P, "stall": P,        probabilities of an exchange to be hit
   "kib_s": N,                             bytes of each connection, 0 is no limit
   "refuse": bool, "reset": true}          no new connections; all that are there end now
It knows where messages begin and end, so that bytes are flipped only where a checksum can find them: in the bytes of
objects, downloaded or uploaded; not in a listing or a range of S3's, where nothing but TLS could. Cuts and stalls come
anywhere.
Answers each line with {"exchanges", "flip", "cut", "stall"}: how many there were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any

CHUNK = 1 << 16
MARGIN = 1000  # of an upload's body: its metadata in front, a boundary at the end


@dataclass
class Weather:
    flip: float = 0
    cut: float = 0
    stall: float = 0
    kib_s: float = 0
    refuse: bool = False


@dataclass
class Exchange:
    """What is to happen to a request or an answer."""

    is_media: bool = False  # the request is for the bytes of an object
    is_head: bool = False
    at: int = -1  # offset in the message's body at which it happens
    what: str = ""


@dataclass
class Half:
    """One direction of a connection: where the message under way ends."""

    head: bytes = b""
    left: int = -1  # bytes of the body to come; -1: in a head
    place: int = 0
    blind: bool = False  # a message without a length: no more is known
    now: Exchange = field(default_factory=Exchange)


class Broken(Exception):
    pass


def is_whole_of_s3(head: bytes, target: bytes) -> bool:
    """A range of an object has no checksum in S3."""
    return not target.startswith(b"/storage/") and b"?" not in target and not re.search(rb"\r\nrange:", head, re.I)


class Wire:
    def __init__(self, store: int, seed: int) -> None:
        self.store, self.rng = store, random.Random(seed)
        self.weather = Weather()
        self.open: set[asyncio.StreamWriter] = set()
        self.counts = {"exchanges": 0, "flip": 0, "cut": 0, "stall": 0}

    # ---- weather ----

    def change(self, line: bytes) -> None:
        words: dict[str, Any] = json.loads(line)
        reset = words.pop("reset", False)
        self.weather = Weather(**words)
        if reset:
            for writer in list(self.open):
                self.abort(writer)

    def abort(self, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    # ---- a connection ----

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuse:
            self.abort(writer)
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.store)
        except OSError:
            self.abort(writer)
            return
        both = [writer, up_writer]
        self.open.update(both)
        requests: deque[Exchange] = deque()
        pumps = [
            asyncio.create_task(self.pump(reader, up_writer, requests, True)),
            asyncio.create_task(self.pump(up_reader, writer, requests, False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            broken = any(task.done() and not task.cancelled() and task.exception() for task in pumps)
            for one in both:
                self.open.discard(one)
                if broken and self.rng.random() < 0.5:
                    self.abort(one)
                else:
                    one.close()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: deque[Exchange], up: bool
    ) -> None:
        half = Half()
        while data := await reader.read(CHUNK):
            if self.weather.kib_s:
                await asyncio.sleep(len(data) / 1024 / self.weather.kib_s)
            out = self.take(half, data, requests, up)
            writer.write(bytes(out[0]))
            await writer.drain()
            if out[1] == "stall":
                await asyncio.sleep(3600)
            elif out[1] == "cut":
                raise Broken

    # ---- messages ----

    def take(self, half: Half, data: bytes, requests: deque[Exchange], up: bool) -> tuple[bytearray, str]:
        """The bytes to pass on, and "stall" or "cut" after them."""
        out = bytearray()
        while data:
            if half.blind:
                return out + data, ""
            if half.left < 0:
                half.head += data
                end = half.head.find(b"\r\n\r\n")
                if end < 0:
                    return out, ""  # passed on when it is whole
                head, data = half.head[: end + 4], half.head[end + 4 :]
                half.head = b""
                out += head
                self.begin(half, head, requests, up)
                continue
            piece, data = bytearray(data[: half.left]), data[half.left :]
            at = half.now.at - half.place
            if half.now.what and 0 <= at < len(piece):
                self.counts[half.now.what] += 1
                if half.now.what != "flip":
                    return out + piece[:at], half.now.what
                piece[at] ^= 1 << self.rng.randrange(8)
            half.place += len(piece)
            half.left -= len(piece)
            out += piece
            if half.left == 0:
                half.left = -1
        return out, ""

    def begin(self, half: Half, head: bytes, requests: deque[Exchange], up: bool) -> None:
        first = head.split(b"\r\n", 1)[0]
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
        size = int(length[1]) if length else 0
        if re.search(rb"\r\ntransfer-encoding:", head, re.I):
            half.blind = True
            return
        low, high = 0, size  # where bytes of an object are
        if up:
            method, target = (first.split(b" ") + [b"", b""])[:2]
            media = method == b"GET" and (b"alt=media" in target or is_whole_of_s3(head, target))
            requests.append(Exchange(is_media=media, is_head=method == b"HEAD"))
            if b"uploadType=multipart" in target:
                low, high = MARGIN, size - MARGIN
            elif not (b"partNumber=" in target or (method == b"PUT" and b"?" not in target)):
                high = 0
        else:
            if re.match(rb"HTTP/1.1 1\d\d", first):
                half.left = -1
                return
            request = requests.popleft() if requests else Exchange()
            good = re.match(rb"HTTP/1.1 20[06]", first)
            if not (request.is_media and good):
                high = 0
            if request.is_head or re.match(rb"HTTP/1.1 (204|304)", first):
                size = 0
            self.counts["exchanges"] += 1
        half.place, half.left = 0, size if size else -1
        half.now = self.fate(size, low, high)

    def fate(self, size: int, low: int, high: int) -> Exchange:
        draw, weather = self.rng.random(), self.weather
        if draw < weather.flip:
            return Exchange(at=self.rng.randrange(low, high), what="flip") if high > low else Exchange()
        if draw < weather.flip + weather.cut and size:
            return Exchange(at=self.rng.randrange(size), what="cut")
        if draw < weather.flip + weather.cut + weather.stall and size:
            return Exchange(at=self.rng.randrange(size), what="stall")
        return Exchange()


async def serve(port: int, store: int, seed: int) -> None:
    wire = Wire(store, seed)
    server = await asyncio.start_server(wire.connection, "127.0.0.1", port, reuse_address=True)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("listening", flush=True)
    async with server:
        while line := await lines.readline():
            wire.change(line)
            print(json.dumps(wire.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:4])))
