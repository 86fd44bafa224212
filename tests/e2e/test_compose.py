"""Composed downloads through a whole supervisor: the same bytes as plain ones, and nothing left, whatever fails."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, StartDevstore
from tests.serve import start_supervisor, wait_for
from tests.stores import TEMPORARY_PREFIX, delete, put, temporary, upload

READER = Path(__file__).with_name("compose_reader.py")
ODD = ["a b", "ä/ü", "100%", "x?y=1&z", "#", "+", "'\"", "\\", "a//b", "~", "[1]", "é", "日本/語", "..x", "0" * 200]
# Quick repeats, so that a test does not wait for them.
QUICK = "[retry]\nbase_ms = 5\ncap_ms = 20\n"
# Only where the store stalls: on a busy machine a good answer may take its time.
STALLING = "[http]\nstall_timeout_ms = 300\n"
ALWAYS = '[fetch]\ncompose = "always"\n'


def odd_objects(count: int, largest: int, seed: int = 1) -> dict[str, bytes]:
    """Names with every kind of character; sizes from 0, many of them small, some over the limit of a composite."""
    rng = random.Random(seed)
    objects = {}
    for i in range(count):
        name = f"{rng.choice(ODD)}-{i:05}" if i % 3 else f"plain/{i:05}"
        size = 0 if i % 17 == 0 else rng.randrange(1, largest if i % 29 == 0 else max(2, largest // 10))
        objects[name] = rng.randbytes(size)
    return objects


def digests(objects: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in objects.items()}


def fetched(seen: dict[str, Any]) -> int:
    """Objects, by the counters that the fetch workers publish every 100 ms."""
    return sum(worker["counters"]["fetched_objects"] for worker in seen["workers"] if worker["role"] == "fetch")


Result = tuple[dict[str, Any], dict[str, Any], str]
Read = Callable[..., Result]


@pytest.fixture
def read(millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads gs://BUCKET/ through a supervisor: what was read, its statistics, its log. Its marks lie in tmp_path."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))

    def run(url: str, bucket: str, toml: str = ALWAYS) -> Result:
        supervisor = start_supervisor(millrace_bin, tmp_path, url, QUICK + toml)
        try:
            reader = subprocess.run(
                [sys.executable, READER, f"gs://{bucket}/"],
                env=supervisor.environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert reader.returncode == 0, reader.stderr + supervisor.log.read_text()
            taken = json.loads(reader.stdout)["taken"]
            wait_for(lambda: fetched(supervisor.stat()) >= taken, "the workers' counters never came")
            seen = supervisor.stat()
            # What is late in being deleted has two seconds at the stop.
            wait_for(lambda: temporary(url, bucket) == [] or "could not be deleted" in supervisor.log.read_text())
        finally:
            assert supervisor.stop() == 0
        return json.loads(reader.stdout), seen, supervisor.log.read_text()

    return run


@pytest.fixture
def bucket(devstore: StartDevstore, tmp_path: Path) -> Callable[..., tuple[Server, dict[str, bytes]]]:
    """A store with 400 odd objects of up to 60 KB in the bucket "odd"."""

    def start(*flags: str) -> tuple[Server, dict[str, bytes]]:
        objects = odd_objects(400, 60_000)
        server = devstore("--memory", *flags)
        upload(server.url, "odd", objects)
        return server, objects

    return start


LIMITS = '[fetch]\ncompose = "always"\ncompose_max_bytes = 50000\ncompose_max_objects = 20\n'


def test_composed_bytes_are_the_same(bucket: Any, read: Read) -> None:
    server, objects = bucket()
    for toml in (ALWAYS, LIMITS, '[fetch]\ncompose = "never"\n'):
        result, seen, _ = read(server.url, "odd", toml)
        assert result["objects"] == digests(objects)
        assert result["taken"] == len(objects)
        assert temporary(server.url, "odd") == []
        operations = seen["operations"]
        assert (operations["composites"] > 0) == ("always" in toml)
        if toml == LIMITS:
            assert operations["objects_a_compose"] <= 20


def test_no_composite_is_over_the_limit(bucket: Any, read: Read, tmp_path: Path) -> None:
    log = tmp_path / "requests"
    server, _ = bucket("--log", str(log))
    read(server.url, "odd", LIMITS)
    got = [line for line in log.read_text().splitlines() if line.startswith("GET") and "dataflux-composed" in line]
    sizes = [int(line.split()[-1]) for line in got if "alt=media" in line]
    assert sizes and max(sizes) <= 50_000, sizes


def test_most_objects_come_32_to_a_compose(devstore: StartDevstore, read: Read) -> None:
    server = devstore("--synthetic", "many:6000:100-9000", "--latency-ms", "2")
    result, seen, _ = read(server.url, "many")
    assert result["taken"] == 6000
    assert seen["operations"]["objects_a_compose"] >= 24
    # 188 composes, as many GETs; the listing is class A too.
    assert seen["operations"]["class_a"] <= 300
    assert temporary(server.url, "many") == []


# The names of composites end in their number, 0, 1, 2, ...: some of each fault's certainly come.
FAULTS = {
    "compose is refused": ("status:1:403:compose:*",),
    "composes fail": ("status:1:404:compose:*-*[036]", "status:1:412:compose:*-*[147]", "status:first=1:503:compose:*"),
    "answers of composes are lost": (
        "reset:first=1:0:compose:*-*[147]",
        "short:first=1:10:compose:*-*[258]",
        "stall:first=1:2:compose:*-*[36]",
    ),
    "composites cannot be read": tuple(
        f"{kind}:get:{TEMPORARY_PREFIX}*{ends}"
        for kind, ends in (
            ("status:1:404", "[04]"),
            ("status:1:403", "[15]"),
            ("changed:1:", "2"),
            ("stall:first=1:5", "3"),
        )
    ),
    "composites come badly": (
        f"reset:first=1:1000:get:{TEMPORARY_PREFIX}*[147]",
        f"wrong:1:3000:get:{TEMPORARY_PREFIX}*",
    ),
    "deletes fail": ("status:first=1:503:delete:*", "status:first=1:503:batch:*"),
}


@pytest.mark.random
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, bucket: Any, read: Read) -> None:
    server, objects = bucket(*(f"--fault={one}" for one in FAULTS[fault]))
    stalls = any(one.startswith("stall:") for one in FAULTS[fault])
    result, seen, log = read(server.url, "odd", ALWAYS + STALLING if stalls else ALWAYS)
    assert result["objects"] == digests(objects), log
    assert temporary(server.url, "odd") == [], log
    fetching = [worker["counters"] for worker in seen["workers"] if worker["role"] == "fetch"]

    def total(name: str) -> int:
        return sum(counters[name] for counters in fetching)

    if fault in ("compose is refused", "composes fail", "composites cannot be read"):
        assert total("compose_fallbacks") > 0
    if fault == "compose is refused":
        assert total("composites") == 0 and "switched off" in log
    if fault == "composites come badly":
        assert total("slices_repeated") > 0


@pytest.mark.nightly  # ten seconds for the answers, twenty until what may have been made is looked for
def test_composes_without_an_answer_end_composing(devstore: StartDevstore, read: Read) -> None:
    """Each job waits 10 s for one: not for the rest of the run."""
    server = devstore("--synthetic", "many:2000:100", "--fault", "stall:1::compose:*")
    result, seen, log = read(server.url, "many", ALWAYS + "workers = 1\nconnections = 40\ncompose_max_objects = 4\n")
    assert result["taken"] == 2000
    assert "switched off" in log and "no answer to a compose within 10 s" in log
    assert seen["operations"]["composites"] == 0


def test_a_delete_that_is_refused_is_told_and_mended_by_the_next_run(bucket: Any, read: Read) -> None:
    server, objects = bucket("--fault", "status:first=1:403:batch:*", "--fault", "status:first=1:403:delete:*")
    result, _, log = read(server.url, "odd")
    assert result["objects"] == digests(objects)
    assert "could not be deleted" in log
    read(server.url, "odd")
    assert temporary(server.url, "odd") == []


def test_sources_that_changed_or_went_get_their_own_answers(
    devstore: StartDevstore, millrace_bin: Path, tmp_path: Path
) -> None:
    objects = {f"o/{i:04}": bytes([i % 256]) * (1000 + i) for i in range(400)}
    server = devstore("--memory")
    upload(server.url, "odd", objects)
    supervisor = start_supervisor(millrace_bin, tmp_path, server.url, QUICK + ALWAYS)
    code = "import millrace; print(len(millrace.IterableDataset('gs://odd/')))"
    try:
        subprocess.run([sys.executable, "-c", code], env=supervisor.environment, check=True)  # it is listed now
        put(server.url, "odd", "o/0007", b"another")
        delete(server.url, "odd", "o/0200")
        reader = subprocess.run(
            [sys.executable, READER, "gs://odd/"], env=supervisor.environment, capture_output=True, text=True
        )
    finally:
        assert supervisor.stop() == 0
    assert reader.returncode == 0, reader.stderr
    wanted = digests(objects)
    del wanted["o/0007"], wanted["o/0200"]
    assert json.loads(reader.stdout)["objects"] == wanted
    log = supervisor.log.read_text()
    assert "o/0007: changed since the listing" in log and "o/0200: deleted since the listing" in log
    assert temporary(server.url, "odd") == []


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--zonal", "off: a zonal (Rapid) bucket"),
        ("--deny=storage.objects.delete", "off: no permission: storage.objects.delete"),
    ],
)
def test_auto_says_no(flag: str, reason: str, devstore: StartDevstore, read: Read) -> None:
    server = devstore("--synthetic", "many:2500:1000", *flag.split("="))
    result, seen, log = read(server.url, "many", '[fetch]\ncompose = "auto"\n')
    assert result["taken"] == 2500
    assert reason in log
    assert seen["datasets"][0]["compose"].startswith(reason)
    assert seen["operations"]["composites"] == 0


@pytest.mark.random
def test_auto_measures_and_says_so(devstore: StartDevstore, read: Read) -> None:
    server = devstore("--synthetic", "many:30000:2000", "--latency-ms", "5")
    result, seen, log = read(server.url, "many", '[fetch]\ncompose = "auto"\nworkers = 1\n')
    assert result["taken"] == 30000
    assert "measured speed alone" in log
    decision = seen["datasets"][0]["compose"]
    assert decision.startswith(("on: composed ", "off: composed ")), decision
    assert "us of CPU an object" in decision
    assert seen["operations"]["composites"] > 0
    assert temporary(server.url, "many") == []


@pytest.mark.random
def test_auto_gives_up_where_composes_are_throttled(devstore: StartDevstore, read: Read) -> None:
    """With enough to read that the trial comes before the end, on a fast machine too."""
    throttled = "rate:first=1::compose:*"  # all of the first
    server = devstore("--synthetic", "many:30000:2000", "--latency-ms", "5", "--fault", throttled)
    result, seen, log = read(server.url, "many", '[fetch]\ncompose = "auto"\nworkers = 1\n')
    assert result["taken"] == 30000
    assert "429" in seen["datasets"][0]["compose"], log
    assert seen["datasets"][0]["compose"].startswith("off")


def test_fake_gcs_server(fake_gcs: Server, read: Read) -> None:
    objects = odd_objects(200, 20_000)
    upload(fake_gcs.url, "odd", objects)
    result, seen, log = read(fake_gcs.url, "odd")
    assert result["objects"] == digests(objects), log
    assert seen["operations"]["composites"] > 0
    assert temporary(fake_gcs.url, "odd") == []


def run_clean(millrace_bin: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url}
    command = [str(millrace_bin), "clean", "--json", *arguments, "gs://odd"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)


def clean(millrace_bin: Path, url: str, *arguments: str) -> dict[str, Any]:
    result = run_clean(millrace_bin, url, *arguments)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def upload_temporaries(url: str) -> None:
    run = "0f8fad5b-d9cb-469f-a165-70867728950e"
    upload(url, "odd", {f"{TEMPORARY_PREFIX}{run}/1-1-{i}": b"0123456789" for i in range(3)})


def test_clean_that_may_not_delete(devstore: StartDevstore, millrace_bin: Path) -> None:
    server = devstore("--memory", "--deny", "storage.objects.delete")
    upload_temporaries(server.url)
    done = run_clean(millrace_bin, server.url, "--all")
    result = json.loads(done.stdout)
    assert (done.returncode, result["failed"], result["removed"], result["removed_bytes"]) == (1, 3, 0, 0)


def test_clean_that_fails_in_the_middle(devstore: StartDevstore, millrace_bin: Path) -> None:
    """What it had removed by then is reported all the same."""
    server = devstore("--memory", "--fault", "status:1:400:uploads:*")
    upload_temporaries(server.url)
    done = run_clean(millrace_bin, server.url, "--all")
    result = json.loads(done.stdout)
    assert (done.returncode, result["removed"], len(result["objects"])) == (2, 3, 3)
    assert result["unfinished"] is None  # nobody knows
    assert "400" in done.stderr


def test_clean(devstore: StartDevstore, millrace_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    (runtime / "millrace" / "composed").mkdir(parents=True)
    for folder in (runtime, runtime / "millrace", runtime / "millrace" / "composed"):
        folder.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    server = devstore("--memory", "--page-size", "40")
    run = "0f8fad5b-d9cb-469f-a165-70867728950e"
    others = {f"{TEMPORARY_PREFIX}{run}/1-1-{i}": b"other node" for i in range(250)}
    ours = {f"{TEMPORARY_PREFIX}{run}/0-1-{i}": b"dead here" for i in range(150)}
    foreign = {f"{TEMPORARY_PREFIX}8d1f8a3e-0000-4000-8000-000000000000": b"of another program"}
    data = {"a": b"data", "dataflux-composed": b"no temporary object"}
    upload(server.url, "odd", {**others, **ours, **foreign, **data})
    # A process of this machine that died, as its mark says.
    (runtime / "millrace" / "composed" / f"{run}.0.1").write_text(f"{server.url} odd\n")

    looked = clean(millrace_bin, server.url, "--dry-run")
    assert {item["uri"] for item in looked["objects"]} == {f"gs://odd/{name}" for name in ours}
    assert looked["seen"] == 401 and looked["removed"] == 0 and looked["kept"] == 251
    assert clean(millrace_bin, server.url)["removed"] == 150
    assert clean(millrace_bin, server.url, "--dry-run", "--older-than", "0")["objects"][0]["bytes"] == 10
    assert clean(millrace_bin, server.url, "--all")["removed"] == 251
    assert temporary(server.url, "odd") == []
    with urllib.request.urlopen(f"{server.url}/storage/v1/b/odd/o") as reply:
        assert [item["name"] for item in json.load(reply)["items"]] == list(data)

    environment = {**os.environ, "STORAGE_EMULATOR_HOST": server.url}
    for wrong in ([], ["gs://odd", "gs://odd"], ["--older-than", "x", "gs://odd"]):
        bad = subprocess.run([millrace_bin, "clean", *wrong], env=environment, capture_output=True, text=True)
        assert bad.returncode == 2 and bad.stderr, bad


def test_a_live_run_of_this_machine_keeps_its_objects(
    devstore: StartDevstore, read: Read, millrace_bin: Path, tmp_path: Path
) -> None:
    """Slow downloads of composites, and another run's worker and `clean --older-than 0` beside them."""
    server = devstore("--synthetic", "odd:3000:20000", "--bandwidth-mibps", "2", "--latency-ms", "20")
    (tmp_path / "other").mkdir()
    supervisor = start_supervisor(
        millrace_bin, tmp_path / "other", server.url, '[fetch]\ncompose = "always"\nconnections = 4\n'
    )
    reader = None
    try:
        while reader is None or reader.poll() is not None:  # on a machine that is not quick enough for a look, again
            assert reader is None or reader.wait() == 0
            reader = subprocess.Popen(
                [sys.executable, READER, "gs://odd/"], env=supervisor.environment, stdout=subprocess.PIPE, text=True
            )
            wait_for(lambda: temporary(server.url, "odd") or reader.poll() is not None)  # noqa: B023
        assert clean(millrace_bin, server.url, "--older-than", "0")["removed"] == 0
        out, _ = reader.communicate(timeout=100)
        assert json.loads(out)["taken"] == 3000
        seen = supervisor.stat()
        fallbacks = [w["counters"]["compose_fallbacks"] for w in seen["workers"] if w["role"] == "fetch"]
        assert sum(fallbacks) == 0
    finally:
        if reader is not None:
            reader.kill()
            reader.communicate()
        assert supervisor.stop() == 0
