"""The commands that the README and the Makefile name exist, and the launcher reports a broken package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, Server


def test_every_make_target_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_make_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)) - {"help"}
    assert targets == set(re.findall(r"^make ([a-z]+)", shown, re.M))


def test_setup_refuses_an_unknown_level() -> None:
    done = subprocess.run(["scripts/setup", "everything"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: scripts/setup" in done.stderr


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
