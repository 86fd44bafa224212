"""An exhaustive checker of small programs under RC11, the repaired memory model of C11 (Lahav et al., PLDI 2017).

A thread is a generator: it yields operations and is sent the value that each one read; what it returns is its result.
An execution is a graph of events with the write that each read takes its value from (rf) and an order of the writes of
each location (mo). RC11 forbids cycles of program order and rf, so that every execution is found by adding one event
after another: each read may take any write that is there, each write may stand anywhere in its location's order, and
graphs that the model does not allow are dropped at once. ARMv8 with the usual compilation allows no more than RC11
does (Podkopaev et al., POPL 2019), so what holds here holds there.

Release sequences are those of C++20 (the write and the read-modify-writes after it), which order less than C11's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

PLAIN, RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = "plain", "relaxed", "acquire", "release", "acq_rel", "seq_cst"
ACQUIRES = (ACQUIRE, ACQ_REL, SEQ_CST)
RELEASES = (RELEASE, ACQ_REL, SEQ_CST)


class Op(NamedTuple):
    """What a thread asks for. order "": the operation has been left out, and nothing happens."""

    kind: str  # "load", "store", "cas", "add", "fence"
    location: str = ""
    order: str = SEQ_CST
    value: int = 0
    expected: int = 0


Thread = Generator[Op, int, Any]


class Event(NamedTuple):
    kind: str  # "R", "W", "U" (both at once), "F"
    location: str
    order: str
    read: int
    written: int
    source: tuple[int, int]  # of a read: the thread and place of the write


NOBODY = (-1, -1)


@dataclass(frozen=True)
class Program:
    name: str
    threads: tuple[Callable[[], Thread], ...]
    initial: dict[str, int]  # every location
    wrong: Callable[[dict[str, int], tuple[Any, ...]], bool]  # by the last values and the results


class Graph(NamedTuple):
    events: tuple[tuple[Event, ...], ...]  # by thread; thread 0 has the initial writes
    mo: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


def check(program: Program) -> str:
    """ "" or what goes wrong in some execution: "race on x", "wrong result"."""
    initial = tuple(Event("W", name, PLAIN, 0, value, NOBODY) for name, value in program.initial.items())
    start = Graph(
        (initial, *(() for _ in program.threads)),
        tuple((name, ((0, i),)) for i, name in enumerate(program.initial)),
    )
    seen, todo = {start}, [start]
    while todo:
        graph = todo.pop()
        ended = True
        results = []
        for number, thread in enumerate(program.threads, 1):
            op, result = next_op(thread(), graph.events[number])
            results.append(result)
            if op is None:
                continue
            ended = False
            for after in added(graph, number, op):
                if after not in seen:
                    seen.add(after)
                    problem = examine(after)
                    if problem:
                        if problem != "forbidden":
                            return problem
                        continue
                    todo.append(after)
        if ended:
            last = {name: event_of(graph, order[-1]).written for name, order in graph.mo}
            if program.wrong(last, tuple(results)):
                return "wrong result"
    return ""


def next_op(thread: Thread, past: tuple[Event, ...]) -> tuple[Op | None, Any]:
    """Runs the thread up to where it is."""
    try:
        op = next(thread)
        past_events = iter(past)
        while True:
            if op.order == "":
                op = thread.send(0)
                continue
            event = next(past_events, None)
            if event is None:
                return op, None
            op = thread.send(event.read)
    except StopIteration as end:
        return None, end.value


def event_of(graph: Graph, at: tuple[int, int]) -> Event:
    return graph.events[at[0]][at[1]]


def added(graph: Graph, thread: int, op: Op) -> Iterator[Graph]:
    """The graph with one more event, in every way."""
    here = (thread, len(graph.events[thread]))
    writes = dict(graph.mo).get(op.location, ())
    if op.kind == "fence":
        yield with_event(graph, thread, Event("F", "", op.order, 0, 0, NOBODY), None)
    elif op.kind == "store":
        for place in range(1, len(writes) + 1):
            order = (*writes[:place], here, *writes[place:])
            yield with_event(graph, thread, Event("W", op.location, op.order, 0, op.value, NOBODY), order)
    else:
        for place, source in enumerate(writes, 1):
            read = event_of(graph, source).written
            if op.kind == "load" or (op.kind == "cas" and read != op.expected):
                order_of = op.order if op.kind == "load" else failure_order(op.order)
                yield with_event(graph, thread, Event("R", op.location, order_of, read, 0, source), None)
            else:
                written = op.value if op.kind == "cas" else read + op.value
                order = (*writes[:place], here, *writes[place:])
                yield with_event(graph, thread, Event("U", op.location, op.order, read, written, source), order)


def failure_order(order: str) -> str:
    """As `swap` in lane.c has it."""
    return RELAXED if order in (RELEASE, RELAXED) else ACQUIRE


def with_event(graph: Graph, thread: int, event: Event, order: tuple[tuple[int, int], ...] | None) -> Graph:
    events = tuple((*line, event) if i == thread else line for i, line in enumerate(graph.events))
    if order is None:
        return Graph(events, graph.mo)
    return Graph(events, tuple((name, order if name == event.location else old) for name, old in graph.mo))


# ---- the axioms; a relation is a list of bit sets: bit j of relation[i] is the pair (i, j) ----

Relation = list[int]


def closure(relation: Relation) -> Relation:
    reached = relation[:]
    for k in range(len(reached)):
        for i in range(len(reached)):
            if reached[i] >> k & 1:
                reached[i] |= reached[k]
    return reached


def then(first: Relation, second: Relation) -> Relation:
    out = []
    for row in first:
        reached, j = 0, 0
        while row:
            if row & 1:
                reached |= second[j]
            row >>= 1
            j += 1
        out.append(reached)
    return out


def union(*relations: Relation) -> Relation:
    out = [0] * len(relations[0])
    for relation in relations:
        out = [a | b for a, b in zip(out, relation)]
    return out


def only(rows: int, relation: Relation, columns: int) -> Relation:
    return [row & columns if rows >> i & 1 else 0 for i, row in enumerate(relation)]


def is_cyclic(relation: Relation) -> bool:
    return any(row >> i & 1 for i, row in enumerate(closure(relation)))


def examine(graph: Graph) -> str:
    """ "", "forbidden", or "race on x"."""
    at = [(t, i) for t, line in enumerate(graph.events) for i in range(len(line))]
    number = {place: n for n, place in enumerate(at)}
    events = [event_of(graph, place) for place in at]
    count = len(events)
    identity = [1 << i for i in range(count)]

    sb = [0] * count
    for i, (t, p) in enumerate(at):
        for j, (u, q) in enumerate(at):
            if (t == 0 and u != 0) or (t == u != 0 and p < q):
                sb[i] |= 1 << j
    rf, mo, rb = [0] * count, [0] * count, [0] * count
    for _, order in graph.mo:
        numbers = [number[place] for place in order]
        for k, i in enumerate(numbers):
            for j in numbers[k + 1 :]:
                mo[i] |= 1 << j
    for j, event in enumerate(events):
        if event.kind in "RU":
            source = number[event.source]
            rf[source] |= 1 << j
            rb[j] = mo[source] & ~(1 << j)

    # atomicity: nothing between what a read-modify-write has read and what it has written
    for j, event in enumerate(events):
        if event.kind == "U" and any(rb[j] >> k & 1 and mo[k] >> j & 1 for k in range(count)):
            return "forbidden"

    sw = [0] * count
    for j, event in enumerate(events):
        if event.kind not in "RU" or event.order == PLAIN:
            continue
        acquirers = identity[j] if event.order in ACQUIRES else 0
        for k in range(count):
            if sb[j] >> k & 1 and events[k].kind == "F" and events[k].order in ACQUIRES:
                acquirers |= 1 << k
        head = number[event.source]
        while acquirers:
            if events[head].order != PLAIN:
                if events[head].order in RELEASES:
                    sw[head] |= acquirers
                for k in range(count):
                    if sb[k] >> head & 1 and events[k].kind == "F" and events[k].order in RELEASES:
                        sw[k] |= acquirers
            if events[head].kind != "U":
                break
            head = number[events[head].source]
    hb = closure(union(sb, sw))
    eco = closure(union(rf, mo, rb))
    if any(row >> i & 1 for i, row in enumerate(union(hb, then(hb, eco)))):
        return "forbidden"
    if not is_sc_consistent(events, sb, hb, mo, rb, eco, identity):
        return "forbidden"

    for i, one in enumerate(events):
        for j in range(i):
            two = events[j]
            if (
                one.location == two.location != ""
                and PLAIN in (one.order, two.order)
                and not one.kind == two.kind == "R"
                and not (hb[i] >> j & 1 or hb[j] >> i & 1)
            ):
                return f"race on {one.location}"
    return ""


def is_sc_consistent(
    events: list[Event], sb: Relation, hb: Relation, mo: Relation, rb: Relation, eco: Relation, identity: Relation
) -> bool:
    strong = sum(1 << i for i, event in enumerate(events) if event.order == SEQ_CST and event.kind != "F")
    fences = sum(1 << i for i, event in enumerate(events) if event.order == SEQ_CST and event.kind == "F")
    if not strong | fences:
        return True
    everything = (1 << len(events)) - 1
    same = [sum(1 << j for j, two in enumerate(events) if one.location == two.location != "") for one in events]
    elsewhere = [row & ~same[i] for i, row in enumerate(sb)]
    scb = union(sb, then(then(elsewhere, hb), elsewhere), [row & same[i] for i, row in enumerate(hb)], mo, rb)
    before = union(only(strong, identity, everything), only(fences, union(identity, hb), everything))
    behind = union(only(strong, identity, everything), only(everything, union(identity, hb), fences))
    psc = union(
        then(then(before, scb), behind),
        only(fences, union(hb, then(then(hb, eco), hb)), fences),
    )
    return not is_cyclic(psc)
