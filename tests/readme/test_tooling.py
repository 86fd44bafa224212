"""The commands that the README and the Makefile name exist, and the launcher reports a broken package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import tidy
from scripts.check_tree import problems
from tests.conftest import ROOT, Server


def test_every_make_target_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"^make ([a-z0-9-]+)", (ROOT / "README.md").read_text(), re.M))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_make_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M)) - {"help"}
    assert targets == set(re.findall(r"^make ([a-z0-9-]+)", shown, re.M))


def test_setup_refuses_an_unknown_level() -> None:
    done = subprocess.run(["scripts/setup", "everything"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: scripts/setup" in done.stderr


README = """
# x
## The tree

| path | what |
|---|---|
| `shm/`, `cli/` | rooms; `shm/base/` has sizes |
| `bench/checkpoint/` | one folder of bench |
| `README.md` | this |

## More
| `docs/` | no longer the tree |
"""
TREE = ["shm/base/size.c", "cli/main.c", "bench/checkpoint/run.py", "README.md"]


def test_check_finds_a_stray_path() -> None:
    assert problems(README, TREE) == []
    for stray in ("checkpoints/epoch=0.ckpt", "NOTE.txt", "docs/page.md", "bench/run.py", "shm.c"):
        assert problems(README, [*TREE, stray]) == [f"{stray}: not in the README's table of the tree"]
    assert [text.split(":")[0] for text in problems(README, TREE[:2] + TREE[3:])] == ["bench/checkpoint"]


def test_the_tree_is_in_the_readme() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "check_tree.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scripts/check_tree.py" in (ROOT / "scripts" / "lint").read_text()


def test_launcher_without_its_program_says_so() -> None:
    launch = ROOT / "python" / "millrace" / "_launch.py"
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['main']()"
    done = subprocess.run([sys.executable, "-c", code, str(launch)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot start" in done.stderr and "No such file" in done.stderr


def test_fake_gcs_server_answers(fake_gcs: Server) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": fake_gcs.url}
    )
    bucket = client.create_bucket("bucket")
    bucket.blob("a").upload_from_string(b"hello")
    assert [(blob.name, blob.size) for blob in client.list_blobs("bucket")] == [("a", 5)]
    assert bucket.blob("a").download_as_bytes() == b"hello"


def check_order(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_order.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_order_of_the_supervisors_modules_is_checked(tmp_path: Path) -> None:
    done = check_order(ROOT / "supervisor")
    assert done.returncode == 0, done.stderr
    mutant = tmp_path / "supervisor"
    shutil.copytree(ROOT / "supervisor", mutant)
    lanes = mutant / "lanes.c"
    lanes.write_text(lanes.read_text() + "\nvoid f(struct mr_supervisor *s)\n{\n    mr_clients_settle(s);\n}\n")
    (mutant / "stray.c").write_text("")
    done = check_order(mutant)
    assert done.returncode == 1
    assert "lanes uses mr_clients_settle of clients, which comes after it" in done.stderr
    assert "stray has no row in the order" in done.stderr


def test_clang_tidy_looks_again_when_a_header_or_a_flag_changed(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;\n")
    header = tmp_path / "a.h"
    header.write_text("extern int a;\n")
    entry = {"file": str(tmp_path / "a.c"), "command": "cc -c a.c"}
    passed = tidy.digest(entry, [header], "clang-tidy 14")
    assert tidy.digest(entry, [header], "clang-tidy 14") == passed
    assert tidy.digest({**entry, "command": "cc -O1 -c a.c"}, [header], "clang-tidy 14") != passed
    assert tidy.digest(entry, [header], "clang-tidy 19") != passed
    header.write_text("extern long a;\n")
    assert tidy.digest(entry, [header], "clang-tidy 14") != passed
    assert "scripts/tidy.py" in (ROOT / "scripts" / "lint").read_text()
    for caller in ("scripts/check", ".ci/run"):
        assert "scripts/lint" in (ROOT / caller).read_text()
