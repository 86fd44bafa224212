"""The run folder of the private supervisor that ranks of a node share: its socket's path fits, whatever the names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace._supervisor import SOCKET_NAME, SOCKET_PATH_MAX, _job_folder


@pytest.mark.parametrize("base", ["/tmp/millrace-0", "/run/user/1000/" + "deep/" * 10 + "millrace"])
@pytest.mark.parametrize("other", ["", "-0123abcd"])
def test_long_names_fit_and_differ(base: str, other: str) -> None:
    names = ["job" + "x" * 100 + "-1", "job" + "x" * 100 + "-2", "ü" * 90]
    folders = [_job_folder(Path(base), name, other) for name in names]
    assert len(set(folders)) == 3
    for folder in folders:
        assert len(bytes(folder / SOCKET_NAME)) <= SOCKET_PATH_MAX
        assert folder.name.endswith(other)


def test_short_names_stay_as_they_are() -> None:
    assert _job_folder(Path("/tmp/millrace-0"), "train/7", "") == Path("/tmp/millrace-0/run-job-train_7")


def test_a_base_without_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="is too long for a socket's path: set XDG_RUNTIME_DIR to a shorter one"):
        _job_folder(Path("/" + "x" * 90), "job", "")
