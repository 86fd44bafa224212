"""The programs in examples/: the segmentation learns, checkpoints are resumed, the notebook's cells run in order."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import ROOT, StartDevstore

pytestmark = pytest.mark.timeout(600)

SEGMENTATION = ROOT / "examples" / "segmentation.py"
CHECKPOINTS = ROOT / "examples" / "checkpoints.py"
TEXT = ROOT / "examples" / "text_lightning.py"
NOTEBOOK = ROOT / "examples" / "starter.ipynb"


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    done = forked.run(command, folder, {**os.environ, "OMP_NUM_THREADS": "1", **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def same_generations(store: Path) -> None:
    """An object's generation is its file's time, and decides the order: what is learned is the same in each run."""
    for file in store.rglob("*"):
        os.utime(file, (1e9, 1e9))


def test_the_segmentation_learns(devstore: StartDevstore, tmp_path: Path) -> None:
    run(tmp_path, SEGMENTATION, "make", tmp_path / "store" / "bucket" / "shapes", "--count", "100")
    same_generations(tmp_path / "store")
    url = devstore("--root", tmp_path / "store").url
    train: list[str | Path] = [
        SEGMENTATION,
        "train",
        "gs://bucket/shapes/",
        "--epochs",
        "6",
        "--workers",
        "1",
        "--out",
        "result.json",
    ]
    shown = run(tmp_path, *train, STORAGE_EMULATOR_HOST=url)
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(shown.splitlines()) == len(result["losses"]) == 6
    assert result["losses"][-1] < 0.85 * result["losses"][0], shown
    assert result["scores"][-1] > result["scores"][0] + 0.05, shown


def test_checkpoints_are_resumed(devstore: StartDevstore, tmp_path: Path) -> None:
    """The same losses as an unbroken run."""
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    url = devstore("--root", tmp_path / "store").url

    def losses(prefix: str, steps: int) -> list[dict[str, Any]]:
        shown = run(
            tmp_path,
            CHECKPOINTS,
            f"gs://bucket/{prefix}",
            "--steps",
            str(steps),
            "--every",
            "20",
            STORAGE_EMULATOR_HOST=url,
        )
        *lines, saved = map(json.loads, shown.splitlines())
        assert saved["saved"].endswith(f"{prefix}/step-{steps:08d}.pt")
        return lines

    unbroken = losses("one", 80)
    assert losses("two", 40) + losses("two", 80) == unbroken
    assert [line["step"] for line in unbroken] == [20, 40, 60, 80]
    assert unbroken[-1]["loss"] < unbroken[0]["loss"]


def segmentation() -> Any:
    spec = importlib.util.spec_from_file_location("segmentation", SEGMENTATION)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pairs() -> None:
    names = [(f"shapes/{i:02}.{kind}.png", 1) for i in range(13) for kind in ("image", "mask")]
    module = segmentation()
    train, held = (module.Pairs(names, 4, held_out) for held_out in (False, True))
    assert (len(train), len(held)) == (3, 1) == (len(list(train)), len(list(held)))
    first = list(train)
    assert sorted(i for batch in [*first, *held] for i in batch) == list(range(26))
    assert first == list(train)
    train.set_epoch(1)
    assert first != list(train)
    assert all(a % 2 == 0 and b == a + 1 for batch in train for a, b in zip(batch[0::2], batch[1::2]))
    for broken in (names[1:], names[:-1], names[:4] + names[5:]):
        with pytest.raises(ValueError, match="not there as a pair"):
            module.Pairs(broken, 4, False)


def test_the_notebook_runs(devstore: StartDevstore, tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    (tmp_path / "notebook.py").write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    (tmp_path / "store").mkdir()
    url = devstore("--root", tmp_path / "store").url
    shown = run(tmp_path, "notebook.py", STORAGE_EMULATOR_HOST=url, BUCKET="starter")
    assert shown.count("torch.Size([20, 3, 64, 64])") == 5, shown
    assert "of 100 objects in" in shown and "millrace-starter/042.png" in shown


def test_the_text_is_learned_and_a_run_goes_on(devstore: StartDevstore, tmp_path: Path) -> None:
    run(tmp_path, TEXT, "make", tmp_path / "store" / "bucket" / "code", "--count", "100")
    same_generations(tmp_path / "store")
    url = devstore("--root", tmp_path / "store").url
    train: list[str | Path] = [TEXT, "train", "gs://bucket/code/", "gs://bucket/run", "--workers", "1", "--every", "5"]
    small = tmp_path / "millrace.toml"
    small.write_text('[memory]\narena_bytes = "16MiB"\n[checkpoint]\narena_bytes = "40MiB"\n')
    environment = {"STORAGE_EMULATOR_HOST": url, "MILLRACE_CONFIG": str(small)}
    # 100 objects by 16 are 7 steps an epoch: the last checkpoint of this run is that of step 5.
    first = run(tmp_path, *train, "--epochs", "1", **environment).splitlines()
    assert first[0].startswith("epoch 0: 7 steps, loss ") and first[1:] == ["7 steps in all"]
    second = run(tmp_path, *train, "--epochs", "4", **environment).splitlines()
    assert second[0] == "going on from gs://bucket/run/newest.ckpt"
    assert [line.split(",")[0] for line in second[1:5]] == [
        f"epoch {i}: {steps} steps" for i, steps in enumerate([2, 7, 7, 7])
    ]
    assert second[5:] == ["28 steps in all"]
    losses = [float(line.rpartition(" ")[2]) for line in [*first[:1], *second[1:5]]]
    assert losses[-1] < 0.9 * losses[0], losses
