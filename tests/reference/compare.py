"""What two sides did, compared: prints, samples, objects left in the store, files left in the working directory."""

from __future__ import annotations

import collections
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reference.execute import Result
from tests.reference.programs import Program

SAME, ORDER, ALIKE, BETTER, DIFFERENT = "same", "same but for the order", "fails alike", "runs here only", "DIFFERENT"
GAIN = re.compile(r": raises (?!ValueError|TypeError|PermissionError)")  # those refuse, and are to be the same
OK = {SAME, ORDER, ALIKE, BETTER}


@dataclass
class Verdict:
    kind: str
    text: str
    details: str = ""

    @property
    def ok(self) -> bool:
        return self.kind in OK


def normal(printed: str, tree: str) -> list[str]:
    """The lines without what no two runs have alike: times, addresses, the folder of the copy, progress."""
    lines = []
    for line in printed.replace(tree, "TREE").splitlines():
        if "it/s" in line or "s/it" in line or "\r" in line or line.endswith(" so far"):  # each so many seconds
            continue
        line = re.sub(r"0x[0-9a-f]+", "0x", line)
        line = re.sub(r"\d+\.\d+(e[-+]?\d+)?|\b\d+m\d+s\b|\b(in|took) \d+s\b|\(\d+:\d\d:\d\d\)", "#", line)
        lines.append(line.replace("millrace.dataflux", "dataflux_pytorch").rstrip())
    return lines


def epochs(result: Result) -> list[list[tuple[Any, ...]]]:
    """Of each process that had a loader: (loader, epoch, kind of batch, digests) of each batch, in order."""
    found = [[(b["loader"], b["epoch"], b["kind"], tuple(b["samples"])) for b in batches] for batches in result.batches]
    return sorted(batches for batches in found if batches)


def without_order(batches: list[tuple[Any, ...]]) -> Any:
    """How many batches of which kind and size each epoch had, and which samples."""
    shapes: dict[Any, list[Any]] = collections.defaultdict(list)
    samples: dict[Any, list[str]] = collections.defaultdict(list)
    for loader, epoch, kind, digests in batches:
        shapes[loader, epoch].append((kind, len(digests)))
        samples[loader, epoch] += digests
    return {key: (sorted(shapes[key]), sorted(samples[key])) for key in shapes}


def counts(result: Result) -> str:
    batches = epochs(result)
    if not batches:
        return "no batches"
    of_one = [f"{len(each)} batches, {sum(len(batch[3]) for batch in each)} samples" for each in batches]
    return of_one[0] if len(of_one) == 1 else f"{len(of_one)} processes: " + "; ".join(of_one)


def same_value(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_value(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(same_value(a, b) for a, b in zip(one, other))
    return bool(one == other) or (type(one) is type(other) and vars_of(one) == vars_of(other) is not None)


def vars_of(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def load(path: Path) -> Any:
    """What a checkpoint holds: a file of torch.save, or a folder of torch.distributed.checkpoint."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    if path.is_file():
        return torch.load(path, map_location="cpu", weights_only=False)
    state: dict[str, Any] = {}
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def shapes(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return {key: shapes(each) for key, each in value.items()}
    return [shapes(each) for each in value] if isinstance(value, (list, tuple)) else type(value)


def plain(name: str) -> str:
    """A shard's name without the id of its save, which millrace adds so that a save never overwrites the last one."""
    return re.sub(r"(__\d+_\d+)-[0-9a-f]+\.distcp$", r"\1.distcp", name)


def objects(folder: Path) -> dict[str, str]:
    """Name -> digest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = plain(str(path.relative_to(folder)))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def same_saved(control: Result, ours: Result, races: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether what they saved is the same, by its bytes or by what it loads as; and which objects there are.

    Of `races` no two runs have the same values: names and shapes are compared.
    """
    theirs, mine = objects(control.saved), objects(ours.saved)
    if theirs.keys() != mine.keys():
        return False, f"objects {sorted(mine)}, the reference's {sorted(theirs)}"
    equal, loaded = 0, set()
    for name in theirs:
        if theirs[name] == mine[name]:
            equal += 1
            continue
        path = Path(name)
        sharded = (control.saved / path.parent / ".metadata").exists() and path.suffix != ".pt"
        loaded.add(path.parent if sharded else path)
    for path in sorted(loaded):
        try:
            both = load(control.saved / path), load(ours.saved / path)
            same = same_value(*(map(shapes, both) if str(path) in races else both))
        except Exception as error:
            return False, f"{path}: {type(error).__name__}: {error}"
        if not same:
            return False, f"{path} does not load as the same"
    text = f"{len(theirs)} objects" if theirs else ""
    text += f" ({equal} the same byte for byte, the others by what they load as)" if loaded else ""
    raced = [name for name in races if Path(name) in loaded]
    text += f"; {', '.join(raced)} by names and shapes, since the program changes it while it saves it" if raced else ""
    return True, text


def compare(program: Program, control: Result, ours: Result, trees: tuple[str, str]) -> Verdict:
    if control.failed and ours.failed:
        theirs, mine = control.error(), ours.error()
        if theirs.split(":")[0].split(".")[-1] == mine.split(":")[0].split(".")[-1]:
            return Verdict(ALIKE, mine)
        return Verdict(DIFFERENT, f"fails as {mine}; the reference as {theirs}", ours.said[0][-3000:])
    if ours.failed:
        return Verdict(DIFFERENT, f"fails: {ours.error()}", ours.said[0][-3000:])
    if control.failed:
        return Verdict(BETTER, f"the reference fails: {control.error()}")

    found = [counts(ours)]
    lines = [[normal(text, tree) for text in side.printed] for side, tree in zip((control, ours), trees)]
    gained = [gain for one, other in zip(*lines) for gain in gains(one, other)]
    if gained:
        return Verdict(BETTER, f"where the reference raises: {'; '.join(gained)}")
    theirs_seen, ours_seen = epochs(control), epochs(ours)
    ordered = theirs_seen == ours_seen
    loose = [without_order(each) for each in theirs_seen] == [without_order(each) for each in ours_seen]
    lost = samples_lost(control, ours)
    if lost:
        return Verdict(BETTER, f"{counts(ours)}; the reference's threads lose {lost} of them")
    if not ordered and (program.sorted or not loose):
        text = f"trained on {counts(ours)}; the reference on {counts(control)}"
        return Verdict(DIFFERENT, text, detail_of(control, ours))
    if program.prints:
        if lines[0] != lines[1]:
            ordered = False
            if [sorted(each) for each in lines[0]] != [sorted(each) for each in lines[1]]:
                differing = [line for line in lines[1][0] if line not in lines[0][0]][:5]
                missing = [line for line in lines[0][0] if line not in lines[1][0]][:5]
                return Verdict(DIFFERENT, f"prints {differing}; the reference {missing}")
        found.append("prints the same")
    same, text = same_saved(control, ours, program.races)
    if not same:
        return Verdict(DIFFERENT, text)
    theirs_left, ours_left = ({plain(name) for name in side.names} for side in (control, ours))
    if theirs_left != ours_left:
        return Verdict(DIFFERENT, f"leaves {sorted(ours_left ^ theirs_left)} on one side only")
    if control.files != ours.files:
        return Verdict(DIFFERENT, f"files {sorted(ours.files)}, the reference's {sorted(control.files)}")
    found += [text] if text else []
    return Verdict(SAME if ordered else ORDER, ", ".join(part for part in found if part != "no batches"))


def samples_lost(control: Result, ours: Result) -> str:
    """How many samples only ours has, where the reference's has the others and a traceback of a thread for these."""
    seen = [
        collections.Counter(s for batches in epochs(side) for b in batches for s in b[3]) for side in (control, ours)
    ]
    failed = re.search(r"^Exception in thread .*?^([\w.]+): ", "\n".join(control.said), re.M | re.S)
    if not failed or seen[0] - seen[1] or seen[0] == seen[1]:
        return ""
    return f"{sum((seen[1] - seen[0]).values())} ({failed[1]})"


def gains(control: list[str], ours: list[str]) -> list[str]:
    """The lines of ours where the reference has "LABEL: raises ERROR", if nothing else differs."""
    if len(control) != len(ours):
        return []
    differing = [(one, other) for one, other in zip(control, ours) if one != other]
    if not all(GAIN.search(one) and ": raises " not in other for one, other in differing):
        return []
    return [one for one, _ in differing]


def detail_of(control: Result, ours: Result) -> str:
    return f"reference: {epochs(control)}"[:1500] + f"\nmillrace: {epochs(ours)}"[:1500]
