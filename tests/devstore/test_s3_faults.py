"""--fault, --latency-ms and --deny as S3's clients meet them, and what S3's options refuse."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import Reply, fetch, statistics
from tests.devstore.s3 import Signer, client, code, refusal, s3, send, xml


@pytest.fixture
def start(devstore: StartDevstore):
    def run(*flags: str) -> Server:
        server = devstore("--memory", "--synthetic", "made-up:10:1000", *flags)
        assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
        return server

    return run


GET = ("GET", "/made-up/obj-000000001")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("status:first=1:503/7:get:*", (503, "ServiceUnavailable")),
        ("status:first=1:500:get:*", (500, "InternalError")),
        ("status:first=1:429:get:*", (429, "SlowDown")),
        ("egress:first=1", (503, "SlowDown")),
        ("rate:first=1::get:*", (503, "SlowDown")),
        ("code:first=1:SlowDown", (503, "SlowDown")),
        ("code:first=1:RequestTimeout", (400, "RequestTimeout")),
        ("code:first=1:ExpiredToken", (400, "ExpiredToken")),
        ("code:first=1:PermanentRedirect", (301, "PermanentRedirect")),
        ("code:first=1:TemporaryRedirect", (307, "TemporaryRedirect")),
        ("code:first=1:InvalidObjectState:get:*1", (403, "InvalidObjectState")),
    ],
)
def test_answers(start, fault: str, expected: tuple[int, str]) -> None:
    server = start("--fault", fault)
    reply = s3(server, *GET)
    assert code(reply) == expected and reply.headers["Retry-After"] == ("7" if "/7" in fault else None)
    assert s3(server, *GET).status == 200
    assert statistics(server)["faults"][fault.split(":")[0]] == 1


def test_codes_are_for_s3_alone(start) -> None:
    server = start("--fault", "code:1:SlowDown")
    assert fetch(server, "/made-up/obj-000000001").status == 200
    assert code(s3(server, *GET)) == (503, "SlowDown")


@pytest.mark.parametrize("fault", ["reset:first=1:100", "short:first=1:10", "stall:first=1:0.1"])
def test_bodies_that_break_off(start, fault: str) -> None:
    server = start("--fault", fault)
    reply = s3(server, *GET)
    assert len(reply.body) == 1000 if "stall" in fault else len(reply.body) <= 100 and reply.broken
    again = s3(server, *GET)
    assert len(again.body) == 1000 and not again.broken


def test_wrong_and_changed_bytes(start) -> None:
    server = start("--fault", "wrong:first=1:5:get:*1", "--fault", "changed:first=1::get:*2")
    wrong, right = s3(server, *GET).body, s3(server, *GET).body
    assert wrong[:5] == right[:5] and wrong[5] != right[5] and wrong[6:] == right[6:]
    target = "/made-up/obj-000000002"
    etag = s3(server, "HEAD", target).headers["ETag"]
    assert code(s3(server, "GET", target, headers={"If-Match": etag})) == (412, "PreconditionFailed")
    assert s3(server, "GET", target, headers={"If-Match": etag}).status == 200


def test_a_lost_answer(start) -> None:
    """The upload is done, and nobody learns of it."""
    server = start("--fault", "reset:first=1:0:upload:*")
    with pytest.raises(OSError):
        s3(server, "PUT", "/bucket/x", b"data", headers={"If-None-Match": "*"})
    assert code(s3(server, "PUT", "/bucket/x", b"data", headers={"If-None-Match": "*"})) == (412, "PreconditionFailed")
    assert s3(server, "GET", "/bucket/x").body == b"data"


def complete(server: Server) -> tuple[Reply, str]:
    upload = xml(s3(server, "POST", "/bucket/m?uploads"), "UploadId")[0]
    where = f"/bucket/m?uploadId={upload}"
    etag = s3(server, "PUT", f"{where}&partNumber=1", b"data").headers["ETag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
    first = s3(server, "POST", where, body)
    assert code(s3(server, "GET", "/bucket/m")) == (404, "NoSuchKey")
    assert s3(server, "POST", where, body).status == 200 and s3(server, "GET", "/bucket/m").body == b"data"
    return first, upload


@pytest.mark.parametrize("why", ["InternalError", "SlowDown"])
def test_an_error_behind_blanks_under_status_200(start, why: str) -> None:
    server = start("--fault", f"late-error:first=1:{why}")
    reply, _ = complete(server)
    assert reply.status == 200 and b"?>\n   \n   \n<Error><Code>" in reply.body and xml(reply, "Code") == [why]
    assert statistics(server)["faults"]["late-error"] == 1


def test_boto3_sees_the_error_under_status_200(start) -> None:
    server = start("--fault", "late-error:1")
    one = client(server)
    upload = {"Bucket": "bucket", "Key": "m"}
    upload["UploadId"] = one.create_multipart_upload(**upload)["UploadId"]
    part = one.upload_part(**upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with pytest.raises(ClientError) as error:
        one.complete_multipart_upload(**upload, MultipartUpload=parts)
    assert refusal(error.value)[1] == "InternalError"


def test_inside_a_delete_of_many(start) -> None:
    server = start("--fault", "status:first=1:503:delete:*1", "--fault", "code:first=1:InternalError:delete:*2")
    listed = [{"Key": f"obj-00000000{i}"} for i in range(4)]
    answer = client(server).delete_objects(Bucket="made-up", Delete={"Objects": listed})
    assert [(e["Key"][-1], e["Code"]) for e in answer["Errors"]] == [
        ("1", "ServiceUnavailable"),
        ("2", "InternalError"),
    ]
    assert client(server).list_objects_v2(Bucket="made-up")["KeyCount"] == 8


def test_latency(start) -> None:
    server = start("--latency-ms", "stat:300")
    began = time.monotonic()
    assert s3(server, "HEAD", "/made-up/obj-000000001").status == 200
    assert time.monotonic() - began >= 0.29  # a lower bound holds however slow the machine is


def test_permissions_and_who_pays(start) -> None:
    server = start("--deny", "storage.objects.list", "--deny", "storage.objects.delete")
    assert code(s3(server, "GET", "/bucket?list-type=2")) == (403, "AccessDenied")
    assert code(s3(server, "GET", "/bucket/nothing")) == (403, "AccessDenied")  # who may not list learns nothing
    assert s3(server, *GET).status == 200
    answer = client(server).delete_objects(Bucket="made-up", Delete={"Objects": [{"Key": "obj-000000001"}]})
    assert [e["Code"] for e in answer["Errors"]] == ["AccessDenied"]
    server = start("--requester-pays")
    assert code(s3(server, *GET)) == (403, "AccessDenied")
    assert s3(server, *GET, headers={"x-amz-request-payer": "requester"}).status == 200


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--s3-key", "x"], "ID:SECRET[:TOKEN] is expected"),
        (["--s3-key", ":"], "ID:SECRET[:TOKEN] is expected"),
        (["--s3-key", "a:b"] * 9, "--s3-key is given more than 8 times"),
        (["--s3-region", "Ö"], "the name of a region is expected"),
        (["--s3-region", ""], "the name of a region is expected"),
        (["--s3-clock-s", "x"], "a number of seconds is expected"),
        (["--s3-session-s", "-1"], "a number of seconds is expected"),
        (["--api", "gcs"], "s3 is expected"),
        (["--s3-ignore", "x"], "conditions or checksums is expected"),
        (["--fault", "code:1:Nonsense"], '"Nonsense" is not an argument of a code fault'),
        (
            ["--fault", "x:1"],
            '"x": status, reset, stall, short, wrong, changed, egress, rate, keep-less, expire, code or late-error',
        ),
    ],
)
def test_options_refused(bin_dir: Path, flags: list[str], words: str) -> None:
    run = subprocess.run([bin_dir / "millrace-devstore", *flags], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and words in run.stderr


def test_it_says_where_s3_is(bin_dir: Path) -> None:
    command = [str(bin_dir / "millrace-devstore"), "--memory", "--exit-with-parent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first, second = process.stdout.readline(), process.stdout.readline()
        process.terminate()
    url = first.removeprefix("listening on ").strip()
    assert second == f"S3 too: AWS_ENDPOINT_URL_S3={url}\n" and process.returncode == 0


def test_a_signature_is_checked_before_the_body_comes(start) -> None:
    server = start("--s3-key", "a:b")
    assert code(send(server, "PUT", "/bucket/x", b"x" * 100_000, signer=Signer("a", "c"))) == (
        403,
        "SignatureDoesNotMatch",
    )


def test_a_store_that_ignores_conditions_and_checksums(start) -> None:
    server = start("--s3-ignore", "conditions", "--s3-ignore", "checksums")
    for data in (b"1", b"2"):
        wrong = {"If-None-Match": "*", "x-amz-checksum-crc32": "AAAAAA=="}
        assert s3(server, "PUT", "/bucket/x", data, wrong).status == 200
    reply = s3(server, "GET", "/bucket/x", headers={"x-amz-checksum-mode": "ENABLED"})
    assert reply.body == b"2" and not [name for name in reply.headers if "checksum" in name]
    assert code(s3(server, "PUT", "/bucket/x", b"3", {"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="})) == (400, "BadDigest")
    assert xml(s3(server, "GET", "/bucket?list-type=2"), "ChecksumType") == []
    deleted = s3(server, "POST", "/bucket?delete", b"<Delete/>", {"x-amz-checksum-crc32": "AAAAAA=="})
    assert code(deleted) == (400, "InvalidRequest")  # it wants Content-MD5
    assert s3(server, "DELETE", "/bucket/x", headers={"If-Match": '"0"'}).status == 204
