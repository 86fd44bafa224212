"""What a sampler of torch's draws from: saved with a loader's state, so that a resume meets the same order again."""

from __future__ import annotations

import base64
import binascii
import logging
from typing import Any

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

log = logging.getLogger("millrace")
KEY = "sampler_generator"  # in a state: the generator's state before the epoch's draws, base64


class Draws:
    """The generator of a RandomSampler, SubsetRandomSampler or WeightedRandomSampler, also inside of a BatchSampler; of
    any other sampler nothing.

    A sampler without a generator of its own gets one here, seeded anew for each iteration as torch would do.
    """

    def __init__(self, sampler: Any) -> None:
        both = (sampler, getattr(sampler, "sampler", None))
        kinds = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
        self._sampler = next((each for each in both if isinstance(each, kinds)), None)
        self._own: torch.Generator | None = None
        self._before: str | None = None  # the state before the draws of the last iteration
        self._loaded: str | None = None  # the same for the next one

    def begin(self) -> None:
        """Before the sampler is iterated."""
        if self._sampler is None:
            return
        if self._sampler.generator is None:
            self._sampler.generator = self._own = torch.Generator()
        generator: torch.Generator = self._sampler.generator
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            generator.set_state(_tensor(loaded))
        elif generator is self._own:
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        self._before = _text(generator)

    def state(self, is_within_epoch: bool) -> dict[str, str]:
        """The part of a loader's state; empty where the next epoch's draws are new ones in any case."""
        if self._sampler is None:
            return {}
        if is_within_epoch:
            before = self._loaded or self._before
            return {} if before is None else {KEY: before}
        generator = self._sampler.generator
        return {} if generator is None or generator is self._own else {KEY: self._loaded or _text(generator)}

    def check(self, state: dict[str, Any], is_within_epoch: bool) -> str | None:
        """What load() is to be given; ValueError where it is none."""
        text = state.get(KEY)
        if self._sampler is None:
            return None
        if text is not None:
            try:
                torch.Generator().set_state(_tensor(text))
            except (TypeError, RuntimeError, binascii.Error) as error:
                raise ValueError(f"the state's {KEY!r} is no state of a torch.Generator: {error}") from None
        elif is_within_epoch:
            log.warning("the state does not have what the sampler had drawn: the rest of the epoch is of another order")
        return text

    def load(self, text: str | None) -> None:
        self._loaded = text


def _text(generator: torch.Generator) -> str:
    return base64.b64encode(bytes(generator.get_state().tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
