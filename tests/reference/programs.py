"""The reference's programs, one by one, with small data; and those that cannot run here, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUCKET = "reference-data"
SAVED = f"gs://{BUCKET}/saved"
LIST_AND_DOWNLOAD = "demo/list-and-download"
SINGLENODE = "dataflux_pytorch/benchmark/checkpointing/singlenode/train.py"
SIMULATED = "dataflux_pytorch/benchmark/checkpointing/simulated"
TEXT = "demo/lightning/text_based"


@dataclass(frozen=True)
class Program:
    """What is started, in a working directory of its own. In the words, {tree} is its copy of the checkout,
    {checkout} the one with the reference's library, {here} this folder."""

    file: str
    words: tuple[str, ...]
    variant: str = ""
    data: tuple[str, ...] = ()  # kinds of tests/reference/data.py
    variables: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1  # processes, as its manifest for a cluster starts them
    sorted: bool = False  # the order is compared too: else the reference's is that of a set
    prints: bool = True  # what it prints is compared
    beside: str = ""  # a folder of the checkout that its imports come from
    races: tuple[str, ...] = ()  # objects that it writes in a thread while it goes on changing what is written

    @property
    def name(self) -> str:
        return f"{self.file} ({self.variant})" if self.variant else self.file


def list_and_download(kind: str, variant: str, *more: str, workers: int = 2) -> Program:
    file = {
        "map": f"{LIST_AND_DOWNLOAD}/map/simple_map_style_dataset.py",
        "iterable": f"{LIST_AND_DOWNLOAD}/iterable/simple_iterable_dataset.py",
    }[kind]
    words = (f"{{tree}}/{file}", "--project=project", f"--bucket={BUCKET}", "--prefix=objects/", "--epochs=2")
    waits = ("--sleep-per-step=0",) if kind == "iterable" else ()
    counted = (f"--num-workers={workers}",) if workers else ()
    return Program(file, (*words, *counted, *waits, *more), variant, ("objects",))


def singlenode(variant: str, *more: str) -> Program:
    path = f"--ckpt-dir-path={SAVED}/"
    return Program(
        SINGLENODE, (f"{{tree}}/{SINGLENODE}", "--project=project", path, "--layers=1", "--steps=2", *more), variant
    )


SIMULATED_VARIABLES = {
    "PROJECT": "project",
    "CKPT_DIR_PATH": SAVED,
    "LAYER_SIZE": "3",
    "PADDING_SIZE": "8",
    "SAMPLE_COUNT": "2",
    "MODEL_PARAMATER_SIZE": "7b",  # as it is spelled there
}
FSDP_VARIABLES = {
    "PROJECT": "project",
    "CKPT_DIR_PATH": SAVED,
    "CKPT_RESTORE_PATH": f"{SAVED}/checkpoint-epoch=00-step=02.ckpt",
    "NUM_LAYERS": "1",
    "MAX_STEPS_SAVE": "2",
    "MAX_STEPS_RESTORE": "3",
}
TEXT_WORDS = ("--project=project", f"--bucket={BUCKET}", "--prefix=parquet/", "--batch-size=10", "--epochs=2")
README_WORDS = ("<PROJECT_NAME>=project", f"<BUCKET_NAME>={BUCKET}", "<PREFIX>=simple-demo-dataset")
WALKTHROUGH = (
    "demo/simple-walkthrough/Getting Started with Dataflux Dataset for PyTorch with Google Cloud Storage.ipynb"
)
LIGHTNING_NOTEBOOK = (
    "demo/lightning/Getting Started with Dataflux PyTorch Lightning Checkpoint with Google Cloud Storage.ipynb"
)

PROGRAMS = [
    Program("dataflux_pytorch", ("{here}/drivers/names.py", "{checkout}"), "every public name with its parameters"),
    Program(
        "README.md",
        ("{here}/drivers/blocks.py", "{tree}/README.md", *README_WORDS, "PROJECT_ID=project", f"BUCKET_NAME={BUCKET}")
        + (f"gcs://BUCKET_NAME=gcs://{BUCKET}/saved",),
        "every block",
        data=("images",),
    ),
    Program(
        "README.md", ("{here}/drivers/async_block.py", "{tree}/README.md", SAVED), "the block on asynchronous saves"
    ),
    Program(
        "demo/lightning/checkpoint/singlenode/README.md",
        (
            "{here}/drivers/blocks.py",
            "{tree}/demo/lightning/checkpoint/singlenode/README.md",
            "<PROJECT NAME>='project'",
        ),
    ),
    Program(
        WALKTHROUGH,
        ("{here}/drivers/blocks.py", f"{{tree}}/{WALKTHROUGH}", "YOUR_PROJECT_ID=project")
        + ("dataflux-demo-public=" + BUCKET, "YOUR_OWN_BUCKET={bucket}-own"),
        data=("images",),
    ),
    Program(
        LIGHTNING_NOTEBOOK,
        ("{here}/drivers/blocks.py", f"{{tree}}/{LIGHTNING_NOTEBOOK}", "YOUR_PROJECT_ID=project")
        + (f"YOUR_BUCKET_NAME={BUCKET}/saved", f"<YOUR_BUCKET>={BUCKET}/saved"),
    ),
    *(
        program
        for kind in ("map", "iterable")
        for program in (
            list_and_download(kind, "2 workers"),
            list_and_download(kind, "default workers", workers=0),
            list_and_download(kind, "spawn", "--multiprocessing-start-method=spawn"),
            list_and_download(kind, "forkserver", "--multiprocessing-start-method=forkserver"),
            list_and_download(kind, "client", "--initialize-storage-client=True"),
            list_and_download(kind, "not composed", "--no-dataflux=True"),
        )
    ),
    Program(
        "demo/checkpointing/train.py",
        ("{tree}/demo/checkpointing/train.py", "--project=project", f"--bucket={BUCKET}", "--num-epochs=2"),
    ),
    Program(
        "demo/checkpointing/train.py",
        ("{tree}/demo/checkpointing/train.py", "--project=project", f"--bucket={BUCKET}", "--num-epochs=2")
        + ("--use-async",),
        "async",
        races=(f"{BUCKET}/single-node/async/checkpoint_0.pth",),  # the model itself, which the second epoch changes
    ),
    singlenode("Lightning"),
    singlenode("only the latest", "--save-only-latest"),
    singlenode("async", "--checkpoint=async_df_lightning"),
    singlenode("without Lightning", "--checkpoint=no_lightning"),
    Program(
        "demo/lightning/checkpoint/singlenode/train.py",
        ("{tree}/demo/lightning/checkpoint/singlenode/train.py",),
        variables={"PROJECT": "project", "CKPT_DIR_PATH": f"{SAVED}/", "NUM_LAYERS": "1", "MAX_STEPS": "2"},
    ),
    Program(
        "demo/lightning/checkpoint/singlenode/train.py",
        ("{tree}/demo/lightning/checkpoint/singlenode/train.py",),
        "async",
        variables={
            "PROJECT": "project",
            "CKPT_DIR_PATH": f"{SAVED}/",
            "NUM_LAYERS": "1",
            "MAX_STEPS": "2",
            "ASYNC_CHECKPOINT": "1",
        },
    ),
    Program(
        "demo/lightning/checkpoint/multinode/train.py",
        ("-m", "demo.lightning.checkpoint.multinode.train"),
        "FSDP, 2 nodes",
        variables=FSDP_VARIABLES,
        ranks=2,
    ),
    Program(
        "demo/lightning/checkpoint/simulated/multiprocessing_train.py",
        ("{tree}/demo/lightning/checkpoint/simulated/multiprocessing_train.py", "--project=project")
        + (f"--ckpt-dir-path={SAVED}", "--layer-size=3", "--world-size=2", "--padding-size=8", "--sample-count=2"),
        "2 processes",
    ),
    Program(
        "demo/lightning/checkpoint/simulated/llama2.py",
        ("{tree}/demo/lightning/checkpoint/simulated/llama2.py", "--project=project", f"--ckpt-dir-path={SAVED}")
        + ("--world-size=2", "--sample-count=2", "--model-parameter-size=7b"),
        "2 processes, a small model",
    ),
    Program(
        f"{SIMULATED}/benchmark.py",
        (f"{{tree}}/{SIMULATED}/benchmark.py",),
        "2 nodes",
        variables=SIMULATED_VARIABLES,
        ranks=2,
    ),
    Program(
        f"{SIMULATED}/llama2.py",
        (f"{{tree}}/{SIMULATED}/llama2.py",),
        "2 nodes, a small model",
        variables=SIMULATED_VARIABLES,
        ranks=2,
    ),
    Program(f"{TEXT}/single-node/model.py", (f"{{tree}}/{TEXT}/single-node/model.py", *TEXT_WORDS), data=("parquet",)),
    Program(
        f"{TEXT}/distributed/model.py",
        (f"{{tree}}/{TEXT}/distributed/model.py", *TEXT_WORDS, "--local", "--num-nodes=1", "--devices=2")
        + ("--limit-train-batches=8",),
        "2 devices",
        data=("parquet",),
        sorted=True,
    ),
    Program(
        f"{TEXT}/distributed/model.py",
        (f"{{tree}}/{TEXT}/distributed/model.py", *TEXT_WORDS, "--num-nodes=2", "--limit-train-batches=8"),
        "2 nodes",
        data=("parquet",),
        ranks=2,
        sorted=True,
    ),
    Program(
        "demo/lightning/image_segmentation/train.py",
        ("{tree}/demo/lightning/image_segmentation/train.py", "--local", "--accelerator=cpu", "--epochs=2")
        + ("--num_workers=2", "--batch_size=2", "--gcp_project=project", f"--gcs_bucket={BUCKET}", "--benchmark")
        + ("--images_prefix=volumes/images/", "--labels_prefix=volumes/labels/", "--input_shape", "32", "32", "32"),
        "CPU",
        data=("volumes",),
        sorted=True,
        prints=False,  # Lightning's profile, which lists its own functions
    ),
    Program(
        "demo/image_segmentation/pytorch_loader.py",
        ("{here}/drivers/segmentation_loader.py", BUCKET),
        "its data set, without train.py",
        data=("volumes",),
        sorted=True,
        beside="demo/image_segmentation",
    ),
    Program(
        "dataflux_pytorch/benchmark/standalone_dataloader/standalone_dataloader.py",
        ("{tree}/dataflux_pytorch/benchmark/standalone_dataloader/standalone_dataloader.py",),
        "jax and MaxText replaced",
        data=("parquet",),
        variables={"PROJECT": "project", "BUCKET": BUCKET, "PREFIX": "parquet/"},
        sorted=True,
    ),
    Program(
        "dataflux_pytorch/integration_tests/integration_test.py",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        + ("{tree}/dataflux_pytorch/integration_tests/integration_test.py",),
        data=("arrays",),
        variables={
            "PROJECT": "project",
            "BUCKET": BUCKET,
            "PREFIX": "arrays/",
            "FILE_COUNT": "30",
            "PARALLELIZATION": "2",
        },
    ),
]

GPU = 'needs a GPU: `accelerator="gpu"`, CUDA events'
CANNOT = {
    "demo/image_segmentation/train.py": "needs Ray and a GPU (`use_gpu=True`); its data set runs above",
    "demo/image_segmentation/data_loader.py": "is imported by that train.py alone",
    "demo/image_segmentation/submit.py": "needs a Ray cluster",
    "demo/image_segmentation/run_and_time.sh": "starts that train.py",
    "demo/image_segmentation/README.md": "its two blocks are excerpts of pytorch_loader.py and data_loader.py",
    "dataflux_pytorch/benchmark/checkpointing/multinode/train.py": f"{GPU}; its strategy runs above",
    "dataflux_pytorch/benchmark/checkpointing/multinode/train_async_save.py": GPU,
    "kokoro/bench.sh": "needs Google's own build machines and project; it starts programs that run above",
    "kokoro/presubmit.sh": "needs Google's own build machines and project; it starts the integration test",
}


def variation(name: str, *more: str, saves: bool = False) -> Program:
    """A program of ours, as users of the reference write them: tests/reference/variations/ in the place of its own."""
    file = f"variations/{name}.py"
    return Program(
        file, (f"{{tree}}/{file}", BUCKET, *more), " ".join(more), () if saves else ("objects",), sorted=True
    )


PROGRAMS += [
    variation("own_iter"),
    variation("own_objects"),
    variation("clients", "fork"),
    variation("clients", "spawn"),
    variation("clients", "forkserver"),
    variation("every_field"),
    variation("lists_anew", saves=True),
    variation("paths", saves=True),
]
