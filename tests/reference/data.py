"""The small data of the programs: python -m tests.reference.data FOLDER KIND...

A kind is a folder of objects: FOLDER/objects, FOLDER/images, ... Always the same bytes.
"""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any, Callable

WORDS = ["the", "store", "lists", "every", "object", "once", "and", "a", "worker", "reads", "it", "into", "memory"]


def write(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def objects(folder: Path) -> None:
    """250 of 1 to 3000 bytes, and one beside the prefix."""
    draw = random.Random(1)
    for number in range(250):
        write(folder, f"objects/{number:04}.bin", number.to_bytes(4, "little") + draw.randbytes(draw.randint(1, 3000)))
    write(folder, "objects-not.bin", b"another prefix")


def images(folder: Path) -> None:
    """Pictures for the README and the walkthrough, under the names that its public bucket has."""
    from PIL import Image

    for prefix in ("simple-demo-dataset", "diffusiondb-large"):
        for number in range(12):
            file = io.BytesIO()
            Image.new("RGB", (24, 24), (20 * number, 0, 255)).save(file, "png")
            write(folder, f"{prefix}/{number:02}.png", file.getvalue())


def arrays(folder: Path) -> None:
    """For the integration test: archives of numpy with an array "x"."""
    import numpy

    for number in range(30):
        file = io.BytesIO()
        numpy.savez(file, x=numpy.full(16, number, dtype=numpy.uint8))
        write(folder, f"arrays/{number:03}.npz", file.getvalue())


def volumes(folder: Path) -> None:
    """For the image segmentation: images and labels of 40 voxels a side."""
    import numpy

    draw = numpy.random.default_rng(1)
    for number in range(8):
        for kind, values in (
            ("images/case_{:05}_x", draw.random((1, 40, 40, 40), dtype=numpy.float32)),
            ("labels/case_{:05}_y", draw.integers(0, 3, (1, 40, 40, 40), dtype=numpy.uint8)),
        ):
            file = io.BytesIO()
            numpy.save(file, values)
            write(folder, f"volumes/{kind.format(number)}.npy", file.getvalue())


def parquet(folder: Path) -> None:
    """For the text programs: tables of ten rows with the columns of FineWeb."""
    import pyarrow
    import pyarrow.parquet

    draw = random.Random(1)
    for number in range(20):
        rows: list[dict[str, Any]] = [
            {
                "text": " ".join(draw.choices(WORDS, k=12)),
                "id": f"{number}-{row}",
                "dump": "dump",
                "url": "https://example.com/",
                "date": "2024-01-01",
                "file_path": "path",
                "language": "en",
                "language_score": 0.5,
                "token_count": 12,
                "outputs": row,
                "image_base64_str": "AAAA",
            }
            for row in range(10)
        ]
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        write(folder, f"parquet/{number:03}.parquet", file.getvalue())


KINDS: dict[str, Callable[[Path], None]] = {
    "objects": objects,
    "images": images,
    "arrays": arrays,
    "volumes": volumes,
    "parquet": parquet,
}


def working_directory(folder: Path) -> None:
    """What the programs would download from elsewhere: a text for Lightning's demos, and a tokenizer by its name."""
    draw = random.Random(1)
    text = "\n".join(" ".join(draw.choices(WORDS, k=20)) for _ in range(40))
    for path in ("wikitext-2.txt", "data/wikitext-2.txt"):  # Lightning's versions differ in where they look
        write(folder, path, text.encode())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS))]
    write(folder, "bert-base-cased/vocab.txt", "\n".join(tokens).encode())
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 512}
    write(folder, "bert-base-cased/tokenizer_config.json", json.dumps(settings).encode())
    write(folder, "bert-base-cased/config.json", json.dumps({"model_type": "bert"}).encode())


if __name__ == "__main__":
    for kind in sys.argv[2:]:
        KINDS[kind](Path(sys.argv[1]))
