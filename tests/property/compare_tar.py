"""Compares shm/index/tar.c and sample.c (through tar_dump) with Python's tarfile, GNU tar and WebDataset's rules:
python3 compare_tar.py PATH-OF-TAR_DUMP.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$", re.DOTALL)  # WebDataset 1.0.2
META = re.compile(r"__[^/]*__($|/)")
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
PIECES = ("a", "b", ".", "..", "jpg", "JPG", "cls", "x" * 60, "y" * 130, "é", "__m__", "d.e", "", "json", "__bad__")

Found = tuple[list[Any], list[Any], list[str]]


class Dump:
    """tar_dump, one archive after another."""

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, path: Path) -> Found:
        """Members, samples, and the words of the last line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        members, samples = [], []
        last: list[str] = []
        for line in iter(self._process.stdout.readline, "\n"):
            assert line, "tar_dump has ended"
            words = line.rstrip("\n").split(" ")
            if words[0] == "member":
                begin, data, size, regular = map(int, words[1:5])
                members.append((begin, data, size, regular == 1, bytes.fromhex(words[5])))
            elif words[0] == "sample":
                samples.append((int(words[1]), int(words[2]), words[3] == "1", bytes.fromhex(words[4])))
            else:
                last = words
        return members, samples, last

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


def name_of(rng: random.Random) -> str:
    name = "/".join("".join(rng.choices(PIECES, k=rng.randint(1, 3))) for _ in range(rng.choice((1, 1, 2, 3))))
    return name.strip("\n") or "n"


def names_of(rng: random.Random) -> list[str]:
    """Some of them with one key, side by side."""
    names = []
    for _ in range(rng.randint(0, 12)):
        name = name_of(rng)
        names.append(name)
        if rng.random() < 0.5:
            names += [f"{name}.{suffix}" for suffix in rng.sample(("cls", "JSON", "seg.png", "__bad__"), 2)]
    return names


def write(path: Path, rng: random.Random, format: int) -> bool:
    """A random archive; false where this format cannot have its names."""
    names = names_of(rng)
    some = names and format == tarfile.PAX_FORMAT  # tarfile does not read one without members
    headers = {"comment": "of all"} if some and rng.random() < 0.3 else {}
    try:
        with tarfile.open(path, "w", format=format, pax_headers=headers) as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                kinds = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE)
                info.type = rng.choice(kinds) if rng.random() < 0.2 else tarfile.REGTYPE
                info.linkname = "l" * rng.choice((3, 150)) if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
                info.mtime = rng.choice((0, 1234.5)) if format == tarfile.PAX_FORMAT else 0
                info.uid = rng.choice((0, 1 << 22))
                if format == tarfile.PAX_FORMAT and rng.random() < 0.1:
                    info.pax_headers = {"SCHILY.xattr.user.x": "v" * rng.choice((10, 2000))}
                data = rng.randbytes(rng.choice((0, 1, 511, 512, 513, 3000))) if info.isreg() else b""
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    except (ValueError, UnicodeError):
        return False
    return True


def expected(path: Path) -> tuple[list[Any], list[Any]]:
    members = []
    with tarfile.open(path, errorlevel=2) as tar:
        for info in tar:
            size = info.size if info.isreg() else 0
            name = info.name.encode("utf-8", "surrogateescape")
            members.append((info.offset, info.offset_data, size, info.isreg(), name))
    return members, samples_of(members)


def samples_of(members: list[Any]) -> list[Any]:
    """WebDataset's group_by_keys over the regular members that are no metadata, with the ranges."""
    samples: list[Any] = []
    current = None
    for begin, data, size, regular, name in members:
        text = name.decode("utf-8", "surrogateescape")
        found = SPLIT.match(text) if regular and not META.match(text) else None
        if found is None:
            continue
        key = found[1].encode("utf-8", "surrogateescape")
        bad = found[2].lower() == "__bad__" and size > 0
        if current is None or current[3] != key:
            current = [begin, 0, False, key]
            samples.append(current)
        current[1] = data + size
        current[2] = current[2] or bad
    return [tuple(sample) for sample in samples]


def without_slash(members: list[Any]) -> list[Any]:
    """tarfile takes the slash off the end of folders and of paths in pax headers."""
    return [(begin, data, size, regular, name.rstrip(b"/")) for begin, data, size, regular, name in members]


def compare(dump: Dump, path: Path, what: str) -> int:
    members, samples, last = dump.read(path)
    want_members, want_samples = expected(path)
    assert last[0] == "end", (what, last)
    assert without_slash(members) == without_slash(want_members), (what, members, want_members)
    assert samples == want_samples, (what, samples, want_samples)
    return len(members)


def damage(dump: Dump, path: Path, rng: random.Random) -> None:
    """Cut, or with some bytes changed: an error or members, all of them inside; never more than there are."""
    data = bytearray(path.read_bytes())
    size = rng.randrange(len(data) + 1) if rng.random() < 0.5 else len(data)
    del data[size:]
    for _ in range(rng.randint(0, 3) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    other = path.with_name("damaged.tar")
    other.write_bytes(data)
    members, samples, last = dump.read(other)
    assert last[0] in ("end", "error"), last
    assert "windows" not in last, last
    assert all(begin < start and start + size <= len(data) for begin, start, size, _, _ in members)
    assert samples == samples_of(members)


def gnu_tar(dump: Dump, folder: Path, rng: random.Random) -> int:
    """What GNU tar makes of files, in each of its formats."""
    tree = folder / "tree"
    count = 0
    for i in range(40):
        deep = "/".join(rng.choices(("d", "long" * 20, "é"), k=rng.randint(0, 2)))
        file = tree / deep / f"sample-{i // 2:03d}.{('jpg', 'cls')[i % 2]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(rng.choice((0, 10, 512, 5000))))
    for format in ("v7", "oldgnu", "gnu", "ustar", "pax"):
        path = folder / f"{format}.tar"
        made = subprocess.run(
            ["tar", f"--format={format}", "--sort=name", "-C", str(tree), "-cf", str(path), "."], capture_output=True
        )
        if made.returncode == 0:  # v7 and ustar cannot have every name
            count += compare(dump, path, f"GNU tar, {format}")
    sparse = tree / "hole.bin"
    with sparse.open("wb") as hole:
        hole.truncate(1 << 20)
        hole.seek(1 << 19)
        hole.write(b"x" * 4096)
    for format in ("gnu", "pax"):
        path = folder / "sparse.tar"
        subprocess.run(
            ["tar", "--sparse", f"--format={format}", "-C", str(tree), "-cf", str(path), "hole.bin"], check=True
        )
        _, _, last = dump.read(path)
        assert " ".join(last).startswith("error usage byte") and "a sparse file" in " ".join(last), last
    return count


def main() -> int:
    dump = Dump(sys.argv[1])
    rng = random.Random(7)
    members = archives = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "a.tar"
        for i in range(1500):
            if write(path, rng, FORMATS[i % 3]):
                archives += 1
                members += compare(dump, path, f"archive {i}")
                damage(dump, path, rng)
        if shutil.which("tar") is not None:
            members += gnu_tar(dump, folder, rng)
        dump.close()
    print(f"{archives} archives, {members} members")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
