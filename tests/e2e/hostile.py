"""Stores of S3 that each have one bad habit: a proxy before the development store.

with HOSTILE["moves"](port) as proxy: ...        proxy.url is the store
"""

from __future__ import annotations

import gzip
import random
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable

from tests.e2e.proxy import Answer, Proxy, Request
from tests.stores import put

AT_ONCE = 32


def is_listing(request: Request) -> bool:
    return request.method == "GET" and any(word in request.path for word in ("list-type=2", "uploads"))


def compresses(port: int) -> Proxy:
    """Listings come compressed, whatever was asked for."""
    proxy = Proxy(port)

    def hook(request: Request) -> Answer | None:
        if not is_listing(request):
            return None
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{request.path}", headers=request.headers)
        with urllib.request.urlopen(asked) as reply:
            return 200, gzip.compress(reply.read()), {"Content-Encoding": "gzip"}

    proxy.hook = hook
    return proxy


def shuffles(port: int) -> Proxy:
    """Each answer takes its own time, so that they come in any order."""
    proxy, rng = Proxy(port), random.Random(7)

    def hold(request: Request) -> Answer | None:
        time.sleep(rng.choice([0, 0, 0.01, 0.05, 0.2]))
        return None

    proxy.hold = hold
    return proxy


def moves(port: int) -> Proxy:
    """The bucket has moved to another region: what is under way, up to 32 requests, is refused together; and again
    in the middle, after 50 good requests, once each that was refused has come again: none meets both."""
    proxy = Proxy(port)
    regions = ["eu-north-7", "ap-south-9"]
    good = 0
    owed: set[tuple[str, str]] = set()  # refused, and not come again
    waiting: list[threading.Event] = []
    lock = threading.Lock()

    def release() -> None:
        with lock:
            for event in waiting:
                event.set()
            waiting.clear()

    def hold(request: Request) -> Answer | None:
        nonlocal good
        which, refused = (request.method, request.path), threading.Event()
        with lock:
            if good >= 50 and not owed and len(regions) > 1:
                del regions[0]
            region = regions[0]
            if f"/{region}/s3/" in request.headers.get("authorization", ""):
                good += 1
                owed.discard(which)
                return None
            if request.method != "HEAD":  # whose answer has no body to name the region: it is asked for in another way
                owed.add(which)
            waiting.append(refused)
            full = len(waiting) >= AT_ONCE
        if full or not refused.wait(0.1):  # nobody else comes
            release()
        error = (
            f"<Error><Code>AuthorizationHeaderMalformed</Code><Message>no</Message><Region>{region}</Region></Error>"
        )
        return 400, error.encode()

    proxy.hold = hold
    return proxy


def replaces(port: int) -> Proxy:
    """Somebody else writes each object anew between two of our requests for it."""
    proxy = Proxy(port)
    seen: dict[str, int] = {}

    def hook(request: Request) -> Answer | None:
        bucket, _, key = request.path.partition("?")[0].lstrip("/").partition("/")
        if key and "partNumber=" not in request.path:
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > 1:
                put(f"http://127.0.0.1:{port}", bucket, urllib.parse.unquote(key), b"theirs %d" % seen[key])
        return None

    proxy.hook = hook
    return proxy


HOSTILE: dict[str, Callable[[int], Proxy]] = {
    "compresses": compresses,
    "shuffles": shuffles,
    "moves": moves,
    "replaces": replaces,
}
