"""The programs of the pages on migrating: they run, and before and after give the same samples."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from tests import forked
from tests.conftest import ROOT, StartDevstore
from tests.stores import s3_environment

from .test_readme import code_blocks

MIGRATING, NAMES = ROOT / "docs" / "migrating.md", ROOT / "docs" / "s3torchconnector.md"
BLOCKS = [*code_blocks(MIGRATING, "python"), *code_blocks(NAMES, "python")]


def imported(code: str) -> set[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.partition(".")[0] for name in names}


def is_installed(code: str) -> bool:
    if "torchdata.datapipes" in code and importlib.util.find_spec("torchdata.datapipes") is None:
        return False  # it is not there any more from 0.10 on
    return all(importlib.util.find_spec(name) is not None for name in imported(code))


# What ends with a loader is compared, what reads by itself prints; the rest is a few lines of another loader's.
LOADERS = [code for code in BLOCKS if re.search(r"^loader = .*\n\Z", code, re.M) and "torchvision" not in code]
PRINTING = [code for code in BLOCKS if "millrace" in code and code not in LOADERS]


def make_migrated(root: Path) -> None:
    """What the programs of docs/migrating.md read: pictures in a folder for each class, and the same in tar files."""
    for i in range(40):
        file = root / "train" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + i, 20), (255, i, 0)).save(file)
    for shard in range(4):
        (root / "shards").mkdir(exist_ok=True)
        with tarfile.open(root / "shards" / f"{shard:03}.tar", "w") as tar:
            for i in range(10 * shard, 10 * shard + 10):
                picture = (root / "train" / ("cat", "dog")[i % 2] / f"{i:02}.png").read_bytes()
                for name, data in ((f"v1.0/{i:02}.seg.png", b"mask"), (f"v1.0/{i:02}.png", picture)):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                entry = tarfile.TarInfo(f"v1.0/{i:02}.cls")
                entry.size = 1
                tar.addfile(entry, io.BytesIO(b"%d" % (i % 2)))


EXPECTED = [
    r"(tensor\(\d+\)\n){2}",
    "<All keys matched successfully>\\n",
    r"(?s).*\n8\n",  # behind Lightning's tables
    r"32 torch.Size\(\[32\]\)\n8 torch.Size\(\[8\]\)\n",
    r"torch.Size\(\[32, 64, 64, 3\]\) \[([01](, )?){32}\]\ntorch.Size\(\[8, 64, 64, 3\]\) \[([01](, )?){8}\]\n",
    r"40 train/cat/00.png\n(20 torch.Size\(\[20\]\)\n){2}\{'epoch': 0\}\n",
]


@pytest.mark.parametrize(
    ("program", "expected"),
    list(zip(PRINTING, EXPECTED)),
    ids=["dataflux", "checkpoint", "lightning", "s3torchconnector", "folder", "names of s3"],
)
def test_the_migrated_programs_run(devstore: StartDevstore, tmp_path: Path, program: str, expected: str) -> None:
    bucket = tmp_path / "store" / "bucket"
    make_migrated(bucket)
    (tmp_path / "program.py").write_text(program.replace("/data/train", str(bucket / "train")))
    url = devstore("--root", tmp_path / "store").url
    environment = {**os.environ, **s3_environment(url), "STORAGE_EMULATOR_HOST": url}
    done = forked.run(["program.py"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(expected, done.stdout), done.stdout


DIGEST = """
import hashlib
samples = [tuple(sample) for batch in loader for sample in batch]
print(len(samples), hashlib.sha256(repr(sorted(samples)).encode()).hexdigest())
"""
AWS = """#!/bin/sh
# `aws s3 cp URL -`
exec "$MILLRACE_BIN/millrace" cat "$3"
"""


def samples_of(code: str, bucket: Path) -> list[tuple[object, ...]]:
    """What any program for that part of the bucket shall give."""
    names = [path.relative_to(bucket).as_posix() for path in (bucket / "train").glob("*/*")]
    if "shards/" not in code:
        return [(name, (bucket / name).read_bytes()) for name in names]
    members = []
    for shard in (bucket / "shards").iterdir():
        with tarfile.open(shard) as tar:
            members += [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    if "awsio" in code:
        return list(members)
    by_name = dict(members)
    stems = {name[: -len(".cls")] for name in by_name if name.endswith(".cls")}
    return [(by_name[f"{stem}.png"], by_name[f"{stem}.cls"]) for stem in stems]


@pytest.mark.parametrize("program", LOADERS, ids=["-".join(sorted(imported(code))) for code in LOADERS])
def test_before_and_after_give_the_same_samples(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, program: str
) -> None:
    if not is_installed(program):
        pytest.skip(f"{imported(program)} are not all installed")
    bucket = tmp_path / "store" / "bucket"
    make_migrated(bucket)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "aws").write_text(AWS)
    (tools / "aws").chmod(0o755)
    (tmp_path / "program.py").write_text(program + DIGEST)
    environment = {**os.environ, **s3_environment(devstore("--root", tmp_path / "store").url)}
    environment |= {"PATH": f"{tools}{os.pathsep}{environment['PATH']}", "MILLRACE_BIN": str(millrace_bin.parent)}
    done = forked.run(["program.py"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    expected = sorted(samples_of(program, bucket))
    digest = hashlib.sha256(repr(expected).encode()).hexdigest()
    assert done.stdout.splitlines()[-1] == f"{len(expected)} {digest}", done.stderr


def test_the_pages_have_all_of_them() -> None:
    assert len(PRINTING) == len(EXPECTED) == 6
    assert len(LOADERS) == 9 and sum("millrace" in code for code in LOADERS) == 5
