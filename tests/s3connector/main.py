"""The compatibility run with s3torchconnector: its tests, after the sed, beside the connector itself.

    MR_S3CONNECTOR=CHECKOUT tests/s3connector/run [--only TEXT] [--keep FOLDER] [--no-control]

Prints the table of the tests that the connector passes and millrace does not, with a class for each. The exit status is
1 where one is behaviour.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BIN, BUILD, CALLERS_CACHE
from tests.s3connector.classes import class_of
from tests.s3connector.programs import compare, programs, run_programs
from tests.store.s3_servers import S3, start_versitygw
from tests.stores import REGION

HERE = Path(__file__).resolve().parent
CONNECTOR = ["s3torchconnector==1.5.0", "tenacity", "hypothesis", "boto3", "zstandard", "s3fs"]
ALONE = ["torchdata==0.9.0"]  # the last with datapipes; names a version of torch, and works with others
SED = (re.compile(r"\bs3torchconnector(?=client\b|\b(?!/))"), "millrace.s3torchconnector")
SUITES = ("unit", "e2e", "programs")
BUCKET = "connector-tests"


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    name: str
    python: Path
    tree: Path

    def environment(self, work: Path, server: S3) -> dict[str, str]:
        kept = {"LANG", "LC_ALL", "TERM", "MILLRACE_TEST_SESSION", "TMPDIR"}
        ours = self.name == "millrace"
        path = [HERE / "observe", self.tree, *([BUILD / "python"] if ours else [])]
        return {
            **{name: value for name, value in os.environ.items() if name in kept},
            **server.environment,
            "AWS_ENDPOINT_URL": server.server.url,
            **({} if ours else {"MR_CONTROL_ENDPOINT": server.server.url}),
            "PATH": f"{BIN}{os.pathsep}{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(work / "home"),
            "XDG_CACHE_HOME": str(work / "cache"),
            "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "CI_REGION": REGION,
            "CI_BUCKET": BUCKET,
            "CI_PREFIX": f"{self.name}/",
        }


def interpreter() -> Path:
    """One with the connector; torch and Lightning are those of .venv, by a .pth file. Made once."""
    tag = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CALLERS_CACHE / "millrace" / f"s3connector-{tag}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {', '.join(CONNECTOR + ALONE)} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        site = folder / "lib" / f"python{tag}" / "site-packages"
        (site / "millrace_venv.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *CONNECTOR], check=True)
        subprocess.run([*pip, "--no-deps", *ALONE], check=True)
        (folder / "complete").touch()
    return python


def copy_tests(checkout: Path, target: Path, after_sed: bool) -> Path:
    shutil.copytree(checkout / "s3torchconnector" / "tst", target / "tst")
    if after_sed:
        for path in target.rglob("*.py"):
            text = SED[0].sub(SED[1], path.read_text())
            text = re.sub(r"^( +)_verify_user_agent\(.*\)$", r"\1pass", text, flags=re.M)
            future = re.search(r"^from __future__ .*\n", text, re.M)
            at = future.end() if future else 0
            path.write_text(f"{text[:at]}import connector_shims\n{text[at:]}")  # spawned processes have no conftest
        shutil.copy(HERE / "shims.py", target / "connector_shims.py")
    return target


def run_tests(side: Side, suite: str, server: S3, work: Path, only: str | None) -> dict[str, str]:
    """file::test -> "" or how it failed. A skipped one is left out."""
    (work / "home").mkdir(parents=True)
    report = work / "report.xml"
    command = [str(side.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command += ["--timeout", "120", f"--junitxml={report}", f"--rootdir={side.tree}", f"tst/{suite}"]
    command += ["-k", only] if only else []
    with (work / "out").open("w") as out:
        environment = side.environment(work, server)
        subprocess.run(command, cwd=side.tree, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        place, name = case.get("classname") or "", case.get("name") or ""
        file = (place or name).split("tst.")[-1]
        problems = [child for child in case if child.tag in ("failure", "error")]
        text = (problems[0].get("message") or problems[0].text or "?") if problems else ""
        found[f"{file}::{name if place else '(the whole file)'}"] = text
    return found


def table(expected: dict[str, str] | None, found: dict[str, str]) -> int:
    """Prints what fails here and not there; how much of it is behaviour."""
    classes: dict[str, list[str]] = {}
    for name, problem in sorted(found.items()):
        if problem and not (expected or {}).get(name):
            kind = class_of(name, problem)
            classes.setdefault(kind or f"**behaviour**: {problem[:300]}", []).append(name)
    print("\n| test of s3torchconnector | millrace |\n|---|---|")
    for kind, names in sorted(classes.items()):
        tests = sorted({re.sub(r"\[.*", "", name, flags=re.S) for name in names})
        shown = kind.replace("|", "\\|").replace("\n", " ")
        print(f"| {', '.join(f'`{test}`' for test in tests)} ({len(names)}) | {shown} |")
    passed = sum(not problem for problem in found.values())
    beside = f"; with the connector {sum(not p for p in expected.values())} of {len(expected)}" if expected else ""
    print(f"| {passed} of {len(found)} pass{beside} | |", flush=True)
    return sum(len(names) for kind, names in classes.items() if kind.startswith("**"))


def run_all_programs(sides: list[Side], checkout: Path, work: Path) -> int:
    """How many end otherwise; each side has a server of its own, so that both have the same names."""
    results = {}
    for side in sides:
        server = start_versitygw(work / f"server-programs-{side.name}")
        place = work / f"programs-{side.name}"
        (place / "home").mkdir(parents=True)
        texts = programs(checkout)
        if side.name == "millrace":
            texts = {name: (SED[0].sub(SED[1], text), env) for name, (text, env) in texts.items()}
        try:
            results[side.name] = run_programs(side.python, place, side.environment(place, server), server, texts)
        finally:
            server.server.stop()
    return compare(results.get("connector"), results["millrace"])


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/s3connector/run", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, action="append", help="all, unless one is named")
    parser.add_argument("--only", metavar="TEXT", help="the tests that pytest -k TEXT takes")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep what the tests wrote, in this folder")
    parser.add_argument("--no-control", action="store_true", help="millrace alone")
    given = parser.parse_args(words)
    named = os.environ.get("MR_S3CONNECTOR")
    if not named or not Path(named, "s3torchconnector", "tst").is_dir():
        sys.exit(
            "tests/s3connector/run: MR_S3CONNECTOR does not name a checkout of the connector:\n"
            "git clone --branch v1.5.0 https://github.com/awslabs/s3-connector-for-pytorch"
        )
    python = interpreter()
    behaviour = 0
    with tempfile.TemporaryDirectory(prefix="s3connector-") as temporary:
        work = given.keep or Path(temporary)
        names = ("millrace",) if given.no_control else ("connector", "millrace")
        trees = {name: copy_tests(Path(named), work / name, name == "millrace") for name in names}
        for suite in given.suite or SUITES:
            if suite == "programs":
                behaviour += run_all_programs([Side(n, python, trees[n]) for n in names], Path(named), work)
                continue
            server = start_versitygw(work / f"server-{suite}")
            try:
                server.put(BUCKET, {})
                results = {}
                for name in names:
                    side = Side(name, python, trees[name])
                    results[name] = run_tests(side, suite, server, work / f"{suite}-{name}", given.only)
            finally:
                server.server.stop()
            behaviour += table(results.get("connector"), results["millrace"])
    return 1 if behaviour else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
