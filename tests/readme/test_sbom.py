"""`make sbom` names what the programs are linked with, and docs/supply-chain.md has a line for each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.conftest import BUILD, ROOT


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="the bill of materials is made from dpkg's packages")
def test_each_library_has_a_package_a_version_and_a_line_in_the_docs() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "sbom.py"), str(BUILD)]
    bill = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "millrace"
    parts = bill["components"]
    references = [part["bom-ref"] for part in parts]
    assert len(set(references)) == len(references)
    assert bill["dependencies"] == [{"ref": "pkg:pypi/millrace@0.1.0", "dependsOn": references}]
    assert all(part["version"] and part["purl"].startswith("pkg:deb/") for part in parts)
    names = " ".join(part["name"] for part in parts)
    page = (ROOT / "docs" / "supply-chain.md").read_text()
    for library in ("curl", "ssl", "msgpack", "lz4", "uuid", "jansson", "expat", "isal", "toml", "microhttpd"):
        assert library in names
        assert library in page
