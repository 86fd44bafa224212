"""millrace.dataflux: the names of gcs-torch-dataflux, what their arguments do here, and torch's own DataLoader over
them."""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.api_core.exceptions
import google.auth.credentials
import google.auth.impersonated_credentials
import google.oauth2.credentials
import google.oauth2.service_account
import pytest
import torch.utils.data
from google.api_core import retry
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

import millrace
from millrace.dataflux import _config, _google, _known, dataflux_core, dataflux_iterable_dataset
from millrace.dataflux.dataflux_iterable_dataset import DataFluxIterableDataset
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
from tests import forked
from tests.conftest import ROOT, Server, start_devstore
from tests.python.dataflux_settings import AS_IT_IS, toml
from tests.serve import start_supervisor

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

BUCKET, OTHER = "bucket", "other"  # the second for tests that write
CONTENTS = {f"train/{i:03}.bin": b"%03d" % i * (i + 1) for i in range(60)}
Kind = Any
KINDS = [DataFluxMapStyleDataset, DataFluxIterableDataset]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("store")
    for name, data in [*CONTENTS.items(), ("test/a?b#c%20 d.bin", b"odd"), ("trainer.bin", b"another prefix")]:
        file = root / BUCKET / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (root / OTHER).mkdir()
    server = start_devstore("--root", root)
    yield server
    server.stop()


@pytest.fixture
def emulator(store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # not the credentials of whoever runs the tests
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    return store


def prefixed(**fields: Any) -> Config:
    return Config(prefix="train/", **fields)


def length(data: bytes) -> int:
    assert type(data) is bytes
    return len(data)


def samples(loader: Any) -> list[int]:
    return sorted(int(n) for batch in loader for n in batch)


LENGTHS = sorted(len(data) for data in CONTENTS.values())


# ---- the data sets ----


def test_map_style(emulator: Server) -> None:
    ds: Any = DataFluxMapStyleDataset("project", BUCKET, prefixed())
    names = [name for name, _ in ds.objects]
    assert names == sorted(CONTENTS) and len(ds) == 60
    assert type(ds[7]) is bytes and ds[7] == CONTENTS[names[7]] and ds[-1] == CONTENTS[names[-1]]
    assert ds.__getitems__([3, 1, 3]) == [CONTENTS[names[i]] for i in (3, 1, 3)]
    assert list(ds) == [CONTENTS[name] for name in names]
    kinds: list[type] = [torch.utils.data.Dataset, torch.utils.data.IterableDataset]
    assert [isinstance(ds, kind) for kind in kinds] == [True, False]
    assert (ds.project_name, ds.bucket_name, ds.config.prefix) == ("project", BUCKET, "train/")


def test_iterable(emulator: Server) -> None:
    ds = DataFluxIterableDataset(
        project_name=None, bucket_name=BUCKET, config=dataflux_iterable_dataset.Config(prefix="train/")
    )
    assert isinstance(ds, torch.utils.data.IterableDataset)
    for _ in range(2):  # every iteration is all of it again
        found = list(ds)
        assert found == [CONTENTS[name] for name in sorted(CONTENTS)] and {type(each) for each in found} == {bytes}


def test_objects_is_a_list(emulator: Server) -> None:
    ds: Any = DataFluxMapStyleDataset("project", BUCKET, prefixed(), length)
    listed = [(name, len(CONTENTS[name])) for name in sorted(CONTENTS)]
    assert type(ds.objects) is list and ds.objects == listed and ds.objects is ds.objects
    assert pickle.loads(pickle.dumps(ds)).objects == listed
    ds.objects.reverse()
    assert [ds[0], ds[-1]] == [180, 3] and pickle.loads(pickle.dumps(ds))[0] == 180
    ds.objects = ds.objects[:2] + [("trainer.bin", 14), ("train/no.bin", 1)]
    assert len(ds) == 4 and ds.__getitems__([2, 1]) == [14, 177]
    for index, error in ((3, FileNotFoundError), (3, google.api_core.exceptions.NotFound), (4, IndexError)):
        with pytest.raises(error):
            ds[index]


@pytest.mark.parametrize(("prefix", "count"), [(None, 62), ("", 62), ("train", 61), ("train/00", 10), ("no", 0)])
def test_a_prefix_is_the_beginning_of_names(emulator: Server, prefix: str | None, count: int) -> None:
    assert len(DataFluxMapStyleDataset("project", BUCKET, Config(prefix=prefix))) == count


def test_a_prefix_of_odd_characters(emulator: Server) -> None:
    ds = DataFluxMapStyleDataset("project", BUCKET, Config(prefix="test/a?b#c%20 "))
    assert ds.objects == [("test/a?b#c%20 d.bin", 3)] and ds[0] == b"odd"


@pytest.mark.parametrize(
    ("kind", "context"),
    [*((kind, context) for kind in KINDS for context in (None, "fork")), (DataFluxIterableDataset, "spawn")],
)
def test_torch_s_data_loader(emulator: Server, kind: Kind, context: str | None) -> None:
    ds = kind("project", BUCKET, prefixed(), length)
    workers: dict[str, Any] = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    loader = torch.utils.data.DataLoader(ds, batch_size=7, **workers)
    for _ in range(1 if context == "spawn" else 2):
        assert samples(loader) == LENGTHS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_millrace_s_data_loader(emulator: Server, kind: Kind, workers: int) -> None:
    ds = kind("project", BUCKET, prefixed(), length)
    loader = millrace.DataLoader(ds, batch_size=7, num_workers=workers)
    assert samples(loader) == LENGTHS
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks(emulator: Server, monkeypatch: pytest.MonkeyPatch, caplog: Any, workers: int) -> None:
    """Each reads everything, as in the reference, unless rank and world_size say which part."""
    dataflux_iterable_dataset._logged_ranks = False
    found = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        ds: Any = DataFluxIterableDataset("project", BUCKET, prefixed(), length)
        assert samples(torch.utils.data.DataLoader(ds, batch_size=4, num_workers=workers)) == LENGTHS
        assert samples(millrace.DataLoader(ds, batch_size=4, num_workers=workers)) == LENGTHS
        part: Any = DataFluxIterableDataset("project", BUCKET, prefixed(), length, rank=rank, world_size=3)
        of_rank = samples(torch.utils.data.DataLoader(part, batch_size=4, num_workers=workers))
        assert len(of_rank) == 20
        found += of_rank
    assert sorted(found) == LENGTHS
    with caplog.at_level(logging.INFO, "millrace"):
        list(DataFluxIterableDataset("project", BUCKET, prefixed(), length))
    assert ("each of the 3 ranks reads every object" in caplog.text) == (workers > 0)  # once a process


def test_keywords_of_millrace(emulator: Server) -> None:
    """They choose millrace's own order."""
    ds: Any = DataFluxIterableDataset("project", BUCKET, prefixed(), length, shuffle=True, seed=3)
    order = list(ds)
    assert sorted(order) == LENGTHS != order and order == list(ds)
    ds.millrace.set_epoch(1)
    assert sorted(ds) == LENGTHS and list(ds) != order
    batches = DataFluxIterableDataset("project", BUCKET, prefixed(), length, batch_size=25, tail="drop")
    assert [len(batch) for batch in batches] == [25, 25]


def odd(data: bytes) -> int:
    if len(data) % 2 == 0:
        raise ValueError("even")
    return len(data)


def test_on_error_is_millrace_s(
    emulator: Server, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = start_supervisor(millrace_bin, tmp_path, emulator.url)  # what is logged holds on to the data sets
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    for kind in KINDS:
        some = kind("project", BUCKET, prefixed(), odd, on_error="skip")
        assert samples(torch.utils.data.DataLoader(some, batch_size=6)) == LENGTHS[::2]
    assert supervisor.stop() == 0


def test_what_torch_does_with_data_sets(emulator: Server) -> None:
    ds: Any = DataFluxMapStyleDataset("project", BUCKET, prefixed(), length)
    assert samples(torch.utils.data.DataLoader(ds + ds, batch_size=8)) == sorted(LENGTHS * 2)
    parts = torch.utils.data.random_split(ds, [50, 10])
    assert sorted(n for part in parts for n in samples(torch.utils.data.DataLoader(part, batch_size=8))) == LENGTHS
    it: Any = DataFluxIterableDataset("project", BUCKET, prefixed(), length)
    assert sorted(it + it) == sorted(LENGTHS * 2)


def writable_bucket() -> Any:
    return storage.Client(project="p", credentials=google.auth.credentials.AnonymousCredentials()).bucket(OTHER)


def test_what_the_reference_does_not_list(emulator: Server, core: Any) -> None:
    """Storage classes beside STANDARD, and names that end in a slash."""
    for name, kind in (("a", "STANDARD"), ("b", "NEARLINE"), ("c", "ARCHIVE"), ("d/", "STANDARD"), ("e", "STANDARD")):
        blob = writable_bucket().blob(f"classes/{name}")
        blob.storage_class = kind
        blob.upload_from_string(name)
    for each in KINDS:
        ds = each("p", OTHER, Config(prefix="classes/"))
        assert ds.objects == [("classes/a", 1), ("classes/e", 1)] and list(ds) == [b"a", b"e"]
    lister = core.fast_list.ListingController(2, "p", OTHER, prefix="classes/")
    assert lister.run() == [("classes/a", 1), ("classes/e", 1)]
    lister.allowed_storage_classes = ["NEARLINE", "STANDARD"]
    assert lister.run() == [("classes/a", 1), ("classes/b", 1), ("classes/e", 1)]
    lister.skip_compose = False
    with pytest.raises(ValueError, match="leaves out the temporary objects"):
        lister.run()


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_has_gone_is_google_s_not_found_too(emulator: Server, kind: Kind) -> None:
    blob = writable_bucket().blob("gone/x")
    blob.upload_from_string("x")
    ds = kind("p", OTHER, Config(prefix="gone/"))
    blob.delete()
    loader: Any = functools.partial(torch.utils.data.DataLoader, ds, num_workers=1, timeout=200)
    for error in (FileNotFoundError, google.api_core.exceptions.NotFound):
        for read in (ds, loader(multiprocessing_context="fork"), millrace.DataLoader(ds)):
            with pytest.raises(error, match="gone/x"):
                list(read)
    with pytest.raises(FileNotFoundError, match="gone/x"):  # the worker has not loaded Google's library
        list(loader(multiprocessing_context="forkserver"))


def test_an_error_where_google_s_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "google.api_core.exceptions")
    for of_listing in (False, True):
        error = _google.like_google_s(PermissionError("may not"), of_listing)
        assert str(error) == "may not" and isinstance(error, RuntimeError) == of_listing
        again = pickle.loads(pickle.dumps((type(error), error)))
        assert again[0] is type(error) and str(again[1]) == "may not"


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_bucket_is_an_error_at_once(emulator: Server, kind: Kind) -> None:
    for error in (FileNotFoundError, google.api_core.exceptions.NotFound, RuntimeError):
        with pytest.raises(error, match="no-such-bucket"):
            kind("project", "no-such-bucket", prefixed())


def test_an_iterable_has_no_length(emulator: Server) -> None:
    ds: Any = DataFluxIterableDataset("project", BUCKET, prefixed())
    assert not hasattr(ds, "__len__") and bool(ds)
    with pytest.raises(TypeError):
        len(torch.utils.data.DataLoader(ds, batch_size=7))


class Downloading(DataFluxIterableDataset):
    """As programs subclass it: an __iter__ of its own, over attributes of the reference."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        share: Any = self.objects if info is None else self.objects[info.id :: info.num_workers]
        yield from map(
            length,
            dataflux_iterable_dataset.dataflux_core.download.dataflux_download_lazy(
                project_name=self.project_name,
                bucket_name=self.bucket_name,
                objects=share,
                storage_client=self.storage_client,
                dataflux_download_optimization_params=self.dataflux_download_optimization_params,
                retry_config=self.config.download_retry_config,
            ),
        )


def test_a_client_is_not_pickled(emulator: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = storage.Client(project="p", credentials=google.auth.credentials.AnonymousCredentials())
    again = [pickle.loads(pickle.dumps(kind("q", BUCKET, prefixed(), storage_client=client))) for kind in KINDS]
    monkeypatch.setattr(storage, "Client", lambda project: f"a new one for {project}")
    assert [each.storage_client for each in again] == ["a new one for q", None]  # as in the reference, for the first


def test_what_millrace_s_loader_would_not_do_is_refused(emulator: Server) -> None:
    own: Any = Downloading("project", BUCKET, prefixed())
    with pytest.raises(ValueError, match="Downloading has a __iter__ of its own"):
        millrace.DataLoader(own)
    for kind in KINDS:
        ds = kind("project", BUCKET, prefixed(), length)
        assert ds.objects and samples(millrace.DataLoader(ds)) == LENGTHS
        ds.objects.pop()
        with pytest.raises(ValueError, match="objects is not what was listed any more"):
            millrace.DataLoader(ds)


@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(context, marks=pytest.mark.nightly) for context in ("spawn", "forkserver"))]
)  # each worker of the latter imports torch
@pytest.mark.parametrize("kind", [*KINDS, Downloading])
def test_clients_of_three_kinds_and_ways_to_start(
    emulator: Server, monkeypatch: pytest.MonkeyPatch, kind: Kind, context: str
) -> None:
    anonymous = google.auth.credentials.AnonymousCredentials()
    clients = [None, storage.Client(project="p", credentials=anonymous)]
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    clients.append(client_with(anonymous, client_options={"api_endpoint": emulator.url}))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
    for client in clients:
        ds = kind("project", BUCKET, prefixed(), *([] if kind is Downloading else [length]), storage_client=client)
        assert ds.storage_client is client
        loader = torch.utils.data.DataLoader(ds, batch_size=7, num_workers=2, multiprocessing_context=context)
        assert samples(loader) == LENGTHS


class Counted(DataFluxMapStyleDataset):
    def __init__(self, bucket: str) -> None:
        super().__init__("project", bucket, prefixed(), self.read)

    def read(self, data: bytes) -> tuple[int, bytes]:
        return len(self), data


def test_a_subclass(emulator: Server) -> None:
    assert Counted(BUCKET)[4] == (60, CONTENTS["train/004.bin"])


# ---- how the settings reach a supervisor ----


def test_settings_are_applied(monkeypatch: pytest.MonkeyPatch, emulator: Server) -> None:
    """Nobody listens at this endpoint: with the default settings this would take minutes."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    for config in (None, DEFAULT_RETRY.with_timeout(0.2).with_delay(initial=0.1)):
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            len(DataFluxMapStyleDataset("project", BUCKET, Config(download_retry_config=config)))


def test_equal_settings_share_a_supervisor(emulator: Server) -> None:
    first = [kind("project", BUCKET, prefixed(download_retry_config=retry.Retry())) for kind in KINDS]
    second = [kind("other", BUCKET, Config(), length) for kind in KINDS]
    plain = millrace.MapDataset(f"gs://{BUCKET}/")
    sources = [*(ds._listed for ds in [*first, *second]), plain._source]
    paths = [source.connection().path for source in sources]
    assert paths[0] == paths[1] != paths[2] == paths[3] != paths[4] != paths[0]
    assert {len(ds.objects) for ds in first} == {60} and {len(ds.objects) for ds in [*second, plain]} == {62}


def test_a_running_supervisor_keeps_its_configuration(
    emulator: Server, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """One line says what was not applied, once."""
    config = Config(num_processes=1000, download_retry_config=DEFAULT_RETRY)
    supervisor = start_supervisor(millrace_bin, tmp_path, emulator.url)
    monkeypatch.setenv("MILLRACE_SOCKET", str(supervisor.socket))
    for kind in KINDS * 2:
        assert len(kind("project", BUCKET, config).objects) == 62
    gc.collect()
    assert supervisor.stop() == 0
    lines = [record.getMessage() for record in caplog.records if "not applied" in record.getMessage()]
    assert len(lines) == 1
    assert "num_processes, download_retry_config" in lines[0] and "MILLRACE_SOCKET" in lines[0]


def test_millrace_config_counts(
    emulator: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f'[gcs]\nendpoint = "{emulator.url}"\nauth = "anonymous"\n[log]\nlevel = "error"\n')
    monkeypatch.setenv("MILLRACE_CONFIG", str(file))
    client = storage.Client(
        project="p",
        credentials=google.auth.credentials.AnonymousCredentials(),
        client_options={"api_endpoint": "http://127.0.0.1:9"},
    )
    ds = DataFluxMapStyleDataset("project", BUCKET, prefixed(), storage_client=client)
    assert len(ds) == 60 and "storage_client's endpoint" in caplog.text and "MILLRACE_CONFIG" in caplog.text


RANK = """
import os, sys
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
many = DataFluxMapStyleDataset("p", "bucket", Config(prefix="train/", num_processes=1000))
one = DataFluxMapStyleDataset("p", "bucket", Config(prefix="train/"))
assert len(many) == len(one) == 60
print(many._listed.connection().path, one._listed.connection().path, flush=True)
sys.stdin.read()
"""


def test_ranks_of_a_node_share_each(emulator: Server) -> None:
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "dropin" + "x" * 90}
    pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], **pipe) for _ in range(2)]
    try:
        paths = [rank.stdout.readline().split() for rank in ranks if rank.stdout is not None]
    finally:
        for rank in ranks:
            rank.communicate("")
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert paths[0] == paths[1] and paths[0][0] != paths[0][1]


# ---- storage_client ----


def client_with(credentials: Any, **more: Any) -> storage.Client:
    return storage.Client(project="p", credentials=credentials, **more)


@functools.lru_cache
def key() -> str:
    made = subprocess.run(["openssl", "genrsa", "-traditional", "2048"], capture_output=True, text=True, check=True)
    return made.stdout


def account_file() -> dict[str, str]:
    return {
        "type": "service_account",
        "client_email": "trainer@p.iam.gserviceaccount.com",
        "private_key_id": "key-1",
        "private_key": key(),
        "token_uri": "https://oauth2.googleapis.com/token",
    }


def user_file() -> dict[str, str]:
    return {"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": "refresh"}


def account(file: dict[str, str]) -> Any:
    return google.oauth2.service_account.Credentials.from_service_account_info(file)


def user(file: dict[str, str]) -> Any:
    return google.oauth2.credentials.Credentials.from_authorized_user_info(file)


def external_file() -> dict[str, Any]:
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "/token"},
    }


def external(file: dict[str, Any]) -> Any:
    import google.auth.identity_pool

    return google.auth.identity_pool.Credentials.from_info(file)


def impersonated_file() -> dict[str, Any]:
    url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com"
    return {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": f"{url}:generateAccessToken",
        "source_credentials": user_file(),
    }


def impersonated(file: dict[str, Any]) -> Any:
    return google.auth.impersonated_credentials.Credentials(
        user(file["source_credentials"]), "a@p.iam.gserviceaccount.com", ["scope"]
    )


@pytest.fixture
def no_emulator(emulator: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")


def test_a_client_of_the_emulator_asks_for_nothing(emulator: Server) -> None:
    client = storage.Client()
    assert _config.settings(Config(), client) == AS_IT_IS
    assert len(DataFluxMapStyleDataset("p", BUCKET, prefixed(), storage_client=client)) == 60
    pickle.dumps(DataFluxMapStyleDataset("p", BUCKET, prefixed(), storage_client=client))


def test_endpoint_and_anonymous(emulator: Server, no_emulator: None) -> None:
    """The data set finds the store by the client alone."""
    anonymous = google.auth.credentials.AnonymousCredentials()
    client = client_with(anonymous, client_options={"api_endpoint": emulator.url})
    assert toml(client=client) == f'[gcs]\nendpoint = "{emulator.url}"\nauth = "anonymous"\n'
    assert len(DataFluxMapStyleDataset("p", BUCKET, prefixed(), storage_client=client)) == 60
    assert toml(client=client_with(anonymous)) == '[gcs]\nauth = "anonymous"\n'


@pytest.mark.parametrize(
    ("content", "make"),
    [
        (account_file, account),
        (user_file, user),
        (external_file, external),
        (impersonated_file, impersonated),
    ],
)
def test_credentials_that_millrace_finds_too(
    no_emulator: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: Any, make: Any
) -> None:
    client = client_with(make(content()))
    kind = re.escape(f"{type(client._credentials).__module__}.Credentials")
    with pytest.raises(ValueError, match=f"of the kind {kind}.*there is no file with them"):
        toml(client=client)
    well_known = tmp_path / "application_default_credentials.json"  # CLOUDSDK_CONFIG is this folder
    well_known.write_text(json.dumps(content()))
    assert toml(client=client) == ""
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"type": "service_account", "client_email": "other"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(other))  # it comes before the well-known file
    with pytest.raises(ValueError, match=r"other\.json, which has others"):
        toml(client=client)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(well_known))
    assert toml(client=client) == ""
    well_known.write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        toml(client=client)


def test_the_machine_s_own_credentials(no_emulator: None, tmp_path: Path) -> None:
    from google.auth import compute_engine

    client = client_with(compute_engine.Credentials(universe_domain="googleapis.com"))
    assert toml(client=client) == ""
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user_file()))
    with pytest.raises(ValueError, match="the machine's own credentials"):
        toml(client=client)


def test_credentials_that_cannot_be_taken_over(no_emulator: None, tmp_path: Path) -> None:
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(account_file()))
    for credentials, text in [
        (google.oauth2.credentials.Credentials("a token"), "google.oauth2.credentials.Credentials"),
        (account(account_file()).with_subject("someone@example.com"), "which has others"),
        (google.auth.credentials.CredentialsWithQuotaProject.__new__(Own), r"test_dataflux\.Own"),
    ]:
        with pytest.raises(ValueError, match=text):
            toml(client=client_with(credentials))


class Own(google.auth.credentials.Credentials):
    universe_domain = "googleapis.com"

    def refresh(self, request: Any) -> None:
        raise NotImplementedError


def test_the_client_s_quota_project(no_emulator: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user_file()))
    client = client_with(user(user_file()), client_options={"quota_project_id": "payer"})
    found = _config.settings(Config(), client)
    assert found.environment == (("GOOGLE_CLOUD_QUOTA_PROJECT", "payer"),)
    assert found.asked_by == ("storage_client's quota project",)
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "payer")
    assert _config.settings(Config(), client).environment == ()


def test_a_transport_of_the_client_s_own(emulator: Server) -> None:
    import requests

    with pytest.raises(ValueError, match=r"transport of its own \(requests"):
        toml(client=storage.Client(_http=requests.Session()))
    used = storage.Client()
    assert len(list(used.list_blobs(BUCKET, prefix="train/"))) == 60  # it has its usual transport by now
    assert toml(client=used) == ""


# ---- the reference's own programs ----

CONFIG = """
[memory]
arena_bytes = "16MiB"
[checkpoint]
arena_bytes = "40MiB"
"""
PROGRAMS = sorted((ROOT / "tests" / "python" / "dataflux_readme").glob("*.py"))

SAYS = {"checkpoint": "restored", "lightning_checkpoint": "resumed at step 10", "async_save": "restored epoch 2"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run_after_the_sed(emulator: Server, tmp_path: Path, program: Path) -> None:
    """Programs like those of the reference's README; `sed` is all that is done to them."""
    text = program.read_text()
    assert "dataflux_pytorch" in text and "millrace" not in text
    moved = subprocess.run(
        ["sed", "s/dataflux_pytorch/millrace.dataflux/", program], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "program.py").write_text(moved)
    images = tmp_path / "store" / "pictures" / "icons"
    images.mkdir(parents=True)
    from PIL import Image

    for i in range(12):
        Image.new("RGB", (16, 16), (20 * i, 0, 255)).save(images / f"{i:02}.png")
    server = start_devstore("--root", tmp_path / "store")
    try:
        (tmp_path / "millrace.toml").write_text(CONFIG)
        environment = {
            **os.environ,
            "STORAGE_EMULATOR_HOST": server.url,
            "MILLRACE_CONFIG": str(tmp_path / "millrace.toml"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        done = forked.run(["program.py", "a-project", "pictures", "icons/"], tmp_path, environment)
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == SAYS.get(program.stem, "12 objects"), done.stdout


# ---- dataflux_core ----

CORE = """
import sys
import millrace.dataflux.install
import dataflux_core, dataflux_core.download
from dataflux_core import fast_list, user_agent
assert dataflux_core is millrace.dataflux.dataflux_core and fast_list is dataflux_core.fast_list
listed = fast_list.ListingController(max_parallelism=4, project="p", bucket="bucket", prefix="train/").run()
parameters = dataflux_core.download.DataFluxDownloadOptimizationParams(1000)
all_of_it = dataflux_core.download.dataflux_download_threaded("p", "bucket", listed, None, parameters, threads=3)
assert [len(data) for data in all_of_it] == [size for _, size in listed]
assert list(dataflux_core.download.dataflux_download_lazy("p", "bucket", [])) == []
print(len(listed))
"""


def test_install_gives_dataflux_core_its_name(emulator: Server, tmp_path: Path) -> None:
    def run(code: str, **more: str) -> str:
        environment = {**os.environ, **more}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        return done.stdout + done.stderr

    assert run(CORE) == "60\n"
    assert "No module named 'dataflux_core'" in run("import millrace.dataflux.dataflux_mapstyle_dataset, dataflux_core")
    (tmp_path / "dataflux_core.py").write_text("real = True")
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    assert run("import millrace.dataflux.install, dataflux_core as d; print(d.real)", PYTHONPATH=path) == "True\n"


@pytest.fixture
def core() -> Iterator[Any]:
    yield dataflux_core
    _known.forget()


def test_a_download_gives_what_is_there_now(emulator: Server, core: Any) -> None:
    bucket, parameters = writable_bucket(), core.download.DataFluxDownloadOptimizationParams(0)
    for i in range(40):
        bucket.blob(f"now/{i:02}").upload_from_string(f"old {i}")
    listed = core.fast_list.ListingController(1, "p", OTHER, prefix="now/").run()
    bucket.blob("now/03").upload_from_string("a new one")
    bucket.blob("now/later").upload_from_string("later")
    wanted = [listed[i] for i in (5, 3, 3, 39)] + [("now/later", 5)]
    assert core.download.dataflux_download("p", OTHER, wanted, None, parameters) == [
        b"old 5",
        b"a new one",
        b"a new one",
        b"old 39",
        b"later",
    ]
    assert core.download.download_single(None, OTHER, "now/03") == b"a new one"
    bucket.blob("now/05").delete()
    for missing in (lambda: core.download.dataflux_download("p", OTHER, wanted), lambda: single(core, "now/05")):
        with pytest.raises(FileNotFoundError, match="now/05"):
            missing()


def single(core: Any, name: str) -> Any:
    return core.download.download_single(None, OTHER, name)


def test_compose_and_decompose(emulator: Server, core: Any) -> None:
    names = [f"parts/{i}" for i in range(3)]
    for i, name in enumerate(names):
        writable_bucket().blob(name).upload_from_string(str(i) * (i + 1))
    objects = [(name, i + 1) for i, name in enumerate(names)]
    client = storage.Client(project="p", credentials=google.auth.credentials.AnonymousCredentials())
    assert core.download.compose("p", OTHER, "whole", objects, client).name == "whole"
    assert core.download.decompose("p", OTHER, "whole", objects, client) == [b"0", b"11", b"222"]
    with pytest.raises(ValueError, match="whole has 6 bytes, its 2 parts have 3"):
        core.download.decompose("p", OTHER, "whole", objects[:2], client)
    with pytest.raises(ValueError, match="33 objects: one compose request takes 32 at most"):
        core.download.compose("p", OTHER, "whole", objects * 11, client)


def test_user_agent() -> None:
    client = client_with(google.auth.credentials.AnonymousCredentials())
    before = client._connection._client_info.user_agent or ""
    for _ in range(2):
        dataflux_core.user_agent.add_dataflux_user_agent(client)
        assert client._connection._client_info.user_agent == f"dataflux/1.0 {before}".strip()


def test_the_default_retry_is_google_s_and_stays_the_default(emulator: Server) -> None:
    config = Config()
    assert isinstance(config.download_retry_config, retry.Retry)
    assert config.list_retry_config is dataflux_iterable_dataset.MODIFIED_RETRY
    named = Config(download_retry_config=config.download_retry_config)
    assert _config.settings(named, None) == AS_IT_IS == _config.settings(pickle.loads(pickle.dumps(config)), None)
    assert core_retry()._timeout == 300.0
    with pytest.raises(AttributeError, match="no attribute 'UNKNOWN'"):
        dataflux_core.download.UNKNOWN  # noqa: B018


def core_retry() -> Any:
    assert dataflux_core.download.MODIFIED_RETRY is dataflux_core.fast_list.MODIFIED_RETRY
    return dataflux_core.download.MODIFIED_RETRY


def test_the_modules_need_no_torch(emulator: Server) -> None:
    code = (
        "import sys, millrace.dataflux, millrace.dataflux.dataflux_iterable_dataset as it\n"
        "ds = it.DataFluxIterableDataset('p', 'bucket', it.Config(prefix='train/'))\n"
        "assert len(list(ds)) == 60 and not {'torch', 'numpy', 'google'} & set(sys.modules)\n"
        "print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
