"""Why a test of the connector's own fails here, where that is no difference that a program would see."""

from __future__ import annotations

import re

CLIENT = "internal: puts the connector's mock of its own client into a data set or a checkpoint"
STATE = "internal: looks at attributes of the connector's inside that begin with an underscore"
PLANS = "internal: how the connector's reader for checkpoints groups the ranges of a plan; here none other is read"
STREAMS = "internal: mocks of the connector's own streams"
AGENT = "internal: the connector's user agent; millrace's requests have millrace's"
WORDS = "on purpose: the same ValueError in other words"
EMPTY = "on purpose: who has nothing to write leaves no empty object"
CLASSES = [  # the first that matches
    (r"user_agent|_version", AGENT),
    (r"the connector's inside", CLIENT),
    (r"^unit\.test_s3reader_dcp_optimized|item_ranges|range_injection|injects?_|max_gap_size|constructor_call_", PLANS),
    (r"::test_(dcp_when_multi_process|round_\w+_prefix_strategy)\b.*assert 4 == \(\(", EMPTY),
    (r"::test_multiple_thread_accessing_mountpoint_client_in_parallel_without_lock", STREAMS),
    (r"::test_s3dataset_base_parse_s3_uri_fail", WORDS),
    (r"^unit\.test_py_typed", "internal: looks for a file in a folder of the module's name; millrace has its own"),
    (r"AttributeError: .* has no attribute '_|::test_(seeks_end|end_seek_does_not_start_s3_request)", STATE),
    (r"AttributeError: Mock object has no attribute|unsupported operand type\(s\) for \+=: 'int' and 'Mock'", STREAMS),
]


def class_of(name: str, problem: str) -> str:
    """Empty where it is behaviour. The pattern is of file::test and the error."""
    return next((text for pattern, text in CLASSES if re.search(pattern, f"{name}\n{problem}", re.S)), "")
