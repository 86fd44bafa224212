"""The atomic operations of lane.c, lane.h and wake.c, in the order of their text, with their memory orders."""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

from tests.litmus.rc11 import RELAXED

RING = pathlib.Path(__file__).resolve().parents[2] / "shm/ring"
FILES = ("lane.h", "lane.c", "wake.c")


class Place(NamedTuple):
    function: str
    number: int  # which operation of the function
    what: str  # "cas word", "load closed", "fence"

    @property
    def text(self) -> str:
        return f"{self.function} {self.number}: {self.what}"


class Code(NamedTuple):
    orders: dict[Place, str]
    functions: dict[str, list[Place]]


ORDER = r"memory_order_(\w+)"
OPERATION = re.compile(
    rf"atomic_(?P<access>load|store|fetch_add)_explicit\(\s*(?P<at>[^,]*?),[^;]*?{ORDER}\s*\)"
    rf"|(?<!\w)swap\([^;]*?{ORDER}\s*\)"
    r"|(?P<fence>mr_fence_full)\(\)",
    re.S,
)
# `MR_MUTANT_IS(...) ? memory_order_relaxed : memory_order_acquire` is the latter in the library; the failure order of
# swap() itself is no operation.
MUTANT = re.compile(r"MR_MUTANT_IS\(\w+\)\s*\?\s*memory_order_relaxed\s*:\s*")
ONLY_MUTANT = re.compile(r"if \(MR_MUTANT_IS\(\w+\)\) \{[^}]*\}")
FUNCTION = re.compile(r"^(?:static )?(?:inline )?[\w ]+?\*?(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.S | re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def read() -> Code:
    orders: dict[Place, str] = {}
    functions: dict[str, list[Place]] = {}
    for file in FILES:
        text = MUTANT.sub("", ONLY_MUTANT.sub("", COMMENT.sub("", (RING / file).read_text())))
        for name, body in FUNCTION.findall(text):
            if name == "swap":
                continue
            for number, found in enumerate(OPERATION.finditer(body)):
                order = next((group for group in found.groups()[2:] if group and group != "mr_fence_full"), "seq_cst")
                if found["fence"]:
                    what = "fence"
                elif found["access"]:
                    location = re.sub(r"\W+$", "", found["at"]).replace("->", ".").split(".")[-1].strip("&*")
                    what = f"{found['access'].replace('fetch_', '')} {location}"
                else:
                    what = "cas word"
                place = Place(name, number, what)
                orders[place] = order
                functions.setdefault(name, []).append(place)
    return Code(orders, functions)


class Orders:
    """What the programs ask for their orders; one of them can be made weak."""

    def __init__(self, code: Code, weak: Place | None = None, used: set[Place] | None = None) -> None:
        self.code, self.weak, self.used = code, weak, used

    def of(self, function: str, *whats: str) -> list[str]:
        """The orders of the function's operations, which must be these: a program is a transcription of them."""
        places = self.code.functions[function]
        found = [place.what for place in places]
        assert found == list(whats), (
            f"{function} has {found}, tests/litmus/programs.py has {list(whats)}: transcribe it"
        )
        if self.used is not None:
            self.used.update(places)
        return [
            "" if p == self.weak and p.what == "fence" else RELAXED if p == self.weak else self.code.orders[p]
            for p in places
        ]
