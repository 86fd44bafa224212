"""Signatures of version 4: the good, and every way in which one can be wrong."""

from __future__ import annotations

import email.utils
import re
from datetime import datetime

import pytest

from tests.conftest import Server, StartDevstore
from tests.devstore.conftest import fetch
from tests.devstore.s3 import KEY, SECRET, Signer, code, s3, send, sha256, xml

KEYS = ["--s3-key", f"{KEY}:{SECRET}", "--s3-key", "OTHER:secret:the/token="]


@pytest.fixture
def server(devstore: StartDevstore) -> Server:
    server = devstore("--memory", *KEYS)
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    assert send(server, "PUT", "/bucket/x", b"data").status == 200
    return server


@pytest.mark.parametrize(
    "target",
    [
        "/bucket/x",
        "/bucket//x",
        "/bucket/a/../x",
        "/bucket/%C3%BC%20%2B",
        "/bucket?list-type=2&prefix=a%20b%2B&delimiter",
    ]
    + ["/bucket?list-type=2&prefix=&max-keys=5&encoding-type=url", "/bucket/x?x-id=GetObject&a-=1&a=2&a=1", "/"],
)
def test_targets_as_they_are_signed(server: Server, target: str) -> None:
    reply = send(server, "GET", target)
    assert reply.status == 200 or code(reply) == (404, "NoSuchKey")
    assert reply.headers["x-amz-request-id"] and reply.headers["x-amz-id-2"]


def test_headers_as_they_are_signed(server: Server) -> None:
    headers = {"x-amz-meta-b": "  two   blanks  ", "X-Amz-Meta-A": "a,b"}
    assert send(server, "PUT", "/bucket/y", b"1", headers).status == 200
    assert send(server, "HEAD", "/bucket/y").headers["x-amz-meta-b"].split() == ["two", "blanks"]


def test_a_key_with_a_token(server: Server) -> None:
    assert send(server, "GET", "/bucket/x", signer=Signer("OTHER", "secret", token="the/token=")).body == b"data"
    for token in ("", "another"):
        assert code(send(server, "GET", "/bucket/x", signer=Signer("OTHER", "secret", token=token))) == (
            400,
            "InvalidToken",
        )


@pytest.mark.parametrize(
    ("fields", "expected", "words"),  # a Signer has the time at which it is made, and this is long before the test
    [
        ({"secret": "no"}, (403, "SignatureDoesNotMatch"), "The request signature we calculated"),
        ({"key": "NOBODY"}, (403, "InvalidAccessKeyId"), "does not exist in our records"),
        (
            {"service": "sqs"},
            (400, "AuthorizationHeaderMalformed"),
            'Error parsing the credential; incorrect service "sqs".',
        ),
        ({"date": "20200101T000000Z"}, (403, "RequestTimeTooSkewed"), "request time and the current time"),
        (
            {"date": "yesterday"},
            (403, "AccessDenied"),
            "AWS authentication requires a valid Date or x-amz-date header",
        ),
        ({"key": "MRSESSION" + "0" * 32}, (400, "InvalidToken"), "malformed or otherwise invalid"),
    ],
)
def test_refused(server: Server, fields: dict[str, str], expected: tuple[int, str], words: str) -> None:
    reply = send(server, "GET", "/bucket/x", signer=Signer(**fields))
    assert code(reply) == expected and words in xml(reply, "Message")[0]


def test_what_the_client_did_not_sign_or_sent_otherwise(server: Server) -> None:
    headers = Signer().headers(server, "GET", "/bucket/x", sha256(b""))
    assert code(fetch(server, "/bucket/y", headers=headers)) == (403, "SignatureDoesNotMatch")
    assert code(fetch(server, "/bucket/x?a", headers=headers)) == (403, "SignatureDoesNotMatch")
    assert code(fetch(server, "/bucket/x", "DELETE", headers=headers)) == (403, "SignatureDoesNotMatch")
    more = fetch(server, "/bucket/x", headers={**headers, "x-amz-checksum-mode": "ENABLED"})
    assert code(more) == (403, "AccessDenied") and xml(more, "HeadersNotSigned") == ["x-amz-checksum-mode"]
    assert "There were headers present in the request which were not signed" in xml(more, "Message")[0]
    no_host = {**headers, "Authorization": headers["Authorization"].replace("=host;", "=")}
    assert xml(fetch(server, "/bucket/x", headers=no_host), "HeadersNotSigned") == ["host"]
    del headers["x-amz-content-sha256"]
    headers["Authorization"] = headers["Authorization"].replace("x-amz-content-sha256;", "")
    missing = fetch(server, "/bucket/x", headers=headers)
    assert "Missing required header for this request: x-amz-content-sha256" in xml(missing, "Message")[0]
    assert code(s3(server, "GET", "/bucket/x")) == (403, "AccessDenied")
    other_day = Signer().headers(server, "GET", "/bucket/x", sha256(b""))
    other_day["Authorization"] = re.sub(r"/\d{8}/", "/20200101/", other_day["Authorization"])
    reply = fetch(server, "/bucket/x", headers=other_day)
    assert code(reply) == (400, "AuthorizationHeaderMalformed")
    assert re.search('Invalid credential date "20200101". This date is not the same as', xml(reply, "Message")[0])


def test_a_body_that_is_not_what_was_signed(server: Server) -> None:
    for method, target in (("PUT", "/bucket/y"), ("POST", "/bucket?delete")):
        reply = send(server, method, target, b"data", payload=sha256(b"other"))
        assert code(reply) == (400, "XAmzContentSHA256Mismatch")
    assert code(send(server, "GET", "/bucket/y"))[0] == 404
    reply = send(server, "PUT", "/bucket/y", b"data", payload="nonsense")
    words = "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of STREAMING-..., or a valid sha256 value."
    assert code(reply) == (400, "InvalidArgument") and xml(reply, "Message") == [words]
    assert send(server, "PUT", "/bucket/y", b"data", payload="UNSIGNED-PAYLOAD").status == 200


@pytest.mark.parametrize(
    "claim",
    [
        "",
        "Credential=a",
        "Credential=/a/b/c/aws4_request, SignedHeaders=host, Signature=x",
        "=,=,=",
        "Credential=a/b/c/d/e,",
    ]
    + [f"Credential={KEY}/20200101/r/s3/aws4_request,SignedHeaders=,Signature=", "," * 2000, "SignedHeaders"],
)
def test_malformed_claims(server: Server, claim: str) -> None:
    headers = {"Authorization": f"AWS4-HMAC-SHA256 {claim}", "x-amz-date": "20200101T000000Z"}
    status, why = code(fetch(server, "/bucket/x", headers=headers))
    assert (status, why) in ((400, "AuthorizationHeaderMalformed"), (403, "RequestTimeTooSkewed"))
    assert send(server, "GET", "/bucket/x").body == b"data"


def test_another_mechanism(server: Server) -> None:
    reply = s3(server, "GET", "/bucket/x", headers={"Authorization": "AWS4-ECDSA-P256-SHA256 Credential=a"})
    assert code(reply) == (400, "InvalidRequest")
    words = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
    assert xml(reply, "Message") == [words]


def test_a_wrong_region_is_told_the_right_one(devstore: StartDevstore) -> None:
    server = devstore("--memory", *KEYS, "--s3-region", "eu-west-1")
    reply = send(server, "GET", "/")
    assert code(reply) == (400, "AuthorizationHeaderMalformed") and xml(reply, "Region") == ["eu-west-1"]
    assert xml(reply, "Message") == ["The region 'us-east-1' is wrong; expecting 'eu-west-1'"]
    assert reply.headers["x-amz-bucket-region"] == "eu-west-1"
    assert send(server, "GET", "/", signer=Signer(region="eu-west-1")).status == 200


def test_a_clock_that_is_wrong_can_be_corrected_by_the_date(devstore: StartDevstore) -> None:
    server = devstore("--memory", *KEYS, "--s3-clock-s", "1000000")
    reply = send(server, "GET", "/")
    assert code(reply) == (403, "RequestTimeTooSkewed") and xml(reply, "MaxAllowedSkewMilliseconds") == ["900000"]
    date = xml(reply, "ServerTime")[0]
    sent = email.utils.parsedate_to_datetime(reply.headers["Date"])  # what a client corrects its clock by
    said = datetime.fromisoformat(date[:19] + "+00:00")
    assert abs((sent - said).total_seconds()) < 100  # a second may have begun between the two
    corrected = Signer(date=re.sub(r"[-:]|\.\d+", "", date))
    assert send(server, "GET", "/", signer=corrected).status == 200


def test_sessions_end(devstore: StartDevstore) -> None:
    server = devstore("--memory", *KEYS, "--s3-session-s", "0")
    for name in ("a--x-s3", "bucket"):
        assert fetch(server, "/storage/v1/b", "POST", b'{"name":"%s"}' % name.encode()).status == 200
    made = send(server, "GET", "/a--x-s3?session")
    session = Signer(xml(made, "AccessKeyId")[0], xml(made, "SecretAccessKey")[0], service="s3express")
    token = {"x-amz-s3session-token": xml(made, "SessionToken")[0]}
    assert code(send(server, "GET", "/a--x-s3", headers=token, signer=session)) == (400, "ExpiredToken")
    assert code(send(server, "GET", "/a--x-s3", signer=session)) == (400, "InvalidToken")
    reply = send(server, "GET", "/bucket?session")
    words = "CreateSession is for directory buckets: names end in --x-s3"
    assert code(reply) == (400, "InvalidRequest") and xml(reply, "Message") == [words]
    md5 = send(server, "PUT", "/a--x-s3/x", b"", {"Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    assert "Content-MD5 is not supported by directory buckets" in xml(md5, "Message")[0]


def test_without_a_key_every_signature_is_good_and_none(devstore: StartDevstore) -> None:
    server = devstore("--memory", "--api", "s3")
    assert send(server, "PUT", "/bucket", signer=Signer("whoever", "whatever")).status == 200
    assert fetch(server, "/bucket/x", "PUT", b"data").status == 200  # --api s3: nothing says so, and it is S3
    assert fetch(server, "/bucket/x").headers["ETag"] == '"8d777f385d3dfec8815d20f7496026dc"'
    assert fetch(server, "/storage/v1/b/bucket/o/x?alt=media").body == b"data"
    assert xml(fetch(server, "/"), "Name") == ["bucket"]


def test_gcs_stays_what_it_is(devstore: StartDevstore) -> None:
    server = devstore("--memory", *KEYS)
    assert fetch(server, "/storage/v1/b", "POST", b'{"name":"bucket"}').status == 200
    assert fetch(server, "/bucket/x", "PUT", b"data").headers["x-goog-generation"]
    assert fetch(server, "/bucket/x").headers["x-goog-hash"] and fetch(server, "/").status == 404
    assert fetch(server, "/bucket?list-type=2").headers["x-amz-request-id"] is None
    assert send(server, "GET", "/bucket/x").headers["x-goog-hash"] is None
