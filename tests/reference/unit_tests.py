"""The reference's own unit tests, after the sed: which fail, and why.

They give the library a fake of google-cloud-storage that lives in the process. millrace downloads in other processes:
both sides are given Google's client and the run's store instead (drivers/fake_gcs.py). What the reference does not pass
then either is left out. What still fails is classed: "internal" where the test replaces or calls something within the
reference's library, "on purpose" where docs/migrating.md tells of the difference. Anything else is "behaviour", and
fails the run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree
from pathlib import Path

from tests.reference import stores
from tests.reference.environment import HERE, Side

FOLDER = "dataflux_pytorch/tests"
FAKE = "dataflux_client_python/dataflux_core/tests/fake_gcs.py"
MOCKED = "internal: replaces the reference's `dataflux_core` by a mock and looks at the calls"
UPLOADS = "internal: the reference's uploads in Python; millrace's are of its write workers"
STREAM = "on purpose: the file is not a BytesIO of the whole checkpoint, but reads and uploads as it is used"
PERMISSIONS = "on purpose: a missing permission to compose does not stop the job, which continues without"
AGENT = "internal: looks for the reference's user agent in Google's client; millrace's requests have their own"
WORDS = "on purpose: the same ValueError in other words"
CLIENT = "internal: looks for the client in `__dict__`; it is made where it is asked for"
CLASSES = [  # of file::test, the first that matches
    (r"^test_multipart::", UPLOADS),
    (r"^test_dataflux_checkpoint::test_df_checkpoint_buffer_flush", UPLOADS),
    (r"^test_dataflux_checkpoint::test_(reader|writer|df_checkpoint_buffer_init)", STREAM),
    (r"^test_dataflux_lightning_checkpoint::test_save_and_load_checkpoint_", AGENT),
    (r"^test_dataflux_lightning_gcs_filesystem::test_create_stream_.*_write_mode", UPLOADS),
    (r"^test_dataflux_lightning_gcs_filesystem::test_create_stream_.*_invalid_mode", WORDS),
    (r"^test_dataflux_mapstyle_dataset::test_setstate", CLIENT),
    (r"_dataset::test_init_without_perm", PERMISSIONS),
    (r"_dataset::test_init_(retry_exception_passes|raises_exception_when_retries_exhaust)", MOCKED),
    (r"^test_dataflux_iterable_dataset::test_iter_(single_process|multiple_processes)", MOCKED),
    (r"^test_dataflux_mapstyle_dataset::test_getitems?(_initialize_client)?$", MOCKED),
    (r"^test_dataflux_mapstyle_dataset::test_list_GCS_blobs_with_spawn_multiprocess", MOCKED),
    (r"^test_dataflux_mapstyle_dataset::test_init_without_storage_client_constructed_when_needed", MOCKED),
]
# The tests take these from the modules, where they serve the reference's checks, before they come to what they test.
CONSTANTS = """
from millrace.dataflux import dataflux_iterable_dataset, dataflux_mapstyle_dataset

for module in (dataflux_iterable_dataset, dataflux_mapstyle_dataset):
    module.FORK, module.CREATE, module.DELETE = "fork", "storage.objects.create", "storage.objects.delete"
"""


def class_of(name: str) -> str:
    return next((text for pattern, text in CLASSES if re.search(pattern, name)), "behaviour")


def run_tests(side: Side, url: str, work: Path) -> dict[str, str]:
    """file::test -> "" or how it failed."""
    work.mkdir()
    (work / "home").mkdir()
    (work / "observed").mkdir()
    report = work / "report.xml"
    command = [str(side.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    environment = side.environment(work, url)
    environment["PYTHONPATH"] += f"{os.pathsep}{side.tree / 'dataflux_client_python'}"
    subprocess.run(
        [*command, f"--junitxml={report}", f"--rootdir={side.tree}", str(side.tree / FOLDER)],
        cwd=work,
        env=environment,
        stdout=(work / "out").open("w"),
        stderr=subprocess.STDOUT,
    )
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        place, name = case.get("classname") or "", case.get("name") or ""
        file = (place or name).split(".tests.")[-1].split(".")[0]
        name = name if place else "(the whole file)"
        problems = [child for child in case if child.tag in ("failure", "error")]
        found[f"{file}::{name}"] = (problems[0].get("message") or problems[0].text or "?") if problems else ""
    return found


def run(pair: tuple[Side, Side], work: Path) -> int:
    """Prints the table; how many failures are behaviour."""
    control, ours = pair
    if not (control.tree / FAKE).exists():
        print(f"\nThe unit tests need {FAKE}: clone the reference with --recurse-submodules.")
        return 0
    for side in pair:
        shutil.copy(HERE / "drivers" / "fake_gcs.py", side.tree / FAKE)
    (ours.tree / FOLDER / "conftest.py").write_text(CONSTANTS)
    # The reference's own listing and downloads would be found through the submodule.
    for path in (ours.tree / FAKE).parent.parent.glob("*.py"):
        path.write_text("")
    data = work / "data-of-unit-tests"
    data.mkdir()
    results = []
    for side in pair:
        place = work / f"unit-{side.name}"
        place.mkdir()
        with stores.store("devstore", data, place) as url:
            results.append(run_tests(side, url, place / "tests"))
    expected, found = results
    print(f"\n| unit test of the reference | {ours.name} |\n|---|---|")
    behaviour = 0
    classes: dict[str, list[str]] = {}
    found = {name: problem for name, problem in found.items() if not (problem and expected.get(name))}
    for name, problem in sorted(found.items()):
        if problem:
            kind = class_of(name)
            behaviour += kind == "behaviour"
            classes.setdefault(kind if kind != "behaviour" else f"**behaviour**: {problem[:200]}", []).append(name)
    for kind, names in sorted(classes.items()):
        text = kind.replace("|", "\\|").replace("\n", " ")
        print(f"| {', '.join(f'`{name}`' for name in names)} | {text} |")
    passed = sum(not problem for problem in found.values())
    print(
        f"| {passed} of {len(found)} pass; with the reference {sum(not p for p in expected.values())} | |", flush=True
    )
    return behaviour
