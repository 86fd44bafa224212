"""S3 servers for tests: versitygw (scripts/test-servers builds it) and moto; and botocore's client of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from tests.conftest import CALLERS_CACHE, Server, free_port, start_devstore
from tests.serve import wait_for
from tests.stores import ACCESS, REGION, SECRET, s3_environment


@dataclass
class S3:
    """A server, with one account."""

    name: str
    server: Server

    @property
    def environment(self) -> dict[str, str]:
        return s3_environment(self.server.url)

    def client(self) -> Any:
        config = botocore.config.Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.server.url,
            region_name=REGION,
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            config=config,
        )

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        """Objects into a bucket, which is made where it is not there."""
        client = self.client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=bucket)
        for name, data in objects.items():
            client.put_object(Bucket=bucket, Key=name, Body=data)

    def get(self, bucket: str, name: str) -> bytes:
        return bytes(self.client().get_object(Bucket=bucket, Key=name)["Body"].read())

    def names(self, bucket: str) -> list[str]:
        return [one["Key"] for one in self.client().list_objects_v2(Bucket=bucket).get("Contents", [])]


def _start(name: str, command: list[str | Path], port: int, log: Path, **env: str) -> S3:
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}
        )
    server = Server(process, port)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
            return True
        return False

    try:
        wait_for(listens, log.read_text)
    except BaseException:
        server.stop()
        raise
    return S3(name, server)


def start_versitygw(folder: Path, *options: str) -> S3:
    """Over an empty folder; it checks signatures, and each checksum that it is given."""
    cache = CALLERS_CACHE / "millrace" / "test-servers"
    program = shutil.which("versitygw") or cache / "versitygw"
    assert Path(program).exists(), f"{program} is missing: run scripts/test-servers"
    port = free_port()
    (folder / "gateway").mkdir(parents=True)
    command = [program, "--port", f"127.0.0.1:{port}", "--region", REGION, *options, "posix", folder / "gateway"]
    env = {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    return _start("versitygw", command, port, folder / "versitygw.log", **env)


def start_moto(folder: Path) -> S3:
    """Names are flat, as in S3, and it checks neither signatures nor checksums."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return _start("moto", command, port, folder / "moto.log")


def start_plain(folder: Path) -> S3:
    """The development store as one of those that know neither conditions of writes nor checksums."""
    ignored = ["--s3-ignore", "conditions", "--s3-ignore", "checksums"]
    return S3("plain", start_devstore("--memory", "--s3-key", f"{ACCESS}:{SECRET}", *ignored))
