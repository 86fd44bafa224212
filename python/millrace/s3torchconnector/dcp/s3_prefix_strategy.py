"""How the names of a rank's objects begin, so that many ranks' are spread over the partitions of S3."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.distributed as dist

from ...dcp._layout import rank_prefix


class S3PrefixStrategyBase(ABC):
    """A strategy's instance is called with a rank. Two ranks may have the same prefix."""

    def __call__(self, rank: int) -> str:
        return self.generate_prefix(rank)

    @abstractmethod
    def generate_prefix(self, rank: int) -> str:
        """What the names of that rank's objects begin with, below the checkpoint."""


class DefaultPrefixStrategy(S3PrefixStrategyBase):
    """`__RANK_`, as torch has it."""

    def generate_prefix(self, rank: int) -> str:
        return rank_prefix(rank)


class NumericPrefixStrategy(S3PrefixStrategyBase):
    """`DIGITS/epoch_N/__RANK_`: numbers in a base, the lowest digit first, so that neighbours differ at the front.

    prefix_count: how many there are (default: the ranks of torch.distributed, else 1); epoch_num: None leaves that
    folder out.
    """

    def __init__(
        self,
        base: int,
        epoch_num: int | None = None,
        min_prefix_length: int = 10,
        prefix_count: int | None = None,
    ) -> None:
        if not isinstance(min_prefix_length, int) or min_prefix_length < 1:
            raise ValueError(f"Minimum prefix length must be positive, got {min_prefix_length}")
        if epoch_num is not None and not isinstance(epoch_num, int):
            raise ValueError(f"Epoch number must be None or an integer, got {epoch_num}")
        if prefix_count is not None and (not isinstance(prefix_count, int) or prefix_count < 1):
            raise ValueError(f"Prefix count must be a positive integer, got {prefix_count}")
        self.base, self.epoch_num, self.min_prefix_len = base, epoch_num, min_prefix_length
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.prefix_count = ranks if prefix_count is None else prefix_count
        digits = 1
        while base**digits < self.prefix_count:
            digits += 1
        length = max(digits, min_prefix_length)
        self.prefix_map = [self._format_number(number, length)[::-1] for number in range(self.prefix_count)]

    def generate_prefix(self, rank: int) -> str:
        return _below(self.prefix_map[rank % len(self.prefix_map)], self.epoch_num, rank)

    @abstractmethod
    def _format_number(self, number: int, length: int) -> str:
        """The digits of a number, the highest first, at least length of them."""


class BinaryPrefixStrategy(NumericPrefixStrategy):
    """With the digits 0 and 1."""

    def __init__(
        self, epoch_num: int | None = None, min_prefix_length: int = 10, prefix_count: int | None = None
    ) -> None:
        super().__init__(2, epoch_num, min_prefix_length, prefix_count)

    def _format_number(self, number: int, length: int) -> str:
        return f"{number:0{length}b}"


class HexPrefixStrategy(NumericPrefixStrategy):
    """With hexadecimal digits."""

    def __init__(
        self, epoch_num: int | None = None, min_prefix_length: int = 10, prefix_count: int | None = None
    ) -> None:
        super().__init__(16, epoch_num, min_prefix_length, prefix_count)

    def _format_number(self, number: int, length: int) -> str:
        return f"{number:0{length}x}"


class RoundRobinPrefixStrategy(S3PrefixStrategyBase):
    """`PREFIX/epoch_N/__RANK_`, with each of user_prefixes in turn."""

    def __init__(self, user_prefixes: Sequence[str], epoch_num: int | None = None) -> None:
        if not user_prefixes:
            raise ValueError("user_prefixes must not be empty")
        self.user_prefixes, self.epoch_num = user_prefixes, epoch_num

    def generate_prefix(self, rank: int) -> str:
        return _below(self.user_prefixes[rank % len(self.user_prefixes)], self.epoch_num, rank)


def _below(folder: str, epoch: int | None, rank: int) -> str:
    return f"{folder}/{'' if epoch is None else f'epoch_{epoch}/'}{rank_prefix(rank)}"
