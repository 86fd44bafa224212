"""The programs of the connector's README, examples and notebook, each run on both sides: what it has at its end, and
what it leaves in the bucket, is compared."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from tests.store.s3_servers import S3

HERE = Path(__file__).resolve().parent
BUCKET = "connector-programs"
LIMIT_S = 200  # of a program; then its stacks are in its output
NOTEBOOK = "examples/Getting started with the Amazon S3 Connector for PyTorch.ipynb"
LEFT_OUT = {  # which cannot run here, and why
    "examples/dcp/stateful_example.py": "needs GPUs",
    "README.md, Lightning": "has `...` for the model: the four examples are whole",
    "notebook, other accounts and directory buckets": "name buckets of others",
}
README = (  # what a reader of it fills in, or has to mend
    ("s3://<BUCKET>/<PREFIX>", f"s3://{BUCKET}/images"),
    ("s3://<BUCKET>/<KEY>/", f"s3://{BUCKET}/checkpoints/"),
    # as in 1.5.0 they are named:
    ("dcp import RoundRobinPrefixStrategy, S3StorageWriter", "dcp.s3_prefix_strategy import RoundRobinPrefixStrategy"),
    ("dcp import BinaryPrefixStrategy", "dcp.s3_prefix_strategy import BinaryPrefixStrategy"),
    ("dcp import HexPrefixStrategy", "dcp.s3_prefix_strategy import HexPrefixStrategy"),
    ("dcp import S3PrefixStrategyBase", "dcp.s3_prefix_strategy import S3PrefixStrategyBase"),
    ("min_prefix_len=", "min_prefix_length="),
    ('path="CHECKPOINT_URI"', 'path=CHECKPOINT_URI + "many/"'),
    ('"my-bucket"', f'"{BUCKET}"'),
    ("key=OBJECT_NAME", "key=OBJECT_KEY"),
    ("seek(100 * 1024 * 1024)", "seek(5 * 1024 * 1024)"),  # of an object of 7 MiB
    ("sampler = DistributedSampler(dataset)", "sampler = DistributedSampler(dataset, num_replicas=2, rank=1)"),
)
NOTES = (
    (r"s3://s3torchconnector-demo/geonet/images/", f"s3://{BUCKET}/images/"),
    (r"s3://s3torchconnector-demo/geonet/shards/", f"s3://{BUCKET}/shards/"),
    (r"s3://s3torchconnector-demo/checkpoint/", f"s3://{BUCKET}/notebook/"),
    (r"unsigned=True", "force_path_style=True"),  # no public bucket is here
)
AHEAD = "from torch.utils.data import DataLoader\nfrom torch.utils.data.distributed import DistributedSampler\n"
AFTER = "\nkeys_of_batches = [len(part) for part in (map_dataset, dataset, sampler)]\nread_back = bytes(buffer)\n"


def filled(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        assert old in text, f"the programs have changed: {old} is gone"
        text = text.replace(old, new)
    return text


def readme(checkout: Path) -> str:
    blocks = re.findall(r"^```py\n(.*?)^```", (checkout / "README.md").read_text(), re.M | re.S)
    return AHEAD + filled("\n".join(one for one in blocks if "trainer.fit" not in one), README) + AFTER


def notebook(checkout: Path) -> str:
    cells = [c for c in json.loads((checkout / NOTEBOOK).read_text())["cells"] if c["cell_type"] == "code"]
    texts = ["".join(cell["source"]) for cell in cells]
    end = next(i for i, text in enumerate(texts) if "lightning s3fs" in text)
    kept = "\n".join(text for text in texts[:end] if not text.startswith("%"))
    return filled(kept, NOTES)


def programs(checkout: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """name -> its text, and variables of its environment."""
    found: dict[str, tuple[str, dict[str, str]]] = {
        "README.md": (readme(checkout), {}),
        "the notebook": (notebook(checkout), {}),
    }
    for name, place in (
        ("checkpoint_manual_save", "lightning/manual.ckpt"),
        ("checkpoint_reading", "lightning/manual.ckpt"),
        ("checkpoint_writing", "lightning/written/"),
        ("async_checkpoint_writing", "lightning/async/"),
    ):
        path = f"examples/lightning/{name}.py"
        env = {"REGION": "us-east-1", "CHECKPOINT_PATH": f"s3://{BUCKET}/{place}", "LATEST_CHECKPOINT_ONLY": "1"}
        found[path] = ((checkout / path).read_text(), env)
    return found


def fill(server: S3) -> None:
    images = {}
    for i in range(120):
        data = io.BytesIO()
        Image.new("RGB", (32, 32), (i, 2 * i, 255 - i)).save(data, "PNG")
        images[f"images/{i:03}.png"] = data.getvalue()
    shards = {}
    for n, part in enumerate((slice(0, 61), slice(61, None))):  # the notebook's places are not the ends of shards
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            for name, image in list(images.items())[part]:
                entry = tarfile.TarInfo(name)
                entry.size = len(image)
                tar.addfile(entry, io.BytesIO(image))
        shards[f"shards/{n}.tar"] = data.getvalue()
    server.put(BUCKET, images | shards)


def left(server: S3) -> str:
    """The names of what is in the bucket, as a digest: with the shards of a distributed checkpoint as one, of which
    empty ones are not written here."""
    names = sorted({re.sub(r"__\d+_\d+[-0-9a-f]*\.distcp$", "*.distcp", name) for name in server.names(BUCKET)})
    return f"{len(names)} names, {hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]}"


def run_programs(
    python: Path, tree: Path, environment: Mapping[str, str], server: S3, texts: dict[str, tuple[str, dict[str, str]]]
) -> dict[str, str]:
    """name -> what came out, or how it failed."""
    found = {}
    fill(server)
    for i, (name, (text, env)) in enumerate(texts.items()):
        file = tree / f"program_{i}.py"
        file.write_text(text)
        with (tree / f"program_{i}.out").open("w+") as out:
            command = ["timeout", "--signal=ABRT", str(LIMIT_S), str(python), "-X", "faulthandler"]
            command += [str(HERE / "program.py"), str(file)]
            ended = subprocess.run(command, cwd=tree, env={**environment, **env}, stdout=out, stderr=subprocess.STDOUT)
            out.seek(0)
            lines = out.read().splitlines() or [""]
        digest = next((line for line in lines if line.startswith("DIGEST ")), "")
        words = digest.removeprefix("DIGEST ") if ended.returncode == 0 else f"status {ended.returncode}: {lines[-1]}"
        found[name] = f"{words}; {left(server)}"
    return found


def compare(expected: dict[str, str] | None, found: dict[str, str]) -> int:
    """Prints the table; how many programs fail, or do not end as they do with the connector."""
    differ = 0
    print("\n| program of s3torchconnector | after the sed | with the connector |\n|---|---|---|")
    for name, end in found.items():
        there = end if expected is None else expected[name]
        good = end == there and not end.startswith("status")
        differ += not good
        beside = "not run" if expected is None else "the same" if end == there else there
        print(f"| {name} | {end} | {beside} |")
    for name, why in LEFT_OUT.items():
        print(f"| {name} | not run: {why} | |")
    print(f"| {len(found) - differ} of {len(found)} end well, and the same | | |", flush=True)
    return differ
