"""Each program in each of the surroundings that it may find: it works, or it says why not and ends with a status."""

from __future__ import annotations

import pytest

from tests.environment.conditions import CONDITIONS, Condition, Unavailable, meet, verdict


@pytest.mark.parametrize(
    ("condition", "program"),
    [(condition, program) for condition in CONDITIONS for program in condition.programs],
    ids=lambda value: value.name if isinstance(value, Condition) else value,
)
def test_surroundings(condition: Condition, program: str) -> None:
    try:
        met = meet(condition, program)
    except Unavailable as error:
        pytest.skip(str(error))
    assert verdict(condition, program, met) is None
