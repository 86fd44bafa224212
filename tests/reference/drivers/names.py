"""Looks for every public name of the reference, with its parameters: python names.py TREE

TREE is the checkout with the reference's library. Prints what is missing, and how many names there are.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEFT_OUT = {"tests", "benchmark", "integration_tests", "benchmarking", "performance_tests"}
# Parts of how the reference works, which millrace does otherwise; nothing of what its programs or pages name.
INTERNAL = {
    "dataflux_pytorch.multipart_upload": "its uploads",
    "dataflux_pytorch.dataflux_iterable_dataset.FORK": "of its checks",
    "dataflux_pytorch.dataflux_iterable_dataset.CREATE": "of its checks",
    "dataflux_pytorch.dataflux_iterable_dataset.DELETE": "of its checks",
    "dataflux_pytorch.dataflux_mapstyle_dataset.FORK": "of its checks",
    "dataflux_pytorch.dataflux_mapstyle_dataset.CREATE": "of its checks",
    "dataflux_pytorch.dataflux_mapstyle_dataset.DELETE": "of its checks",
    "dataflux_core.range_splitter": "how it divides a listing",
    "dataflux_core.fast_list.ListWorker": "a process of its listing",
    "dataflux_core.fast_list.run_list_worker": "a process of its listing",
    "dataflux_core.fast_list.remove_prefix": "a helper of its listing",
    "dataflux_core.fast_list.ListingController.": "between its processes",
    "dataflux_core.fast_list.DEFAULT_ALLOWED_CLASS": "a default",
    "dataflux_core.download.clean_composed_object": "a step of its downloads",
    "dataflux_core.download.term_signal_handler": "a step of its downloads",
    "dataflux_core.download.current_composed_object": "a step of its downloads",
    "dataflux_core.download.split_objects_to_list_of_objects": "a step of its downloads",
}
KEPT = {"dataflux_core.fast_list.ListingController.run"}

Named = tuple[str, str, list[str]]  # module, name in it, the names of its parameters


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def names(file: Path, module: str) -> Iterator[Named]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield module, node.name, parameters(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            made = [parameters(each)[1:] for each in methods if each.name == "__init__"]
            yield module, node.name, made[0] if made else []
            for each in methods:
                if not each.name.startswith("_"):
                    yield module, f"{node.name}.{each.name}", parameters(each)
        elif isinstance(node, ast.Assign):
            constants = [each.id for each in node.targets if isinstance(each, ast.Name) and each.id.isupper()]
            yield from ((module, name, []) for name in constants)


def all_names(tree: Path) -> Iterator[Named]:
    for root, package in ((tree, "dataflux_pytorch"), (tree / "dataflux_client_python", "dataflux_core")):
        for file in sorted((root / package).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if not LEFT_OUT & set(parts) and not any(part.startswith("_") for part in parts):
                yield from names(file, ".".join(parts))


def is_internal(full: str) -> bool:
    return full not in KEPT and any(full.startswith(each) for each in INTERNAL)


def problem(here: str, name: str, wanted: list[str]) -> str:
    try:
        found: Any = importlib.import_module(here)
    except ImportError as error:
        return str(error)
    for part in name.split("."):
        if not hasattr(found, part):
            return "missing"
        found = getattr(found, part)
    with contextlib.suppress(TypeError, ValueError):
        there = [each for each in inspect.signature(found).parameters if each != "self"]
        wanted = [each for each in wanted if each not in ("self", "cls")]
        if there[: len(wanted)] != wanted and "arguments" not in there and "args" not in there:
            return f"takes {there}, not {wanted}"
    return ""


def main() -> None:
    package = "dataflux_pytorch"
    with contextlib.suppress(ImportError):
        importlib.import_module("millrace.dataflux.install")
    if importlib.util.find_spec("millrace") is not None:
        package = "millrace.dataflux"
    count = 0
    for module, name, wanted in all_names(Path(sys.argv[1])):
        if is_internal(f"{module}.{name}"):
            continue
        count += 1
        what = problem(module.replace("dataflux_pytorch", package), name, wanted)
        if what:
            print(f"{module}.{name}: {what}")
    print(count, "names")


if __name__ == "__main__":
    main()
