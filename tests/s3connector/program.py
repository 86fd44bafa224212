"""One of the connector's programs, in a process of its own: what it has at its end is printed as a digest.

    python program.py FILE

What it imports and this machine lacks is replaced: torchvision, whose model is a small one, and Lightning's data set,
which would be downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch


class WikiText2(torch.utils.data.Dataset):
    """Lightning's, with other words."""

    vocab_size = 100

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.arange(at, at + 36) % self.vocab_size
        return words[:-1], words[1:]


def stand_ins() -> None:
    from lightning.pytorch import demos  # before torchvision is there, which it would look into
    from lightning.pytorch.demos import transformer

    demos.WikiText2 = transformer.WikiText2 = WikiText2
    if importlib.util.find_spec("torchvision") is not None:
        return
    ends = ("", ".models", ".transforms", ".transforms.functional")
    vision, models, transforms, functional = (ModuleType(f"torchvision{end}") for end in ends)
    for module in (vision, models, transforms, functional):
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    models.__dict__["resnet18"] = lambda: torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    functional.__dict__["pil_to_tensor"] = lambda image: torch.from_numpy(numpy.array(image))
    vision.__dict__.update(models=models, transforms=transforms)
    transforms.__dict__["functional"] = functional


def put(digest: Any, value: Any) -> bool:
    """Adds what can be compared; False: it cannot."""
    if isinstance(value, torch.Tensor):
        digest.update(value.detach().cpu().numpy().tobytes())
    elif isinstance(value, (bytes, bytearray)):
        digest.update(value)
    elif isinstance(value, (str, int, float)):
        digest.update(repr(value).encode())
    elif isinstance(value, dict):
        return all(put(digest, part) for pair in value.items() for part in pair)
    elif isinstance(value, (list, tuple)):
        return all(put(digest, part) for part in value)
    else:
        return False
    return True


def main(file: str) -> None:
    stand_ins()
    torch.manual_seed(0)
    shown: list[Any] = []
    code = compile(Path(file).read_text(), file, "exec")
    space: dict[str, Any] = {"__name__": "__main__", "display": shown.append, "print": lambda *a: shown.extend(a)}
    exec(code, space)
    digest, names = hashlib.sha256(), []
    for name, value in [*sorted(space.items()), ("shown", shown)]:
        if not name.startswith("_") and put(digest, value):
            names.append(name)
    print(f"DIGEST {digest.hexdigest()[:16]} of {', '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1])
