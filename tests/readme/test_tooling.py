"""The commands that the README and the Makefile name exist, and the launcher reports a broken package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import check_order, check_tree, tidy
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
| `shm/`, `cli/` | rooms; `ring/` has lanes |
| `bench/checkpoint/` | one folder of bench |
| `README.md` | this |

## More
| `docs/` | no longer the tree |
"""
TREE = ["shm/ring/lane.c", "cli/main.c", "bench/checkpoint/run.py", "README.md"]


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


def test_the_order_of_the_supervisors_modules_is_checked(tmp_path: Path) -> None:
    assert check_order.check(ROOT / "supervisor") == []
    mutant = tmp_path / "supervisor"
    shutil.copytree(ROOT / "supervisor", mutant)
    lanes = mutant / "lanes.c"
    lanes.write_text(lanes.read_text() + "\nvoid f(struct mr_supervisor *s)\n{\n    mr_clients_settle(s);\n}\n")
    (mutant / "stray.c").write_text("")
    found = "\n".join(check_order.check(mutant))
    assert "lanes uses mr_clients_settle of clients, which comes after it" in found
    assert "stray has no row in the order" in found


def test_files_that_call_each_other_in_a_circle_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('/* mr_c */\nint mr_a(void)\n{\n    return mr_b("mr_c", \'"\');\n}\n')
    (tmp_path / "b.c").write_text("const int mr_c[2] = {1, 2};\nint mr_b(char *text, char c)\n{\n    return mr_d;\n}\n")
    (tmp_path / "d.c").write_text("static int mr_a(void)\n{\n    return 0;\n}\nint mr_d = 1;\n")
    assert check_order.circles(check_order.calls(tmp_path)) == []
    (tmp_path / "d.c").write_text("int mr_d = 1;\nint mr_e(void)\n{\n    return mr_a();\n}\n")
    assert check_order.circles(check_order.calls(tmp_path)) == [["a.c", "b.c", "d.c"]]


def test_a_file_that_no_readme_names_is_found() -> None:
    readmes = {Path(): "", Path("base"): "| `a.c`, `b.{c,h}` | x |\n| `readers/*_reader.py` | y |"}
    named = ["base/a.c", "base/b.h", "base/readers/s3_reader.py", "base/README.md", "scripts/any.py"]
    assert check_tree.unnamed(named, readmes) == []
    assert check_tree.unnamed(["base/other.c"], readmes) == ["base/other.c: base/README.md does not name it"]


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
