"""The settings of the audit log: where it is written, and how often."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from streamrec.config.arguments import seconds_of
from streamrec.config.lazy_settings import LazySettings, read_plainly
from streamrec.config.places import absolute, absolute_options
from streamrec.config.plain_values import NONE, Kind, anything, dict_of, either, number, text
from streamrec.masking import Hidden

if TYPE_CHECKING:
    from pydantic import AfterValidator, Field

_KINDS: Mapping[str, Kind] = {
    "url": text,
    "every": number(1, 1e7),
    "storage_options": either(NONE, lambda options: Hidden(dict_of(anything)(options))),
}


class AuditSettings(LazySettings):
    """The settings of the audit log."""

    url: Annotated[str, Field(min_length=1)]
    """The URL or path of the log's directory."""
    every: Annotated[float, Field(ge=1, le=1e7)] = 300.0
    """Seconds of training, at most, that one object of the log holds."""
    storage_options: Annotated[dict[str, Any], AfterValidator(Hidden)] | None = None
    """Options for the log's store; ``None``: those of the source."""

    kinds = _KINDS


def log_in_full(audit: object) -> Any:
    """Return the mapping that a URL or path stands for, with absolute paths."""
    # TOML has no null, for which these two stand.
    if audit is None or audit is False or audit == "":
        return None
    if isinstance(audit, AuditSettings):
        return audit
    full: dict[str, Any] = dict(audit) if isinstance(audit, Mapping) else {"url": audit}
    if unknown := sorted(full.keys() - AuditSettings.defaults.keys()):
        keys = ", ".join(AuditSettings.defaults)
        raise ValueError(f"has no key {unknown[0]!r}; its keys are {keys}")
    url = full.get("url")
    if url is None or url == "":
        raise ValueError("has no url; give the URL or path of a directory")
    if isinstance(url, str | os.PathLike):
        full["url"] = _directory_of(absolute(os.fspath(url)))
    if isinstance(full.get("every"), str):
        full["every"] = seconds_of(full["every"], "every")
    if isinstance(full.get("storage_options"), Mapping):
        full["storage_options"] = absolute_options(full["storage_options"])
    return full


def _directory_of(url: str) -> str:
    """Return a URL or path with one slash at its end.

    Raises:
        ValueError: It is a scheme alone.
    """
    directory = url.rstrip("/")
    if directory.endswith(":"):
        raise ValueError(f"is {url!r}, which names no directory; give one, as s3://bucket/run-7/")
    return directory + "/"


def read_audit(audit: object) -> AuditSettings:
    """Return the settings that a URL, a path or a mapping stands for.

    Raises:
        ValueError: They are not plainly right.
    """
    full = log_in_full(audit)
    if isinstance(full, AuditSettings):
        return full
    if type(full) is not dict or (plain := read_plainly(AuditSettings, full)) is None:
        raise ValueError
    return AuditSettings.model_construct(**plain)
