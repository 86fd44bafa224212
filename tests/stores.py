"""Requests to a store's own address, for tests: buckets and objects made and removed past millrace."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path

TEMPORARY_PREFIX = "dataflux-composed-objects/"
ACCESS, SECRET, REGION = "AKIDEXAMPLE", "a-secret-of-the-tests", "us-east-1"


def s3_environment(url: str) -> dict[str, str]:
    """With which s3:// is the server at this address, and nothing of the caller's own keys is found."""
    return {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def create_bucket(url: str, bucket: str) -> None:
    body, headers = json.dumps({"name": bucket}).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/storage/v1/b?project=p", body, headers)).close()


def put(url: str, bucket: str, name: str, data: bytes = b"x") -> None:
    target = f"{url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={urllib.parse.quote(name, safe='')}"
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(target, data, headers, method="POST")).close()


def delete(url: str, bucket: str, name: str) -> None:
    target = f"{url}/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
    urllib.request.urlopen(urllib.request.Request(target, method="DELETE")).close()


def upload(url: str, bucket: str, objects: dict[str, bytes]) -> None:
    """A new bucket with these objects."""
    create_bucket(url, bucket)
    for name, data in objects.items():
        put(url, bucket, name, data)


def requests(url: str) -> dict[str, int]:
    """What a development store has answered so far, by operation; those that have not come are left out."""
    with urllib.request.urlopen(f"{url}/_devstore/stats") as reply:
        counts: dict[str, int] = json.load(reply)["requests"]
    return counts


def temporary(url: str, bucket: str) -> list[str]:
    """Names of the temporary objects in a bucket."""
    with urllib.request.urlopen(
        f"{url}/storage/v1/b/{bucket}/o?prefix={urllib.parse.quote(TEMPORARY_PREFIX)}"
    ) as reply:
        return [item["name"] for item in json.load(reply).get("items", [])]


def list_requests(log: Path) -> int:
    """Requests for a page of names in a --log of the development store, without those for temporary objects."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("GET ") and "/o?" in line]
    return sum(1 for line in lines if f"prefix={TEMPORARY_PREFIX[:-1]}" not in line)
