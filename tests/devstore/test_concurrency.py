"""Many clients at once on the same names: every answer is one whole generation of one object."""

from __future__ import annotations

import base64
import random
import subprocess
import threading
from pathlib import Path

import google_crc32c
import pytest

from tests.conftest import BIN, StartDevstore
from tests.devstore.conftest import fetch

NAMES = ["a", "a/b", "a/b/c", "d/", "e"]  # files in each other's way


def crc(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@pytest.mark.random
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_readers_and_writers_of_the_same_names(devstore: StartDevstore, tmp_path: Path, kind: str) -> None:
    server = devstore("--threads", "4", *(["--memory"] if kind == "memory" else ["--root", tmp_path]))
    base = "/storage/v1/b/bucket/o"
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    wrong: list[object] = []
    seen: set[tuple[str, int]] = set()

    def expect(reply, *statuses: int) -> bool:
        if reply.status not in statuses or reply.broken:
            wrong.append((reply.status, reply.body[:200], reply.broken))
        return bool(reply.status == 200)

    def work(seed: int) -> None:
        source = random.Random(seed)
        for i in range(60):
            name = source.choice(NAMES)
            coded = name.replace("/", "%2F")
            data = f"{name} {seed} {i} ".encode() * source.randrange(1, 3000)
            action = source.choice(["put", "put", "get", "delete", "list"])
            if action == "put":
                reply = fetch(server, f"/upload{base}?uploadType=media&name={coded}", "POST", data)
                if expect(reply, 200):
                    seen.add((name, int(reply.json["generation"])))
                    if reply.json["crc32c"] != crc(data):
                        wrong.append("crc32c of an upload")
            elif action == "get":
                reply = fetch(server, f"/bucket/{coded}")
                if expect(reply, 200, 404) and (
                    reply.headers["x-goog-hash"] != f"crc32c={crc(reply.body)}"
                    or not reply.body.startswith(name.encode() + b" ")
                ):
                    wrong.append(("torn read", name))
            elif action == "delete":
                expect(fetch(server, f"{base}/{coded}", "DELETE"), 204, 404)
            else:
                reply = fetch(server, f"{base}?fields=items(name,crc32c)")
                names = [item["name"] for item in reply.json.get("items", [])]
                if not expect(reply, 200) or names != sorted(set(names)):
                    wrong.append(names)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len({generation for _, generation in seen}) == len(seen)  # no generation twice
    for item in fetch(server, base).json.get("items", []):
        assert (item["name"], int(item["generation"])) in seen


@pytest.mark.random
def test_only_one_of_many_creators_wins(devstore: StartDevstore, tmp_path: Path) -> None:
    server = devstore("--threads", "4", "--root", tmp_path)
    fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}')
    for i in range(20):
        statuses: list[int] = []

        def create(text: str, i: int = i, statuses: list[int] = statuses) -> None:
            target = f"/upload/storage/v1/b/bucket/o?uploadType=media&name=x{i}&ifGenerationMatch=0"
            statuses.append(fetch(server, target, "POST", text.encode()).status)

        threads = [threading.Thread(target=create, args=(str(k),)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] + [412] * 5


def test_too_few_descriptors() -> None:
    """Else connections that cannot be accepted would keep it busy."""
    server: list[str | Path] = [BIN / "millrace-devstore", "--memory", "--listen", "127.0.0.1:0", "--exit-with-parent"]
    done = subprocess.run(["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", *server], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert "16 descriptors may be open" in done.stderr and "ulimit -n" in done.stderr
