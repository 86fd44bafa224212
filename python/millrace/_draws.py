"""What a sampler of torch's draws from: saved with a loader's state, so that a resume meets the same order again."""

from __future__ import annotations

import base64
import binascii
import logging
from collections import deque
from typing import Any

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

log = logging.getLogger("millrace")
KEY = "sampler_generator"  # in a state: of what the sampler drew from, before the epoch's draws; base64
KINDS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)  # a subclass may draw from anything


class Draws:
    """The generator of a RandomSampler, SubsetRandomSampler or WeightedRandomSampler, also inside of a BatchSampler:
    its own one, or torch's. Of any other sampler, and of one that draws on a device, nothing is known.
    """

    def __init__(self, sampler: Any) -> None:
        both = (sampler, getattr(sampler, "sampler", None))
        found = next((each for each in both if type(each) in KINDS), None)
        on_device = found is not None and found.generator is not None and found.generator.device.type != "cpu"
        self._sampler: Any = None if on_device else found
        self._lent: torch.Generator | None = None  # to the sampler, for one iteration
        self._before: str | None = None  # the generator's state before the draws of the last iteration
        self._loaded: str | None = None  # the same for the next one

    def begin(self) -> None:
        """Just before the sampler draws."""
        if self._sampler is None:
            return
        loaded, self._loaded = self._loaded, None
        own = self._own()
        if own is not None:
            if loaded is not None:
                own.set_state(_tensor(loaded))
            self._before = _text(own.get_state())
            return
        # Torch's own generator, which others draw from too, is not set back: the sampler gets one for this iteration.
        self._sampler.generator = self._lent = None if loaded is None else self._like_torchs(loaded)
        self._before = loaded or _text(torch.get_rng_state())

    def _own(self) -> torch.Generator | None:
        """The sampler's, of its user."""
        generator: torch.Generator | None = self._sampler.generator
        return None if generator is self._lent else generator

    def _like_torchs(self, loaded: str) -> torch.Generator:
        """One with which the sampler draws what it drew from torch's in that state."""
        generator = torch.Generator()
        generator.set_state(_tensor(loaded))
        if isinstance(self._sampler, RandomSampler):  # draws the seed of a generator
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=generator).item()))
        return generator

    def state(self, is_within_epoch: bool) -> dict[str, str]:
        """The part of a loader's state; empty where the next epoch's draws are new ones in any case."""
        if self._sampler is None:
            return {}
        if is_within_epoch:
            before = self._loaded or self._before
            return {} if before is None else {KEY: before}
        own = self._own()
        return {} if own is None else {KEY: self._loaded or _text(own.get_state())}

    def check(self, state: dict[str, Any], is_within_epoch: bool) -> str | None:
        """What load() is to be given; ValueError where it is none."""
        text = state.get(KEY)
        if self._sampler is None:
            return None
        if text is not None:
            try:
                torch.Generator().set_state(_tensor(text))
            except (TypeError, ValueError, RuntimeError, binascii.Error) as error:
                raise ValueError(f"the state's {KEY!r} is no state of a torch.Generator: {error}") from None
        elif is_within_epoch:
            log.warning("the state does not have what the sampler had drawn: the rest of the epoch is of another order")
        return text

    def load(self, text: str | None) -> None:
        self._loaded, self._before = text, None

    def leave(self) -> None:
        """The loaded epoch is not continued. The next one is drawn after it, where the generator is its user's."""
        loaded, self._loaded = self._loaded, None
        own = None if self._sampler is None else self._own()
        if loaded is not None and own is not None:
            own.set_state(_tensor(loaded))
            deque(self._sampler, maxlen=0)

    def repeat(self) -> None:
        """The next iteration begins where the last one did, which has given nothing."""
        self._loaded = self._loaded or self._before


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
