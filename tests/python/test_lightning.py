"""millrace.lightning: a Trainer's checkpoints in a bucket. test_lightning_oldest.py runs it with Lightning 2.0."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

try:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
except ImportError:
    import pytorch_lightning as pl
    from pytorch_lightning.plugins.io import AsyncCheckpointIO

import millrace
import millrace.lightning
from millrace import checkpoint
from millrace.lightning import CheckpointIO, _checkpoint_io
from millrace.lightning._location import local, location
from tests.conftest import Server, start_devstore
from tests.python import lightning_program
from tests.serve import Supervisor, start_supervisor, wait_for
from tests.stores import s3_environment

pytestmark = pytest.mark.filterwarnings("ignore")
CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
arena_bytes = "40MiB"
"""
PROGRAM = Path(lightning_program.__file__)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("store")
    for i in range(24):
        file = root / "bucket" / "train" / f"{i:02}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes((7 * i * j) % 251 for j in range(16)))
    server = start_devstore("--root", root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def supervisor(store: Server, tmp_path_factory: pytest.TempPathFactory, millrace_bin: Path) -> Iterator[Supervisor]:
    started = start_supervisor(
        millrace_bin, tmp_path_factory.mktemp("supervisor"), store.url, CONFIG, **s3_environment(store.url)
    )
    with pytest.MonkeyPatch.context() as patch:  # the first use starts the workers, which stay
        patch.setenv("MILLRACE_SOCKET", str(started.socket))
        assert len(millrace.MapDataset("gs://bucket/train/")[0]) == 16
        with checkpoint.writer("gs://bucket/first"):
            pass
    yield started
    gc.collect()
    assert started.stop() == 0, started.log.read_text()


@pytest.fixture
def folder(
    store: Server, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A folder of its own in the bucket, by the protocol of GCS or, where a test asks for it, of S3."""
    surroundings = {"STORAGE_EMULATOR_HOST": store.url, **s3_environment(store.url)}
    for name, value in {"MILLRACE_SOCKET": str(supervisor.socket), **surroundings}.items():
        monkeypatch.setenv(name, value)
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"{getattr(request, 'param', 'gs')}://bucket/{name}"


BOTH = pytest.mark.parametrize("folder", ["gs", "s3"], indirect=True)


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = self.net(batch).square().mean()
        self.log("loss", -float(self.global_step))  # falls, so that the last ones are the best
        return loss

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test", self.net(batch).sum())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def first(samples: list[Any]) -> Any:
    return samples[0][0][None]


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(6, 2)), batch_size=1, collate_fn=first)


def trainer(io: Any, *callbacks: Any, **more: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 1}
    return pl.Trainer(accelerator="cpu", devices=1, plugins=[io], callbacks=list(callbacks), **{**quiet, **more})


def every_step(folder: str, keep: int, **more: Any) -> Any:
    return pl.callbacks.ModelCheckpoint(
        folder, monitor="loss" if keep > 0 else None, save_top_k=keep, every_n_train_steps=1, **more
    )


def names(folder: str) -> list[str]:
    return [uri[len(folder) + 1 :] for uri in checkpoint.list(f"{folder}/")]


# ---- the plugin by itself ----


def test_locations() -> None:
    places: dict[Any, str] = {
        "gs://bucket/a/b.ckpt": "gs://bucket/a/b.ckpt",
        "gcs://bucket/a//b.ckpt": "gs://bucket/a//b.ckpt",
        Path("gs://bucket/a/b.ckpt"): "gs://bucket/a/b.ckpt",
        os.path.normpath("gcs://bucket/a"): "gs://bucket/a",
        "s3://bucket/a//b.ckpt": "s3://bucket/a//b.ckpt",
        Path("s3://bucket/a/b.ckpt"): "s3://bucket/a/b.ckpt",
        "s3a://bucket/a": "s3a://bucket/a",
        Path("file:///a/b"): "file:///a/b",
        "file:///a/b": "file:///a/b",
        "/a/b": "/a/b",
        "gs:": "gs:",
        "a/gs://b": "a/gs://b",
    }
    assert {path: location(path) for path in places} == places


def test_local_locations() -> None:
    assert local("gs://bucket/a") is None
    assert (local("file:///a/b"), local("/a/b"), local("c")) == (Path("/a/b"), Path("/a/b"), Path("c"))


@BOTH
@pytest.mark.parametrize("where", ["bucket", "path", "file"])
@pytest.mark.parametrize("wait", [True, False])
def test_save_load_remove(folder: str, tmp_path: Path, where: str, wait: bool) -> None:
    base = {"bucket": folder, "path": str(tmp_path / "new" / "folder"), "file": f"file://{tmp_path}/new"}[where]
    io = CheckpointIO(wait=wait)
    path = f"{base}/one.ckpt"
    for value in (1, 2):  # the second replaces the first
        io.save_checkpoint({"w": torch.full((5,), float(value)), "n": {"epoch": value}}, path)
        loaded = io.load_checkpoint(Path(path))
        assert loaded["n"] == {"epoch": value} and loaded["w"].tolist() == [float(value)] * 5
    assert io.load_checkpoint(path, map_location="meta")["w"].device.type == "meta"
    assert io.load_checkpoint(path, map_location=None, weights_only=True, state=None)["n"] == {"epoch": 2}
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)  # there is nothing left to remove
    io.teardown()
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)


@BOTH
@pytest.mark.parametrize("where", ["bucket", "path"])
def test_remove_a_folder(folder: str, tmp_path: Path, where: str) -> None:
    base = folder if where == "bucket" else str(tmp_path / "some")
    io = CheckpointIO()
    for name in ("sharded/.metadata", "sharded/__0_0.distcp", "sharded/sub/meta.pt", "sharded-2/.metadata"):
        io.save_checkpoint({}, f"{base}/{name}")
    io.remove_checkpoint(f"{base}/sharded")
    assert not checkpoint.exists(f"{base}/sharded")
    assert [uri.rpartition("/")[2] for uri in checkpoint.list(f"{base}/")] == [".metadata"]
    assert checkpoint.exists(f"{base}/sharded-2/.metadata")
    assert where == "bucket" or not (tmp_path / "some" / "sharded").exists()
    with pytest.raises(ValueError, match="names no object"):
        io.remove_checkpoint(folder.rpartition("/")[0])


def test_storage_options_are_refused(folder: str) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        CheckpointIO().save_checkpoint({}, f"{folder}/a", storage_options={})


def test_what_cannot_be_pickled_leaves_nothing(folder: str) -> None:
    io = CheckpointIO(wait=False)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        io.save_checkpoint({"w": torch.ones(1000), "f": lambda: 1}, f"{folder}/a")
    io.teardown()
    assert names(folder) == []


def test_it_is_a_plugin_of_the_lightning_that_is_loaded() -> None:
    io = CheckpointIO()
    assert isinstance(io, pl.plugins.io.CheckpointIO)
    again = pickle.loads(pickle.dumps(io))
    assert type(again) is CheckpointIO
    if pl.__name__ == "lightning.pytorch":
        from pytorch_lightning.plugins.io import CheckpointIO as Other

        assert isinstance(CheckpointIO(), Other)


# ---- in a Trainer ----


@BOTH
@pytest.mark.parametrize("wait", [True, False])
def test_model_checkpoint_keeps_the_best(folder: str, wait: bool) -> None:
    best = every_step(folder, 2, save_last=True)
    trained = Model()
    fit = trainer(CheckpointIO(wait=wait), best)
    fit.fit(trained, loader())
    assert names(folder) == ["epoch=0-step=5.ckpt", "epoch=0-step=6.ckpt", "last.ckpt"]
    assert best.best_model_path == f"{folder}/epoch=0-step=6.ckpt"
    fit.test(dataloaders=loader(), ckpt_path="best", verbose=False)
    # Past the plugin, through fsspec.
    again = Model.load_from_checkpoint(best.best_model_path, width=2)
    assert torch.equal(again.net.weight, trained.net.weight)
    # A second run in the same folder finds the names taken.
    trainer(CheckpointIO(wait=wait), every_step(folder, -1)).fit(Model(), loader())
    assert "epoch=0-step=6-v1.ckpt" in names(folder)


def test_async_checkpoint_io(folder: str) -> None:
    trained, fresh = Model(), Model()
    trainer(AsyncCheckpointIO(CheckpointIO()), every_step(folder, -1)).fit(trained, loader())
    assert names(folder) == [f"epoch=0-step={i}.ckpt" for i in range(1, 7)]
    path = f"{folder}/epoch=0-step=6.ckpt"
    trainer(AsyncCheckpointIO(CheckpointIO())).test(fresh, loader(), ckpt_path=path, verbose=False)
    assert torch.equal(fresh.net.weight, trained.net.weight)


def test_a_failed_save_is_raised_by_the_next(folder: str) -> None:
    io = CheckpointIO(wait=False)
    io.save_checkpoint({}, "gs://no-such-bucket/a")
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.save_checkpoint({}, "gs://no-such-bucket/a")
    io.save_checkpoint({}, f"{folder}/a")
    io.teardown()
    assert names(folder) == ["a"]


def test_a_failed_save_is_raised_at_the_end_and_keeps_the_one_before(folder: str) -> None:
    io = CheckpointIO(wait=False)
    io.save_checkpoint({}, f"{folder}/1")
    io.save_checkpoint({}, "gs://no-such-bucket/2")
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.remove_checkpoint(f"{folder}/1")
        io.teardown()
    io.teardown()
    assert names(folder) == ["1"]
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        trainer(io, every_step("gs://no-such-bucket/run", -1)).fit(Model(), loader())
    with contextlib.suppress(FileNotFoundError):
        io.teardown()  # those that were under way


def test_a_removal_that_fails_hides_no_failed_save(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    def refuse(place: str) -> None:
        removed.append(place)
        raise PermissionError(place)

    removed: list[str] = []
    monkeypatch.setattr(_checkpoint_io, "remove", refuse)
    io = CheckpointIO(wait=False)
    io.save_checkpoint({}, "gs://no-such-bucket/3")
    io._removals += [("1", []), ("2", [])]
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        io.teardown()
    assert removed == ["1", "2"]
    io._removals.append(("3", []))
    with pytest.raises(PermissionError, match="3"):
        io.teardown()
    io.teardown()


class Failed:
    """A save that has failed."""

    def __init__(self, uri: str) -> None:
        self.uri, self.asked = uri, 0

    def done(self) -> bool:
        return True

    def exception(self) -> Exception:
        self.asked += 1
        return FileNotFoundError(self.uri)


def test_saves_that_failed_together_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    """One by one they would be raised by the saves of the next run."""
    io: Any = CheckpointIO(wait=False)
    saves = [Failed(f"gs://bucket/{number}") for number in range(3)]
    io._saves = {save.uri: save for save in saves}
    with pytest.raises(FileNotFoundError, match="gs://bucket/0"):
        io.teardown()
    assert [save.asked for save in saves] == [1, 1, 1]
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the save of gs://bucket/{number} failed too: gs://bucket/{number}" for number in (1, 2)]
    io.teardown()


def test_what_is_saved_again_is_not_removed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its removal waits for a save that takes long."""
    io = CheckpointIO(wait=False)
    for name in ("x", "sharded/a"):
        io.save_checkpoint({"n": 1}, f"{folder}/{name}")
    io.teardown()
    io.save_checkpoint({"n": 2}, f"{folder}/y")
    save, late = io._saves[f"{folder}/y"], True
    done = save.done
    monkeypatch.setattr(save, "done", lambda: not late and done())
    for name in ("x", "sharded"):
        io.remove_checkpoint(f"{folder}/{name}")
    for name in ("x", "sharded/a"):
        io.save_checkpoint({"n": 3}, f"{folder}/{name}")
    late = False
    io.teardown()
    assert sorted(names(folder)) == ["sharded/a", "x", "y"]
    assert io.load_checkpoint(f"{folder}/x") == {"n": 3}


def test_step_and_weights_are_of_one_save(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that dies before `.metadata` is replaced has replaced nothing else of the checkpoint."""
    fsdp = pytest.importorskip("millrace.lightning._fsdp", exc_type=ImportError)  # Lightning 2.0 has not what it needs
    dcp = torch.distributed.checkpoint

    def save(step: int) -> None:
        writer = fsdp._Writer(f"{folder}/a", {"step": step})
        dcp.save({"w": torch.full((3,), float(step))}, storage_writer=writer)

    def loaded() -> tuple[float, int]:
        state = {"w": torch.zeros(3)}
        reader = fsdp.StorageReader(f"{folder}/a")
        dcp.load(state, storage_reader=reader)
        rest = CheckpointIO().load_checkpoint(fsdp.rest_of(f"{folder}/a", reader), weights_only=True)
        return state["w"][0].item(), rest["step"]

    def dies(self: Any, metadata: Any, results: Any) -> None:
        raise InterruptedError

    save(1)
    with monkeypatch.context() as patch, pytest.raises(BaseException, match="InterruptedError"):
        patch.setattr(fsdp.StorageWriter, "finish", dies)
        save(2)
    assert loaded() == (1.0, 1)
    save(3)
    assert loaded() == (3.0, 3)
    # Of each save that is named or was not finished (it goes in a day): the shard and the rest.
    assert sorted(name[:6] for name in names(f"{folder}/a")) == [".metad", *["__0_0-"] * 2, *["__0_1-"] * 2, "meta.p"]
    reader = fsdp.OneSave(f"{folder}/a")
    with monkeypatch.context() as patch:
        patch.setattr(fsdp.StorageWriter, "_remove", lambda *_: None)  # one that may not delete
        for after in (4, 5):  # a resume loads the model, then each optimizer
            state = {"w": torch.zeros(3)}
            dcp.load(state, storage_reader=reader)
            assert state["w"][0].item() == 3.0
            assert CheckpointIO().load_checkpoint(fsdp.rest_of(f"{folder}/a", reader), weights_only=True) == {"step": 3}
            save(after)
    assert loaded() == (5.0, 5)


@pytest.mark.parametrize("kind", ["CheckpointIO", "FSDPStrategy"])
def test_ctrl_c_in_the_wait_for_a_save_forgets_no_save(kind: str) -> None:
    pending: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if kind == "FSDPStrategy":
        pytest.importorskip("millrace.lightning._fsdp", exc_type=ImportError)
        strategy = millrace.lightning.FSDPStrategy()
        strategy._save, settle = pending, strategy._settle
    else:
        io: Any = CheckpointIO()
        io._saves["gs://bucket/a"], settle = pending, io.teardown

    def strike() -> None:
        while not (pending._waiters or pending._condition._waiters):  # type: ignore[attr-defined]
            time.sleep(0.01)  # until it is waited for
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            struck = pool.submit(strike)
            with pytest.raises(KeyboardInterrupt):
                settle()
            struck.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    pending.set_exception(OSError("it is lost"))
    with pytest.raises(OSError, match="it is lost"):
        settle()
    settle()


def killed(folder: str, step: int) -> list[str]:
    """What a run says until it gets SIGKILL in that step."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, "gs://bucket/train/", folder, str(step)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(f"{step} "):
            process.kill()
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return lines


@BOTH
def test_a_killed_run_goes_on_as_if_it_had_not_been(folder: str) -> None:
    def trained(name: str, resume: bool = False) -> list[str]:
        lines: list[str] = []
        lightning_program.train(
            "gs://bucket/train/", f"{folder}/{name}", lambda step, loss: lines.append(f"{step} {loss}"), resume
        )
        return lines

    whole = trained("whole")
    assert len(whole) == 24
    assert killed(f"{folder}/killed", 18) == whole[:18]
    # The last checkpoint was that of step 15, in the middle of the second epoch. It may be a promise still.
    wait_for(lambda: any("step=15" in name for name in names(f"{folder}/killed")), "it was never stored")
    assert trained("killed", resume=True) == whole[15:]


# ---- the loader ----


def test_the_loader_s_length_is_the_epoch_s(folder: str) -> None:
    def new(batch: int = 4) -> Any:
        dataset = millrace.MapDataset("gs://bucket/train/", transform=bytes)
        return millrace.lightning.DataLoader(dataset, batch_size=batch, shuffle=True, seed=1)

    whole = new()
    first, second = list(whole), list(whole)
    assert len(whole) == len(first) == 6
    part = new()
    batches = iter(part)
    for k in range(4):
        assert next(batches) == first[k] and len(part) == 6
    state = part.state_dict()
    assert state["steps"] == 4
    rest = new()
    rest.load_state_dict(state)
    assert len(rest) == 6 and list(rest) == first[4:]
    assert len(rest) == 6 and rest.state_dict()["steps"] == 0
    assert list(rest) == second
    smaller = new(2)  # elsewhere in another size: what was given counts as it was
    smaller.load_state_dict(state)
    assert len(smaller) == 4 + 4 and len(list(smaller)) == 4 and len(smaller) == 12
    iter(part)  # the rest of the epoch is left
    assert len(part) == 6
    part.set_epoch(1)
    assert len(part) == 6 and list(part) == second
    with pytest.raises(ValueError, match="'steps'"):
        part.load_state_dict({key: value for key, value in state.items() if key != "steps"})


class Recorder(pl.LightningModule):  # type: ignore[misc]
    """Notes what it is trained on, as (epoch, the batch's first sample)."""

    def __init__(self, estimates: bool = False, fresh: bool = False, pair: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.estimates, self.fresh, self.seen = estimates, fresh, []  # type: ignore[var-annotated]
        self.kept = {"a": self.new(4), "b": self.new(8)} if pair else self.new(4)

    def new(self, batch: int) -> Any:
        dataset = millrace.IterableDataset("gs://bucket/train/", transform=bytes, shuffle=True, seed=1)
        return millrace.lightning.DataLoader(dataset, batch_size=batch)

    def train_dataloader(self) -> Any:
        return self.new(4) if self.fresh else self.kept

    def val_dataloader(self) -> Any:
        return self.new(12)

    def training_step(self, batch: Any, _: int) -> Any:
        firsts = tuple(part[0] for part in batch.values()) if isinstance(batch, dict) else batch[0]
        self.seen.append((self.trainer.current_epoch, firsts))
        return self.layer(torch.ones(1, 1)).sum()

    def validation_step(self, batch: Any, _: int) -> None:
        pass

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch

    def configure_optimizers(self) -> Any:
        if self.estimates:
            assert self.trainer.estimated_stepping_batches > 0  # which makes Lightning ask for the loader too early
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer_of(**more: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(accelerator="cpu", devices=1, num_sanity_val_steps=0, **quiet, **more)


def test_predictions_are_divided_among_the_ranks(folder: str) -> None:
    """A Trainer makes a loader of its own for them, of the loader's sampler."""
    dataset = millrace.MapDataset("gs://bucket/train/", transform=bytes)
    predicted: list[bytes] = []
    for rank in range(2):
        model = Recorder()
        # In a hook, where Lightning notes the arguments.
        model.predict_dataloader = lambda rank=rank: millrace.lightning.DataLoader(
            dataset, batch_size=5, rank=rank, world_size=2, shuffle=True, seed=3
        )
        loader = model.predict_dataloader()
        assert isinstance(loader.sampler, torch.utils.data.DistributedSampler)  # which nobody replaces
        assert len(loader.sampler) == len(list(loader.sampler)) == 12
        predicted += [sample for batch in trainer_of().predict(model) for sample in batch]
    assert sorted(predicted) == sorted(bytes(lease) for lease in millrace.MapDataset("gs://bucket/train/"))


class SaveAt(pl.Callback):  # type: ignore[misc]
    """Saves the run at a hook, when it has made so many steps, and ends it there."""

    def __init__(self, hook: str, steps: int, path: Path) -> None:
        def at_hook(trainer: Any, *_: Any) -> None:
            if trainer.global_step == steps and not trainer.sanity_checking and not path.exists():
                trainer.save_checkpoint(path)
                raise ZeroDivisionError

        setattr(self, hook, at_hook)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_trainer_goes_on_where_it_was(folder: str, tmp_path: Path, limit: int | None) -> None:
    def fit(model: Recorder, path: Path | None = None, **more: Any) -> list[Any]:
        trainer_of(max_epochs=3, limit_train_batches=limit, **more).fit(model, ckpt_path=path)
        return model.seen

    whole, last = fit(Recorder()), limit or 6
    assert len(set(whole)) == 3 * last
    assert fit(Recorder(fresh=True), reload_dataloaders_every_n_epochs=1) == whole
    for hook, steps in (
        ("on_validation_end", last),
        ("on_train_batch_end", last),
        ("on_train_epoch_end", last),
        ("on_train_batch_end", last + 2),
    ):
        for estimates in (False, True):
            path, begun = tmp_path / f"{hook}-{steps}-{estimates}.ckpt", Recorder(estimates)
            with pytest.raises(ZeroDivisionError):
                fit(begun, callbacks=[SaveAt(hook, steps, path)])
            assert begun.seen + fit(Recorder(estimates), path) == whole, (hook, steps, estimates)
    for steps in (last, last + 1):  # with a batch in hand, as of a signal
        path, begun = tmp_path / f"in-hand-{steps}.ckpt", Recorder()
        with pytest.raises(ZeroDivisionError):
            fit(begun, callbacks=[SaveAt("on_train_batch_start", steps, path)])
        assert begun.seen + fit(Recorder(), path) == whole
    # Two loaders, of which the shorter one begins again within the epoch.
    whole = fit(Recorder(pair=True))
    for estimates in (False, True):
        path, begun = tmp_path / f"pair-{estimates}.ckpt", Recorder(estimates, pair=True)
        with pytest.raises(ZeroDivisionError):
            fit(begun, callbacks=[SaveAt("on_train_batch_end", last + last - 1, path)])
        assert begun.seen + fit(Recorder(estimates, pair=True), path) == whole


def test_a_loader_after_an_error(folder: str, tmp_path: Path) -> None:
    """As millrace.DataLoader: what comes next is not the end of a whole epoch. No batch is kept for the next one."""
    for i in range(8):
        (tmp_path / f"{i}").write_bytes(bytes([i]))
    lives: list[bool] = []
    last: list[Any] = []

    def transform(item: Any) -> Any:
        lives.extend(each() is not None for each in last)
        last.clear()
        if bytes(item) == b"\5":
            raise ValueError("five")
        return torch.tensor(list(bytes(item)))

    data = millrace.IterableDataset(tmp_path, transform=transform, shuffle=False)
    loader = millrace.lightning.DataLoader(data, batch_size=1)
    batches = iter(loader)
    assert len(batches) == 8
    with pytest.raises(ValueError, match="five"):
        while True:
            last.append(weakref.ref(next(batches)))
    assert lives == [False] * 5
    with pytest.raises(millrace.Error, match=r"ended after 5 of 8 steps, with ValueError"):
        next(batches)
    assert next(batches, None) is None
    assert len(loader) == 8 and loader.state_dict()["steps"] == loader.state_dict()["cursor"] == 5


def test_a_trainer_s_loader_is_lightning_s(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    CombinedLoader = importlib.import_module(f"{pl.__name__}.utilities.combined_loader").CombinedLoader
    if not hasattr(CombinedLoader, "_state_dicts"):
        pytest.skip("this Lightning keeps no loader's state")

    dataset = millrace.MapDataset("gs://bucket/train/", transform=bytes)
    for kind in (millrace.lightning.DataLoader, millrace.DataLoader):
        assert "use millrace.lightning.DataLoader" not in caplog.text
        combined = CombinedLoader([kind(dataset, batch_size=4)])
        iterator = iter(combined)
        combined._state_dicts()
        next(iterator)
        for _ in range(2):
            combined._state_dicts()
    assert caplog.text.count("use millrace.lightning.DataLoader") == 1


# ---- fsspec ----


@BOTH
def test_the_file_system(folder: str) -> None:
    fs, path = fsspec.core.url_to_fs(folder)
    scheme = folder.partition("://")[0]
    assert type(fs) is {"gs": millrace.lightning.FileSystem, "s3": millrace.lightning.S3FileSystem}[scheme]
    assert not fs.exists(folder) and not fs.isdir(path)
    fs.makedirs(f"{folder}/sub", exist_ok=True)
    assert fs.isdir(folder) and fs.isdir(f"{folder}/sub") and fs.ls(folder) == [] and names(folder) == []
    with fs.open(f"{folder}/sub/a.txt", "w") as file:
        file.write("one\n")
    with fs.open(f"{folder}/sub/a.txt", "a") as file:
        file.write("two\n")
    with fsspec.open(folder.replace("gs://", "gcs://") + "/b", "wb") as file:
        file.write(b"12345")
    with fs.open(f"{folder}/sub/a.txt", "r") as file:
        assert file.read() == "one\ntwo\n"
    assert fs.isdir(folder) and fs.isdir(f"{folder}/sub/") and fs.isfile(f"{folder}/b")
    assert not fs.isfile(folder) and not fs.isdir(f"{folder}/b") and not fs.exists(f"{folder}/su")
    assert fs.ls(folder, detail=False) == [f"{path}/b", f"{path}/sub"]
    assert [(entry["type"], entry["size"]) for entry in fs.ls(folder, detail=True)] == [("file", 5), ("directory", 0)]
    assert fs.ls(f"{folder}/b", detail=False) == [f"{path}/b"]
    assert sorted(fs.find(folder)) == [f"{path}/b", f"{path}/sub/a.txt"]
    fs.mv(f"{folder}/b", f"{folder}/sub/c")
    assert names(folder) == ["sub/a.txt", "sub/c"]
    with fs.transaction, fs.open(f"{folder}/t", "wb") as file:
        file.write(b"whole")
    assert fs.cat(f"{folder}/t") == b"whole"
    with pytest.raises(RuntimeError, match="stop"), fs.transaction:
        with fs.open(f"{folder}/u", "wb") as file:
            file.write(b"part")
        raise RuntimeError("stop")
    assert not fs.exists(f"{folder}/u")
    fs.rm(folder, recursive=True)
    assert names(folder) == [] and not fs.exists(folder)
    for use in (lambda: fs.info(folder), lambda: fs.open(f"{folder}/b"), lambda: fs.ls(folder)):
        with pytest.raises(FileNotFoundError):
            use()
    with pytest.raises(ValueError, match="mode"):
        fs.open(f"{folder}/b", "r+b")


@BOTH
def test_logs_beside_the_checkpoints(folder: str) -> None:
    """A root in the bucket: Lightning's logger writes there, and the checkpoints' folder comes from it."""
    logger = pl.loggers.CSVLogger(folder, name="log")
    trainer(CheckpointIO(), logger=logger, log_every_n_steps=2, default_root_dir=folder).fit(Model(), loader())
    assert [name for name in names(folder) if name.endswith(".ckpt")] == [
        "log/version_0/checkpoints/epoch=0-step=6.ckpt"
    ]
    with fsspec.open(f"{folder}/log/version_0/metrics.csv", "r") as file:
        assert len(file.read().splitlines()) == 4


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("s3", "s3fs")])
def test_another_file_system_comes_first(monkeypatch: pytest.MonkeyPatch, scheme: str, package: str) -> None:
    import importlib.util

    assert millrace.lightning.register_filesystem(scheme)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == package else None)
    assert not millrace.lightning.register_filesystem(scheme)
