"""What test_dcp.py saves: tensors of every kind that this torch can save."""

from __future__ import annotations

from typing import Any

import torch

OLDEST = "2.3.1"
IS_OLDEST = torch.__version__.startswith(OLDEST)
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
DTYPES += ["complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
DTYPES += ["uint16", "uint32", "uint64"]
UNSAVED_BY_2_3_1 = {"uint16", "uint32", "uint64"}  # its torch.save does not know them


def every_kind(blank: bool = False) -> dict[str, Any]:
    """Tensors of every dtype, shape and layout, and other things."""
    seeded = torch.Generator().manual_seed(3)

    def tensor(*size: int, dtype: Any = torch.float32) -> torch.Tensor:
        made = torch.randint(0, 200, (*size, dtype.itemsize), generator=seeded, dtype=torch.uint8)
        if dtype is torch.bool:
            made = made % 2
        made = made.view(dtype).reshape(size)
        return torch.zeros(made.shape, dtype=torch.uint8).to(dtype) if blank else made

    state: dict[str, Any] = {}
    for name in DTYPES:
        if hasattr(torch, name) and not (IS_OLDEST and name in UNSAVED_BY_2_3_1):
            state[name] = tensor(5, 7, dtype=getattr(torch, name))
    large = tensor(40, 30)
    return {
        **state,
        "scalar": tensor(dtype=torch.int64),
        "one": tensor(1, 1, 1),
        "empty": tensor(0, 4),
        "empty within": tensor(3, 0, 2),
        "view": large[10:20],
        "view of columns": large[:, 3:9],
        "transposed": tensor(6, 5).t(),
        "expanded": large[:1].expand(3, 30) if not blank else torch.zeros(3, 30),
        "channels last": tensor(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugated": tensor(4, dtype=torch.complex64).conj(),
        "negative": tensor(4, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(tensor(9)),
        "deep": tensor(*[1, 2] * 8),
    }
