"""The compatibility run (tests/reference/run) by itself, over a mock of the reference; and the users' programs in
variations/ against what the reference printed for them.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD, ROOT
from tests.reference import compare, data, environment, execute, unit_tests
from tests.reference.compare import ALIKE, BETTER, DIFFERENT, ORDER, SAME
from tests.reference.execute import Result
from tests.reference.programs import BUCKET, CANNOT, PROGRAMS, Program
from tests.stores import TEMPORARY_PREFIX

# A library by the reference's name that lists and downloads by Google's client, one object after the other.
LIBRARY = """
from google.cloud import storage

class Config:
    def __init__(self, prefix=None, **others):
        self.prefix = prefix

class DataFluxMapStyleDataset:
    def __init__(self, project_name, bucket_name, config, data_format_fn=bytes):
        self.bucket = storage.Client(project=project_name).bucket(bucket_name)
        self.objects = [(blob.name, blob.size) for blob in self.bucket.list_blobs(prefix=config.prefix)]
        self.data_format_fn = data_format_fn

    def __len__(self):
        return len(self.objects)

    def __getitem__(self, number):
        return self.data_format_fn(self.bucket.blob(self.objects[number][0]).download_as_bytes())
"""
README = """
```python
from dataflux_pytorch import dataflux_mapstyle_dataset
config = dataflux_mapstyle_dataset.Config(prefix="<PREFIX>")
dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset("<PROJECT_NAME>", "<BUCKET_NAME>", config)
print(dataset.objects[0], len(dataset), dataset[3][:8])
```
```python
print(left_to_the_reader)
```
"""


@pytest.fixture
def mock(tmp_path: Path) -> Path:
    """A checkout of two files."""
    checkout = tmp_path / "checkout"
    library = checkout / "dataflux_pytorch"
    library.mkdir(parents=True)
    (library / "dataflux_mapstyle_dataset.py").write_text(LIBRARY)
    (checkout / "README.md").write_text(README)
    return checkout


def run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.reference.main", "--plain", "--store", "devstore", *words]
    variables = {**os.environ, "MR_REFERENCE": str(checkout)}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


def test_a_run_prints_the_table(mock: Path) -> None:
    before = {path: path.read_bytes() for path in mock.rglob("*") if path.is_file()}
    done = run(mock, "--only", "README.md (every block", "--no-unit-tests")
    assert (done.returncode, done.stderr) == (0, "")
    rows = done.stdout.splitlines()
    assert rows[0] == "| program of the reference | devstore |"
    assert rows[2] == "| `README.md`, every block | same: prints the same |"
    assert {path: path.read_bytes() for path in mock.rglob("*") if path.is_file()} == before


def test_an_interrupted_run_goes_on(mock: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text('{"README.md (every block) in devstore": "| a row that is kept |"}')
    words = ("--only", "README.md (every block", "--no-unit-tests", "--rows", str(rows))
    assert run(mock, *words).stdout.splitlines()[2] == "| a row that is kept |"
    rows.unlink()
    assert "prints the same" in run(mock, *words).stdout and "prints the same" in rows.read_text()


def test_a_difference_fails_the_run(mock: Path) -> None:
    library = mock / "dataflux_pytorch" / "dataflux_mapstyle_dataset.py"
    library.write_text(library.read_text().replace("self.objects = [", "self.objects = [('one more', 1)] + ["))
    done = run(mock, "--only", "README.md (every block", "--no-unit-tests")
    assert done.returncode == 1 and "**DIFFERENT**: prints" in done.stdout and "one more" in done.stdout


def test_a_run_without_a_checkout_says_what_to_set(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing")
    assert done.returncode == 1 and "MR_REFERENCE does not name a folder" in done.stderr


def test_the_sed() -> None:
    text = "import dataflux_core\n    from dataflux_core import download\nfrom dataflux_pytorch.lightning import X\n"
    assert environment.moved(text) == (
        "import millrace.dataflux.install\nimport dataflux_core\n"
        "    import millrace.dataflux.install\n    from dataflux_core import download\n"
        "from millrace.dataflux.lightning import X\n"
    )


def test_programs_are_told_apart() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names) and not CANNOT.keys() & {program.file for program in PROGRAMS}


# ---- what users do beyond the repository's programs ----

VARIATIONS = [program for program in PROGRAMS if program.file.startswith("variations/")]
PRINTED = environment.HERE / "variations" / "printed"  # by the reference, in tests/reference/run


def _parameter(program: Program) -> Any:
    # Each worker of these imports torch.
    marks = [pytest.mark.nightly] if program.variant in ("spawn", "forkserver") else []
    return pytest.param(program, id=" ".join([Path(program.file).stem, program.variant]), marks=marks)


@pytest.mark.parametrize("program", [_parameter(program) for program in VARIATIONS])
def test_variations_print_what_the_reference_prints(program: Program, tmp_path: Path) -> None:
    tree, folder = tmp_path / "tree", tmp_path / "data"
    (tree / "variations").mkdir(parents=True)
    folder.mkdir()
    for kind in program.data:
        data.KINDS[kind](folder)
    path = tree / program.file
    path.write_text(environment.moved((environment.HERE / program.file).read_text()))
    side = environment.Side("millrace", Path(sys.executable), tree, tree, (BUILD / "python",))
    found = execute.execute(program, side, "devstore", folder, tmp_path / "work")
    assert not found.failed, found.said[0]
    name = "-".join([path.stem, program.variant]).strip("-")
    expected = (PRINTED / f"{name}.txt").read_text().splitlines()
    lines = found.printed[0].splitlines()
    assert len(lines) == len(expected)
    differing = [(one, other) for one, other in zip(expected, lines) if one != other]
    assert [other for one, other in differing if not compare.GAIN.search(one) or ": raises " in other] == []
    if path.stem == "clients":  # where the reference raises, the same as without a client
        assert len({line.rsplit(": ")[-1] for line in lines if line.startswith("map")}) == 1
        assert len({line.rsplit(": ")[-1] for line in lines if line.startswith("iterable")}) == 1
    assert not any(name.startswith(f"{BUCKET}/{TEMPORARY_PREFIX}") for name in found.names)


# ---- what counts as a difference ----

PROGRAM = Program("program.py", ())
TREES = ("/control", "/millrace")


@pytest.fixture
def result(tmp_path: Path) -> Result:
    batches = [{"loader": 0, "epoch": 0, "kind": "list", "samples": [a, b]} for a, b in ("ab", "cd")]
    saved = tmp_path / "saved"
    saved.mkdir()
    return Result([0], ["2 objects in 1.25 s\n"], [""], [batches], {"b/x"}, saved)


def verdict(control: Result, program: Program = PROGRAM, **changes: Any) -> str:
    return compare.compare(program, control, dataclasses.replace(control, **changes), TREES).kind


def batches_of(*groups: str) -> list[list[dict[str, Any]]]:
    return [[{"loader": 0, "epoch": 0, "kind": "list", "samples": list(group)} for group in groups]]


def test_what_counts_as_a_difference(result: Result) -> None:
    assert verdict(result) == SAME
    assert verdict(result, printed=["2 objects in 3.5 s\n"]) == SAME
    assert verdict(result, printed=["1 objects so far\n2 objects in 15.5 s\n"]) == SAME
    assert verdict(result, printed=["3 objects in 1.25 s\n"]) == DIFFERENT
    assert verdict(result, batches=batches_of("dc", "ba")) == ORDER
    assert verdict(result, dataclasses.replace(PROGRAM, sorted=True), batches=batches_of("dc", "ba")) == DIFFERENT
    assert verdict(result, batches=batches_of("ab")) == DIFFERENT  # fewer samples
    assert verdict(result, batches=batches_of("ab", "cc")) == DIFFERENT
    assert verdict(result, batches=batches_of("abc", "d")) == DIFFERENT
    assert verdict(result, names={"b/x", "b/y"}) == DIFFERENT
    assert verdict(result, files={"b/x"}) == DIFFERENT  # a file of this machine
    assert verdict(result, statuses=[1], said=["Traceback\nKeyError: 'x'\n"]) == DIFFERENT


def test_samples_that_the_reference_s_threads_lose(result: Result) -> None:
    control = dataclasses.replace(result, batches=batches_of("ab"))
    assert verdict(control, batches=batches_of("ab", "cd")) == DIFFERENT
    said = ["Exception in thread Thread-1:\nTraceback (most recent call last):\n  File\njson.JSONDecodeError: x\n"]
    control = dataclasses.replace(control, said=said)
    assert verdict(control, batches=batches_of("ab", "cd")) == BETTER
    assert verdict(control, batches=batches_of("a", "cd")) == DIFFERENT
    assert verdict(control, batches=batches_of("ab")) == SAME


def test_failures(result: Result) -> None:
    failed = dataclasses.replace(result, statuses=[1], said=["Traceback\nValueError: one\n"])
    assert verdict(failed, said=["ValueError: another\n"]) == ALIKE
    assert verdict(failed, said=["KeyError: another\n"]) == DIFFERENT
    assert verdict(failed, statuses=[0]) == BETTER


@pytest.mark.parametrize(("error", "kind"), [("PicklingError", BETTER), ("ValueError", DIFFERENT)])
def test_an_error_of_the_reference_alone(result: Result, error: str, kind: str) -> None:
    """One that it cannot help may go; one that refuses something may not."""
    control = dataclasses.replace(result, printed=[f"spawn: raises {error}\n"])
    assert verdict(control, printed=["spawn: 250\n"]) == kind


def test_checkpoints_are_the_same_by_what_they_load_as(result: Result, tmp_path: Path) -> None:
    import torch

    mine = tmp_path / "mine"
    for folder in (result.saved, mine):
        (folder / "b").mkdir(parents=True)
    torch.save({"w": torch.ones(3), "n": [1, 2]}, result.saved / "b" / "x")
    torch.save({"n": [1, 2], "w": torch.ones(3)}, mine / "b" / "x")
    assert verdict(result, saved=mine) == SAME
    torch.save({"w": torch.zeros(3), "n": [1, 2]}, mine / "b" / "x")
    assert verdict(result, saved=mine) == DIFFERENT
    racing = dataclasses.replace(PROGRAM, races=("b/x",))
    assert verdict(result, racing, saved=mine) == SAME
    torch.save({"w": torch.zeros(4), "n": [1, 2]}, mine / "b" / "x")
    assert verdict(result, racing, saved=mine) == DIFFERENT
    (mine / "b" / "x").write_bytes(b"torn")
    assert verdict(result, racing, saved=mine) == DIFFERENT
    assert verdict(result, saved=mine) == DIFFERENT
    (mine / "b" / "x").unlink()
    assert verdict(result, saved=mine) == DIFFERENT
    (mine / "b" / "__0_0-12ab.distcp").write_bytes((result.saved / "b" / "x").read_bytes())
    (result.saved / "b" / "x").rename(result.saved / "b" / "__0_0.distcp")
    assert verdict(result, saved=mine) == SAME


def test_every_failing_unit_test_needs_a_class() -> None:
    assert unit_tests.class_of("test_new::test_new") == "behaviour"
    assert all(text.startswith(("internal: ", "on purpose: ")) for _, text in unit_tests.CLASSES)
