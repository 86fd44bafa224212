"""millrace.dataflux: what the fields of a Config ask for, and arguments that cannot be."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import google.auth.credentials
import pytest
from google.api_core import retry
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from millrace.dataflux import _config, dataflux_iterable_dataset
from millrace.dataflux.dataflux_iterable_dataset import DataFluxIterableDataset
from millrace.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset
from tests.python.dataflux_settings import AS_IT_IS, toml


def test_the_default_asks_for_composing_and_the_standard_class() -> None:
    assert _config.settings(Config(), None) == AS_IT_IS
    assert _config.settings(dataflux_iterable_dataset.Config(), None) == AS_IT_IS
    assert _config.settings(Config(max_listing_retries=5, threads_per_process=8), None) == AS_IT_IS


def test_positional_order() -> None:
    config = Config(True, 5, 2, "p", 4, 3, False, None, None)
    assert vars(config) == {
        "sort_listing_results": True,
        "max_composite_object_size": 5,
        "num_processes": 2,
        "prefix": "p",
        "max_listing_retries": 4,
        "threads_per_process": 3,
        "disable_compose": False,
        "list_retry_config": None,
        "download_retry_config": None,
    }
    other = dataflux_iterable_dataset.Config(True, 5, 2, "p", 4, True)
    assert other.disable_compose and other.max_composite_object_size == 0
    with pytest.raises(TypeError):
        dataflux_iterable_dataset.Config(threads_per_process=2)  # type: ignore[call-arg]


def test_num_processes() -> None:
    config = Config(num_processes=(os.cpu_count() or 1) + 1)
    assert toml(config) == f"workers = {min((os.cpu_count() or 1) + 1, 32)}\n"
    assert "workers = 32" in toml(Config(num_processes=1000))


def test_composing() -> None:
    never = '[fetch]\ncompose = "never"\n'
    assert toml(Config(max_composite_object_size=0)) == toml(Config(disable_compose=True)) == never
    assert toml(Config(disable_compose=True, max_composite_object_size=5_000_000)) == never
    assert toml(Config(max_composite_object_size=5_000_000)) == "compose_max_bytes = 5000000\n"
    assert toml(Config(max_composite_object_size=1 << 40)) == f"compose_max_bytes = {16 << 30}\n"
    changed = Config()
    changed.max_composite_object_size = 0  # as the reference's demo does
    assert toml(changed) == never and _config.settings(changed, None).asked_by == ("max_composite_object_size",)


def test_retries_of_google() -> None:
    patient = DEFAULT_RETRY.with_timeout(600.0).with_delay(initial=1.5, multiplier=1.5, maximum=90.0)
    expected = "[retry]\nattempts = 1000\nbase_ms = 1500\ncap_ms = 90000\ndeadline_ms = 600000\n"
    assert toml(Config(download_retry_config=patient)) == expected
    assert toml(Config(list_retry_config=patient)) == expected
    assert toml(Config(list_retry_config=retry.Retry(), download_retry_config=patient)) == expected
    assert "attempts = 1\n" in toml(Config(download_retry_config=None))
    longest = retry.Retry(timeout=None, initial=0, maximum=1e9)
    assert "base_ms = 1\ncap_ms = 3600000\ndeadline_ms = 86400000\n" in toml(Config(list_retry_config=longest))


def test_two_retries_that_differ_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millrace"):
        toml(Config(list_retry_config=retry.Retry(), download_retry_config=DEFAULT_RETRY.with_timeout(7)))
    assert "taken for both" in caplog.text


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"download_retry_config": retry.Retry(predicate=lambda _: True)}, ValueError, "predicate of its own"),
        ({"list_retry_config": retry.Retry(on_error=print)}, ValueError, "on_error"),
        ({"list_retry_config": retry.AsyncRetry()}, TypeError, "not google.api_core.retry.*AsyncRetry"),
        ({"download_retry_config": 5}, TypeError, "not builtins.int"),
        ({"download_retry_config": DEFAULT_RETRY.with_timeout(-1)}, ValueError, "negative"),
        ({"max_composite_object_size": -1}, ValueError, "max_composite_object_size is -1"),
        ({"max_composite_object_size": 1e6}, TypeError, "must be an integer, not float"),
        ({"num_processes": 0}, ValueError, "num_processes is 0"),
        ({"num_processes": "4"}, TypeError, "num_processes must be an integer"),
        ({"threads_per_process": 0}, ValueError, "threads_per_process"),
        ({"max_listing_retries": 0}, ValueError, "max_listing_retries"),
        ({"prefix": 3}, TypeError, "prefix is a str or None"),
    ],
)
def test_what_cannot_be_done_is_an_error(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DataFluxMapStyleDataset("project", "bucket", Config(**fields))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("gs://bucket",), ValueError, "name alone"),
        (("",), TypeError, "name of a bucket"),
        (("bucket", {"prefix": "x"}), TypeError, "config is a Config"),
        (("bucket", Config(), b""), TypeError, "data_format_fn is a function"),
        (("bucket", Config(), bytes, "client"), TypeError, "not builtins.str"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DataFluxIterableDataset("project", *arguments)


def test_each_configuration_is_one_that_the_supervisor_takes(millrace_bin: Path, tmp_path: Path) -> None:
    config = Config(
        num_processes=1000, download_retry_config=DEFAULT_RETRY, max_composite_object_size=5_000_000, prefix="p"
    )
    client = storage.Client(
        project="p",
        credentials=google.auth.credentials.AnonymousCredentials(),
        client_options={"api_endpoint": "https://storage.example:8443"},
        extra_headers={"x-test": 'a "quoted" value'},
    )
    for each in (config, Config(download_retry_config=None), Config(disable_compose=True)):
        file = tmp_path / "made.toml"
        file.write_text(_config.settings(each, client).toml)
        done = subprocess.run([millrace_bin, "check", "-c", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
