"""What other file systems of fsspec are told by arguments, and what becomes of it here: it is refused rather than
dropped, where dropping it would mean another store, another version or another object than was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of s3fs and gcsfs: which store, and as whom. Each with what says no more than is so anyway, beside None, False and {}.
_STORE: dict[str, tuple[object, ...]] = {
    "access": ("full_control",),
    "client_kwargs": (),
    "config_kwargs": (),
    "endpoint_url": (),
    "key": (),
    "password": (),
    "profile": (),
    "requester_pays": (),
    "s3_additional_kwargs": (),
    "secret": (),
    "session": (),
    "token": ("google_default",),
    "use_ssl": (True,),
    "user_project": (),
    "username": (),
    "version_aware": (),
}
_VERSION = ("version_id", "generation")
_CONTENT = ("acl", "content_type", "custom_headers", "fixed_key_metadata", "kms_key_name", "metadata")


def check_store(options: Mapping[str, Any]) -> None:
    """TypeError for what would choose a store, or who asks it."""
    for name, nothing in _STORE.items():
        value = options.get(name)
        if (value and value not in nothing) or (name, value) == ("use_ssl", False):
            raise TypeError(
                f"millrace's file systems take no {name}: which store it is, and as whom, is said by [gcs], [s3] and "
                "[endpoint.NAME] of millrace.toml and by the environment (docs/credentials.md)"
            )


def check_version(uri: object, options: Mapping[str, Any]) -> None:
    """TypeError for what would choose a version: there is the newest alone."""
    for name in _VERSION:
        if options.get(name) is not None:
            raise TypeError(f"{uri}: millrace's file systems read the newest version of an object, and take no {name}")


def check_content(uri: object, options: Mapping[str, Any]) -> None:
    """TypeError for what would be kept with a new object: headers, or boto3's arguments (ServerSideEncryption)."""
    for name, value in options.items():
        if value is not None and (name in _CONTENT or name[:1].isupper()):
            raise TypeError(
                f"{uri}: millrace's file systems take no {name}: keys and encryption are set in millrace.toml "
                "(docs/configuration.md), other headers are not"
            )
