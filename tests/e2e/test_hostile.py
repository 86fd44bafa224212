"""Every operation on a store of S3 with one bad habit (hostile.py): what comes out, docs/retries.md has as a table."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import BIN, StartDevstore
from tests.e2e.hostile import HOSTILE
from tests.python.shards import add
from tests.stores import s3_environment, upload

BIG = random.Random(3).randbytes(20 << 20)  # ranges of a download, parts of an upload
SMALL, OBJECTS = bytes(3000), 60

# What is done with a data set and a checkpoint, an outcome a line.
PROGRAM = """
import json, sys
import millrace, millrace.checkpoint as checkpoint

def stream(uri):
    return sum(len(batch) for batch in millrace.IterableDataset(uri, batch_size=8))

def read(uri):
    dataset = millrace.MapDataset(uri)
    return sum(len(dataset[i]) for i in range(len(dataset)))

def members(uri):
    dataset = millrace.MapDataset(uri)
    return sum(len(dataset[i]["bin"]) for i in range(len(dataset)))

def save(uri):
    with checkpoint.writer(uri) as file:
        file.write(bytes(12_000_000))
    return 0

def load(uri):
    return len(checkpoint.reader(uri).read())

for what, call, uri in (
    ("data set", stream, "s3://data/train/"),
    ("large sample", read, "s3://data/big/"),
    ("shards", members, "s3://data/{0..2}.tar"),
    ("save", save, "s3://out/new"),
    ("save over", save, "s3://out/old"),
    ("load", load, "s3://data/big/b"),
):
    try:
        said = [call(uri), ""]
    except Exception as error:
        said = [type(error).__name__, str(error)]
    print(json.dumps([what, *said]), flush=True)
"""

VERBS = {
    "ls": ["ls", "-r", "s3://data/"],
    "cat": ["cat", "s3://data/train/001"],
    "cp down": ["cp", "s3://data/big/b", "back"],
    "cp up": ["cp", "small", "s3://out/small"],
    "cp over": ["cp", "small", "s3://out/over"],
    "cp up, parts": ["cp", "big", "s3://out/big"],
    "index": ["index", "s3://data/train/", "-o", "saved.mri"],
    "rm": ["rm", "s3://out/a", "s3://out/b"],
    "rm -r": ["rm", "-r", "s3://out/d/"],
    "clean": ["clean", "s3://out"],
}
GOOD = {
    **dict.fromkeys(VERBS, 0),
    "data set": OBJECTS,
    "large sample": len(BIG),
    "shards": 12 * 900,
    "save": 0,
    "save over": 0,
    "load": len(BIG),
}
COMPRESSED, CHANGED = "it came compressed", "changed since the listing"

# Where it does not end well: the status or the exception, and a word of the message.
OUTCOMES: dict[str, dict[str, tuple[object, str]]] = {
    "compresses": {
        **dict.fromkeys(["ls", "index", "rm -r", "clean"], (1, COMPRESSED)),
        **dict.fromkeys(["data set", "large sample"], ("Error", COMPRESSED)),
    },
    "shuffles": {},
    "moves": {},
    "replaces": {
        "cat": (1, CHANGED),
        "cp down": (1, CHANGED),
        **dict.fromkeys(["cp up", "cp up, parts"], (1, "it exists already")),
        "cp over": (1, CHANGED),
        **dict.fromkeys(["data set", "large sample", "shards", "save over", "load"], ("ChangedError", CHANGED)),
        "save": ("ChangedError", "another writer has written it in the meantime"),
    },
}


def a_shard(first: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in range(first, first + 4):
            add(tar, f"{i:02}.bin", bytes(900))
    return file.getvalue()


@pytest.mark.parametrize("habit", HOSTILE)
def test_every_operation(habit: str, devstore: StartDevstore, tmp_path: Path) -> None:
    store = devstore("--memory", "--api", "s3")
    data = {f"train/{i:03}": SMALL + bytes([i]) for i in range(OBJECTS)}
    data.update({f"{i}.tar": a_shard(4 * i) for i in range(3)}, **{"big/b": BIG})
    upload(store.url, "data", data)
    upload(store.url, "out", dict.fromkeys(["old", "over", "a", "b", "d/1", "d/2"], b"theirs"))
    (tmp_path / "big").write_bytes(BIG)
    (tmp_path / "small").write_bytes(SMALL)
    (tmp_path / "millrace.toml").write_text('[memory]\narena_bytes = "128MiB"\n')
    seen: dict[str, tuple[object, str]] = {}
    with HOSTILE[habit](store.port) as proxy:
        environment = {
            **os.environ,
            **s3_environment(proxy.url),
            "MILLRACE_CONFIG": str(tmp_path / "millrace.toml"),
        }
        for what, words in VERBS.items():
            ended = subprocess.run([BIN / "millrace", *words], env=environment, cwd=tmp_path, capture_output=True)
            seen[what] = ended.returncode, ended.stderr.decode()
        ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True)
        for line in ended.stdout.splitlines():
            what, came, said = json.loads(line)
            seen[what] = came, said
    assert seen.keys() == GOOD.keys(), ended.stderr.decode()
    for what, (came, said) in seen.items():
        wanted, word = OUTCOMES[habit].get(what, (GOOD[what], ""))
        assert came == wanted and word in said, f"{habit}, {what}: {came}, {said}"
    if habit != "replaces":
        assert (tmp_path / "back").read_bytes() == BIG
        return
    for name in ("small", "over", "big", "new", "old"):
        with urllib.request.urlopen(f"{store.url}/out/{name}") as reply:
            assert reply.read().startswith(b"theirs"), name
