"""`make sbom`: what the programs and the extension consist of, as CycloneDX 1.5 (JSON), read from the built files.

    scripts/sbom.py [BUILD]    build/release unless told; on standard output

Each library that a program names as needed is a component, with the Debian or Ubuntu package and version that it came
from on this machine; libraries that those need in turn are their packages' affair. toml++ is headers alone, and is
found by its package.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ["/usr/include/toml++/toml.h"]


def out(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def libraries(file: Path) -> dict[str, Path]:
    """Library name -> where it was found, of those that `file` itself needs."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", out("readelf", "-d", file)))
    found = dict(re.findall(r"(\S+) => (/\S+)", out("ldd", file)))
    return {name: Path(found[name]).resolve() for name in sorted(needed) if name in found}


def package(file: Path) -> tuple[str, str]:
    """The package a file of this machine belongs to, and its version."""
    # A merged /usr: dpkg may know the file under the path without it.
    for path in (str(file), str(file).removeprefix("/usr")):
        owner = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if owner.returncode == 0:
            name = owner.stdout.split(":")[0]
            return name, out("dpkg-query", "-W", "-f=${Version}\n", name).splitlines()[0]
    raise SystemExit(f"sbom: no package of this machine has {file}")


def component(name: str, version: str, kind: str = "library", **more: Any) -> dict[str, Any]:
    distribution = dict(re.findall(r"^(ID|VERSION_ID)=\"?([^\"\n]+)", Path("/etc/os-release").read_text(), re.M))
    release = f"{distribution['ID']}-{distribution.get('VERSION_ID', 'rolling')}"
    purl = f"pkg:deb/{distribution['ID']}/{name}@{version}?distro={release}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def project() -> dict[str, Any]:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    license_ = {"license": {"id": "Apache-2.0"}}
    reference = f"pkg:pypi/millrace@{version.group(1)}"
    return {"type": "application", "bom-ref": reference, "name": "millrace", "version": version.group(1)} | {
        "purl": reference,
        "licenses": [license_],
    }


def bill(build: Path) -> dict[str, Any]:
    files = [build / "bin" / "millrace", build / "bin" / "millrace-worker", build / "bin" / "millrace-devstore"]
    files += [file for file in [build / "bin" / "millrace-mount"] if file.exists()]
    files += (build / "python" / "millrace").glob("_ring*.so")
    users: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for library in libraries(file).values():
            users.setdefault(package(library), set()).add(file.name)
    for header in HEADERS:
        users.setdefault(package(Path(header)), set()).add("millrace")
    whole = project()
    parts = [
        component(name, version, properties=[{"name": "millrace:used-by", "value": ", ".join(sorted(used))}])
        for (name, version), used in sorted(users.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}", "component": whole},
        "components": parts,
        "dependencies": [{"ref": whole["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


if __name__ == "__main__":
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "release"
    if not (build / "bin" / "millrace").exists():
        raise SystemExit(f"sbom: {build} has no programs: run scripts/build")
    print(json.dumps(bill(build), indent=2))
