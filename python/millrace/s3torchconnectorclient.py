"""The public names of s3torchconnectorclient, whose package holds s3torchconnector's exceptions."""

from __future__ import annotations

from .s3torchconnector import S3Exception, __version__

LOG_TRACE = 5  # the level that its log has below DEBUG; millrace has no such lines

__all__ = ["LOG_TRACE", "S3Exception", "__version__"]
