"""How the samples of an epoch are shuffled: not at all, each by itself, or in blocks of consecutive objects."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _arguments
from ._ring import Index

BLOCK_BYTES = 4 << 20
MIX_BLOCKS = 16
MAX_BLOCK = 1 << 48
MAX_MIX = 1 << 16


class Shuffle(NamedTuple):
    on: bool
    block_bytes: int = 0  # 0: not in blocks
    mix: int = 0

    @property
    def in_blocks(self) -> bool:
        return self.block_bytes > 0

    def blocks(self, index: Index) -> tuple[int, int]:
        """(objects of a block, blocks that are mixed), or (0, 0): of the listing alone, so the same in each process."""
        if not self.in_blocks:
            return 0, 0
        count, total = len(index), index.total_bytes
        return min(max(1, self.block_bytes * count // max(total, 1)), max(count, 1)), self.mix


def of_arguments(shuffle: Any, block_bytes: Any, mix_blocks: Any) -> Shuffle:
    if isinstance(shuffle, str):
        _arguments.choice("shuffle", shuffle, ("block",))
        size = BLOCK_BYTES if block_bytes is None else _arguments.integer("block_bytes", block_bytes, 1, MAX_BLOCK)
        mix = MIX_BLOCKS if mix_blocks is None else _arguments.integer("mix_blocks", mix_blocks, 1, MAX_MIX)
        return Shuffle(True, size, mix)
    if not isinstance(shuffle, bool):
        raise TypeError(f"shuffle must be True, False or 'block', not {type(shuffle).__name__}")
    if block_bytes is not None or mix_blocks is not None:
        raise ValueError("block_bytes and mix_blocks are for shuffle='block'")
    return Shuffle(shuffle)
