"""What is taken over from a google.cloud.storage.Client: endpoint, quota project, and its kind of credentials.

The supervisor cannot use the client's own credentials, which are Python objects: it finds the same ones by the rules of
Application Default Credentials (docs/credentials.md), or this says why it cannot.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PUBLIC_ENDPOINT = "https://storage.googleapis.com"
TRANSPORT = "google.auth.transport.requests.AuthorizedSession"


def take_over(client: Any, toml: dict[str, dict[str, Any]], asked_by: list[str]) -> dict[str, str]:
    """Adds to toml what the client asks for; returns what the supervisor's environment needs beside it."""
    if not _is_client(client):
        raise TypeError(f"storage_client is a google.cloud.storage.Client or None, not {_kind(client)}")
    transport = getattr(client, "_http_internal", None)
    if transport is not None and _kind(transport) != TRANSPORT:
        raise ValueError(
            f"storage_client has a transport of its own ({_kind(transport)}), which millrace cannot use: [http] of a "
            "configuration has proxy, ca_bundle and headers (MILLRACE_CONFIG, or `millrace run -c`)"
        )
    _endpoint(client, toml, asked_by)
    headers = dict(getattr(client._connection, "extra_headers", None) or {})
    if headers:
        toml["http"] = {"headers": {str(name): str(value) for name, value in headers.items()}}
        asked_by.append("storage_client's extra headers")
    credentials = client._credentials
    _check_credentials(credentials, toml, asked_by)
    quota = getattr(credentials, "quota_project_id", None)
    if quota and quota != os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT"):
        asked_by.append("storage_client's quota project")
        return {"GOOGLE_CLOUD_QUOTA_PROJECT": quota}
    return {}


def _is_client(client: Any) -> bool:
    return any(
        f"{each.__module__}.{each.__qualname__}" == "google.cloud.storage.client.Client"
        for each in type(client).__mro__
    )


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _endpoint(client: Any, toml: dict[str, dict[str, Any]], asked_by: list[str]) -> None:
    endpoint = str(client._connection.API_BASE_URL).rstrip("/")
    if ".mtls." in endpoint:
        raise ValueError(f"storage_client talks to {endpoint} with a client certificate, which millrace does not do")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if endpoint != (emulator or PUBLIC_ENDPOINT):
        toml["gcs"] = {"endpoint": endpoint}
        asked_by.append("storage_client's endpoint")


def _check_credentials(credentials: Any, toml: dict[str, dict[str, Any]], asked_by: list[str]) -> None:
    kind = _kind(credentials)
    if kind == "google.auth.credentials.AnonymousCredentials":
        if not os.environ.get("STORAGE_EMULATOR_HOST") or "gcs" in toml:  # the variable's server gets none anyway
            toml.setdefault("gcs", {})["auth"] = "anonymous"
            asked_by.append("storage_client's anonymous credentials")
        return
    file, found = _default_file()
    if kind in ("google.auth.compute_engine.credentials.Credentials", "google.auth.compute_engine.Credentials"):
        if file is not None:
            raise ValueError(
                f"storage_client has the machine's own credentials ({kind}), but millrace would take {file}: unset "
                "GOOGLE_APPLICATION_CREDENTIALS, or remove that file"
            )
        return
    compare = _COMPARED.get(kind)
    if compare is None:
        raise ValueError(
            f"storage_client has credentials of the kind {kind}, which millrace cannot take over: make it with "
            "Application Default Credentials (docs/credentials.md), or anonymous ones"
        )
    if file is None or not compare(credentials, found):
        where = f"millrace would take {file}, which has others" if file else "there is no file with them"
        raise ValueError(
            f"storage_client has credentials of the kind {kind}; millrace looks for the same ones in a file, and "
            f"{where}: set GOOGLE_APPLICATION_CREDENTIALS to the file that they are from"
        )


def _default_file() -> tuple[Path | None, dict[str, Any]]:
    """The credentials file that Application Default Credentials would take, and what is in it."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    path = Path(named) if named else Path(folder, "application_default_credentials.json")
    if not path.is_file():
        return None, {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the credentials file {path} cannot be read: {error}") from None
    return path, found if isinstance(found, dict) else {}


def _same_account(credentials: Any, file: dict[str, Any]) -> bool:
    return (
        file.get("type") == "service_account"
        and file.get("client_email") == credentials.service_account_email
        and file.get("private_key_id") == getattr(credentials.signer, "key_id", None)
        and not getattr(credentials, "_subject", None)  # on behalf of a user: there is no file for that
    )


def _same_user(credentials: Any, file: dict[str, Any]) -> bool:
    token = credentials.refresh_token
    return (
        file.get("type") == "authorized_user"
        and token is not None
        and (file.get("refresh_token"), file.get("client_id")) == (token, credentials.client_id)
    )


def _same_external(credentials: Any, file: dict[str, Any]) -> bool:
    mine = credentials.info
    keys = ("type", "audience", "subject_token_type", "token_url", "credential_source")
    return all(mine.get(key) == file.get(key) for key in keys + ("service_account_impersonation_url",))


def _same_impersonated(credentials: Any, file: dict[str, Any]) -> bool:
    url = str(file.get("service_account_impersonation_url", ""))
    compare = _COMPARED.get(_kind(credentials._source_credentials))
    return (
        file.get("type") == "impersonated_service_account"
        and url.rpartition("/")[2].partition(":")[0] == credentials.service_account_email
        and compare is not None
        and compare(credentials._source_credentials, file.get("source_credentials") or {})
    )


_COMPARED = {
    "google.oauth2.service_account.Credentials": _same_account,
    "google.oauth2.credentials.Credentials": _same_user,
    "google.auth.identity_pool.Credentials": _same_external,
    "google.auth.aws.Credentials": _same_external,
    "google.auth.pluggable.Credentials": _same_external,
    "google.auth.impersonated_credentials.Credentials": _same_impersonated,
}
