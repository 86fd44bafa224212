"""The programs: the functions of lane.c and wake.c as generators, two or three of them against each other.

A function here is a transcription of the C function of its name, reduced to the operations on shared memory that the
program is about; Orders.of() fails when the operations of the C function are not these any more. Words are states with
a lap: one request field stands for all of them. What the kernel orders (a death that is seen, a futex's queue) has the
orders of the kernel. Memory that only a word's owner touches is PLAIN: two threads in it at once are a race.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.litmus.rc11 import ACQUIRE, PLAIN, RELAXED, RELEASE, Op, Program, Thread
from tests.litmus.source import Orders

EMPTY, PENDING, FILLING, READY, HELD, RELEASED, FAILED = range(7)
NEW = 7  # a value that was not there before


# ---- lane.c ----

REQUEST = ("dataset", "flags", "object", "offset", "length", "cell")  # the fields of a request


def load(o: Orders) -> Thread:
    (order,) = o.of("mr_lane_load", "load word")
    return (yield Op("load", "word", order))


def cas(order: str, old: int, new: int) -> Thread:
    return (yield Op("cas", "word", order, new, old)) == old


def post(o: Orders) -> Thread:
    fields = [f"store {name}" for name in REQUEST]
    first, request, *_, last = o.of("mr_lane_post", "load word", *fields, "cas word")
    word = yield Op("load", "word", first)
    if word not in (EMPTY, RELEASED):
        return False
    yield Op("store", "request", request, NEW)
    return (yield from cas(last, word, PENDING))


def claim(o: Orders) -> Thread:
    """Of a PENDING word: what the request says, or None."""
    (order,) = o.of("mr_lane_claim", "cas word")
    request, *_ = o.of("mr_lane_peek_request", *(f"load {name}" for name in REQUEST))
    if not (yield from cas(order, PENDING, FILLING)):
        return None
    return (yield Op("load", "request", request))


def take(o: Orders, *owned: str) -> Thread:
    """Whether it is HELD, after reading what is then its own."""
    first, last = o.of("mr_lane_take", "load word", "cas word")
    word = yield Op("load", "word", first)
    if word not in (READY, FAILED) or not (yield from cas(last, word, HELD)):
        return False
    for name in owned:
        yield Op("load", name, PLAIN)
    return True


def one_cas(function: str, old: int, new: int) -> Callable[[Orders], Thread]:
    def call(o: Orders) -> Thread:
        return (yield from cas(o.of(function, "cas word")[0], old, new))

    return call


release = one_cas("mr_lane_release", HELD, RELEASED)
give_back = one_cas("mr_lane_give_back", FILLING, PENDING)
publish = one_cas("mr_lane_publish", FILLING, READY)
fail = one_cas("mr_lane_fail", FILLING, FAILED)
take_back = one_cas("mr_lane_take_back", READY, PENDING)
poison = one_cas("mr_lane_poison", PENDING, FAILED)


def look_at_closed(o: Orders, word: int) -> Thread:
    fence, closed, swap = o.of("look_at_closed", "fence", "load closed", "cas word")
    yield Op("fence", "", fence)
    if (yield Op("load", "closed", closed)):
        yield from cas(swap, word, EMPTY)


def sweep(o: Orders, owner_dead: bool = False) -> Thread:
    first, swap = o.of("sweep", "load word", "cas word")
    word = yield Op("load", "word", first)
    while word not in (EMPTY, FILLING) and (word != HELD or owner_dead):
        seen = yield Op("cas", "word", swap, EMPTY, word)
        if seen == word:
            return
        word = seen


def close(o: Orders) -> Thread:
    store, fence = o.of("mr_lane_close", "store closed", "fence")
    yield Op("store", "closed", store, 1)
    yield Op("fence", "", fence)
    yield from sweep(o)


def recover(o: Orders, in_closed_lane: bool = True) -> Thread:
    first, swap, fence, closed = o.of("mr_lane_recover", "load word", "cas word", "fence", "load closed")
    if (yield Op("load", "word", first)) == FILLING and (yield from cas(swap, FILLING, PENDING)) and in_closed_lane:
        yield from look_at_closed(o, PENDING)
    if in_closed_lane:
        yield Op("fence", "", fence)
        if (yield Op("load", "closed", closed)):
            yield from sweep(o)


# ---- wake.c ----


def set_want(o: Orders) -> Thread:
    store, fence = o.of("mr_wake_set_want", "store want", "fence")
    yield Op("store", "want", store, 1)
    yield Op("fence", "", fence)


def wake_consumer(o: Orders) -> Thread:
    """Whether it is wanted."""
    fence, want = o.of("mr_wake_consumer", "fence", "load want")
    yield Op("fence", "", fence)
    return (yield Op("load", "want", want)) != 0


def asleep(o: Orders) -> Thread:
    store, fence = o.of("mr_wake_producer_asleep", "store asleep", "fence")
    yield Op("store", "asleep", store, 1)
    yield Op("fence", "", fence)


def wake_producer(o: Orders) -> Thread:
    """Whether it sleeps."""
    fence, line = o.of("mr_wake_producer", "fence", "load asleep")
    yield Op("fence", "", fence)
    return (yield Op("load", "asleep", line)) != 0


# ---- what stands around them ----


def put(name: str, value: int = NEW) -> Thread:
    yield Op("store", name, PLAIN, value)


def get(name: str) -> Thread:
    return (yield Op("load", name, PLAIN))


def dies() -> Thread:
    yield Op("store", "dead", RELEASE, 1)


def sees_death() -> Thread:
    return (yield Op("load", "dead", ACQUIRE)) != 0


def never(last: dict[str, int], results: tuple[Any, ...]) -> bool:
    """Only races are looked for."""
    return False


def not_drained(last: dict[str, int], results: tuple[Any, ...]) -> bool:
    return last["word"] != EMPTY


PROGRAMS: dict[str, Callable[[Orders], Program]] = {}


def program(name: str, wrong: Callable[[dict[str, int], tuple[Any, ...]], bool] = never, **initial: int) -> Any:
    """Of a function that takes the orders and gives the threads."""

    def register(threads: Callable[[Orders], tuple[Callable[[], Thread], ...]]) -> None:
        PROGRAMS[name] = lambda o: Program(name, threads(o), initial, wrong)

    return register


# ownership: L0 to L6


@program("L0 post, L1 claim", lambda _, r: r[1] not in (None, NEW), word=RELEASED, request=0)
def _(o: Orders) -> Any:
    def producer() -> Thread:
        if (yield from load(o)) == PENDING:
            return (yield from claim(o))
        return None

    return lambda: post(o), producer


@program("L1 claim of a peeked word", lambda _, r: r[1] not in (None, NEW), word=RELEASED, request=0)
def _(o: Orders) -> Any:
    return lambda: post(o), lambda: claim(o)


def published(how: Callable[[Orders], Thread], text: str) -> Callable[[Orders], Any]:
    def threads(o: Orders) -> Any:
        def writer() -> Thread:
            yield from put(text)
            yield from how(o)

        return writer, lambda: take(o, text)

    return threads


program("L2 publish, L3 take", word=FILLING, payload=0)(published(publish, "payload"))
program("L2 fail, L3 take", word=FILLING, fail_text=0)(published(fail, "fail_text"))
program("L2 poison, L3 take", word=PENDING, poison_text=0)(published(poison, "poison_text"))


@program("L3 take of a refilled ticket", word=READY, payload=0)
def _(o: Orders) -> Any:
    def producer() -> Thread:
        (order,) = o.of("mr_lane_claim", "cas word")
        if (yield from take_back(o)) and (yield from cas(order, PENDING, FILLING)):
            yield from put("payload")
            yield from publish(o)

    return producer, lambda: take(o, "payload")


@program("L4 release, L5 reuse", word=HELD, payload=0)
def _(o: Orders) -> Any:
    def reader() -> Thread:
        yield from get("payload")
        yield from release(o)

    def producer() -> Thread:
        if (yield from load(o)) == RELEASED:
            yield from put("payload")

    return reader, producer


@program("L4 release, L5 post", word=HELD, text=0, request=0)
def _(o: Orders) -> Any:
    def reader() -> Thread:
        yield from get("text")
        yield from release(o)

    def producer() -> Thread:
        if (yield from load(o)) == PENDING and (yield from claim(o)) is not None:
            yield from put("text")

    return reader, lambda: post(o), producer


@program("L4 release, sweep, L5 reuse", word=HELD, payload=0)
def _(o: Orders) -> Any:
    def reader() -> Thread:
        yield from get("payload")
        yield from release(o)

    def producer() -> Thread:
        if (yield from load(o)) == EMPTY:
            yield from put("payload")

    return reader, lambda: sweep(o), producer


@program("L4 sweep for a dead owner", word=HELD, payload=0, dead=0)
def _(o: Orders) -> Any:
    def reader() -> Thread:
        yield from get("payload")
        yield from dies()

    def supervisor() -> Thread:
        if (yield from sees_death()):
            yield from sweep(o, owner_dead=True)

    def producer() -> Thread:
        if (yield from load(o)) == EMPTY:
            yield from put("payload")

    return reader, supervisor, producer


def second_producer(o: Orders) -> Thread:
    (order,) = o.of("mr_lane_claim", "cas word")
    if (yield from load(o)) == PENDING and (yield from cas(order, PENDING, FILLING)):
        yield from put("descriptor", 2)


@program("L6 give back, L1 claim", word=FILLING, descriptor=0)
def _(o: Orders) -> Any:
    def first() -> Thread:
        yield from put("descriptor")
        yield from give_back(o)

    return first, lambda: second_producer(o)


@program("L6 take back, L1 claim", word=FILLING, descriptor=0)
def _(o: Orders) -> Any:
    def first() -> Thread:
        yield from put("descriptor")
        yield from publish(o)
        yield from take_back(o)

    return first, lambda: second_producer(o)


@program("L6 recover, L1 claim", word=FILLING, descriptor=0, dead=0)
def _(o: Orders) -> Any:
    def first() -> Thread:
        yield from put("descriptor")
        yield from dies()

    def supervisor() -> Thread:
        if (yield from sees_death()):
            yield from recover(o, in_closed_lane=False)

    return first, supervisor, lambda: second_producer(o)


# closing: L7, L8


def closing(how: Callable[[Orders], Thread], word: int) -> Callable[[Orders], Any]:
    def threads(o: Orders) -> Any:
        def changer() -> Thread:
            if (yield from how(o)):
                yield from look_at_closed(o, word)

        return changer, lambda: close(o)

    return threads


program("L7 release, L8 close", not_drained, word=HELD, closed=0)(closing(release, RELEASED))
program("L7 publish, L8 close", not_drained, word=FILLING, closed=0)(closing(publish, READY))
program("L7 fail, L8 close", not_drained, word=FILLING, closed=0)(closing(fail, FAILED))
program("L7 give back, L8 close", not_drained, word=FILLING, closed=0)(closing(give_back, PENDING))
program("L7 take back, L8 close", not_drained, word=READY, closed=0)(closing(take_back, PENDING))
program("L7 poison, L8 close", not_drained, word=PENDING, closed=0)(closing(poison, FAILED))


@program("L7 recover, L8 close", not_drained, word=FILLING, closed=0)
def _(o: Orders) -> Any:
    return lambda: recover(o), lambda: close(o)


@program("L7 death before the look", lambda last, r: r[2] and last["word"] != EMPTY, word=FILLING, closed=0, dead=0)
def _(o: Orders) -> Any:
    def producer() -> Thread:
        yield from publish(o)
        yield from dies()

    def supervisor() -> Thread:
        if not (yield from sees_death()):
            return False
        yield from recover(o)
        return True

    return producer, lambda: close(o), supervisor


# waking: W0 to W3; wrong is a sleep that nobody ends


@program("W0 publish, W1 want", lambda _, r: not r[0] and not r[1], word=FILLING, want=0)
def _(o: Orders) -> Any:
    def producer() -> Thread:
        yield from publish(o)
        return (yield from wake_consumer(o))

    def consumer() -> Thread:
        yield from set_want(o)
        return (yield from take(o))

    return producer, consumer


@program("W0 wake, W1 wait", lambda _, r: not r[0] and not r[1], word=FILLING, want=1, seq=0, waiting=0)
def _(o: Orders) -> Any:
    """The second round of a consumer: `want` is there already."""

    def producer() -> Thread:
        yield from publish(o)
        if not (yield from wake_consumer(o)):
            return False
        (add,) = o.of("mr_wake_word", "add word")
        yield Op("add", "seq", add, 1)
        yield Op("fence")  # FUTEX_WAKE: the kernel's
        return (yield Op("load", "waiting", RELAXED)) != 0

    def consumer() -> Thread:
        (order,) = o.of("mr_wake_seq", "load seq")
        seen = yield Op("load", "seq", order)
        yield from set_want(o)
        if (yield from take(o)):
            return True
        yield Op("store", "waiting", RELAXED, 1)  # FUTEX_WAIT: queued, then compared
        yield Op("fence")
        return (yield Op("load", "seq", RELAXED)) != seen

    return producer, consumer


def sleeper(o: Orders, state: int) -> Thread:
    """Whether it has work."""
    yield from asleep(o)
    return (yield from load(o)) == state


@program("W2 post, W3 asleep", lambda _, r: not r[0] and not r[1], word=EMPTY, request=0, asleep=0)
def _(o: Orders) -> Any:
    def consumer() -> Thread:
        yield from post(o)
        return (yield from wake_producer(o))

    return consumer, lambda: sleeper(o, PENDING)


@program("W2 release, W3 asleep", lambda _, r: not r[0] and not r[1], word=HELD, asleep=0)
def _(o: Orders) -> Any:
    def consumer() -> Thread:
        yield from release(o)
        return (yield from wake_producer(o))

    return consumer, lambda: sleeper(o, RELEASED)


@program("W2 want, W3 asleep", lambda _, r: not r[0] and not r[1], want=0, asleep=0)
def _(o: Orders) -> Any:
    def consumer() -> Thread:
        yield from set_want(o)
        return (yield from wake_producer(o))

    def producer() -> Thread:
        yield from asleep(o)
        return (yield Op("load", "want", RELAXED)) != 0

    return consumer, producer


# attach


@program("magic", magic=0, header=0)
def _(o: Orders) -> Any:
    def supervisor() -> Thread:
        o.of("mr_lane_format", "store posted", "store taken", "store quota_bytes")  # before it calls the next
        (last,) = o.of("mr_lane_restate", "store magic")
        yield from put("header")
        yield Op("store", "magic", last, 1)

    def other() -> Thread:
        (order,) = o.of("mr_lane_attach", "load magic")
        if (yield Op("load", "magic", order)):
            yield from get("header")

    return supervisor, other


# Operations whose order nothing needs, and why. run.py fails if a program needs one after all.
FENCE = "the full fence after it orders more"
SPARE = {
    "mr_lane_is_closed 0: load closed": "a hint: what is certain goes through the fences of L7 and L8",
    "look_at_closed 2: cas word": "a step in the release sequence of the change that it follows",
    "mr_lane_post 0: load word": "its CAS is a step in the release sequence of the release that it has seen",
    "mr_lane_take 0: load word": "the CAS after it acquires, and nothing is read between the two",
    "mr_lane_take_back 0: cas word": "a step in the release sequence of the publish that it takes back",
    "sweep 0: load word": "a sweep reads nothing but the word",
    "mr_lane_recover 0: load word": "recovery reads nothing but the word",
    "mr_lane_close 0: store closed": FENCE,
    "mr_wake_set_want 0: store want": FENCE,
    "mr_wake_producer_asleep 0: store asleep": FENCE,
    "mr_wake_seq 0: load seq": "the fences of W0 and W1 stand between it and the word",
    "mr_wake_word 0: add word": "the fences of W0 and W1 stand between it and the word",
}
