"""Text that may be shown: without what lets somebody in, and without what steers a terminal.

A URL is read as it is. Wherever it is shown (in an error, a log, a ``repr``, a report, or to the
client of a feeder) it is masked here: without its user, and of http without its query, since no
list of names would hold every signature.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HIDDEN",
    "Hidden",
    "masked",
    "masked_repr",
    "printable",
    "shown",
    "without_secrets",
    "without_values",
]

HIDDEN = "**********"
MOST = 8 << 10
"""Characters of a text that are shown: a few screens, whatever a peer sends."""

_QUERIED = r"\b((?:https?|tcp|tls)://"
_QUERY = re.compile(rf"(?is){_QUERIED}[^?#]*)(\?[^#]*)?(?:#.*)?")
_QUERY_IN_TEXT = re.compile(
    # A query that is masked already stays; what ends a clause of the text is no part of the URL.
    rf"(?i){_QUERIED}[^?#\s'\">]*[?#])(?!\.\.\.[:;,.)]*(?:[\s'\">]|\Z))[^\s'\">]*[^\s'\">:;,.)]"
)
_USER = re.compile(
    r"(?i)\b((?:https?|ftps?|sftp|ssh|smb|tcp|tls|unix|webdavs?|webhdfs)://)[^/?#\s]*@"
)
"""Elsewhere a name before an ``@`` is no user: a container of Azure's, a branch of GitHub's."""
_PASSWORD = re.compile(
    # Before the @ of these stand a repository and a branch.
    r"(?i)\b((?!github:|git:)[a-z][a-z0-9+.-]*://)[^/?#:\s]*:[^/?#\s]*@"
)
_PARAMETER = re.compile(
    r"(?i)([?&;#](?:[\w.-]*(?:signature|token|secret|passw|credential|key|auth)[\w.-]*|sig)=)"
    r"[^&#\s'\">]+"
)
"""Of a query of any other scheme, or of a URL whose beginning is not there."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 without tab and line feed, what turns the direction of writing, and halves of pairs."""
_SUSPICIOUS = re.compile(rf"[?@#;&]|{_CONTROL.pattern}")
_OPTION = re.compile(
    r"secret|token|passw|credential|private|signature|auth|cookie|headers|sas_|connection_string"
    r"|\bkey\b|_key\b",
    re.IGNORECASE,
)
"""Names of options whose values let somebody in."""


def masked(url: str) -> str:
    """Return a URL as it may be shown: it names the object, and lets nobody in."""
    if not _SUSPICIOUS.search(url):  # there may be a million of them
        return url
    plain = _QUERY.sub(lambda found: found[1] + ("?..." if found[2] else ""), url)
    return _CONTROL.sub("?", _without_users(plain))


def printable(text: str) -> str:
    """Return a text as it may be shown, of whatever origin: its URLs masked, and not too long.

    What would steer a terminal becomes a question mark.
    """
    plain = text[: 2 * MOST]  # a secret that the cut divides is masked before
    plain = _without_users(_QUERY_IN_TEXT.sub(r"\1...", plain))
    if len(text) > MOST:
        plain = f"{plain[:MOST]}... (cut: there are {len(text)} characters)"
    return _CONTROL.sub("?", plain)


def _without_users(text: str) -> str:
    return _PARAMETER.sub(r"\1...", _PASSWORD.sub(r"\1", _USER.sub(r"\1", text)))


def without_secrets(value: Any) -> Any:
    """Return options without what their names call secret, at every depth, and with masked URLs."""
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if inner is not None and _OPTION.search(str(name))
            else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return masked(value) if isinstance(value, str) else value


def without_values(text: str, options: Mapping[str, Any]) -> str:
    """Return a text, as of an error about options, without those of their values that it quotes."""
    for value in options.values():
        if isinstance(value, str) and len(value) > 3:
            text = text.replace(value, HIDDEN)
    return text


class Hidden(dict[str, Any]):
    """Options that may hold credentials: a mapping whose ``repr`` shows their names alone."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {HIDDEN}' for name in self)}}}"


def shown(value: Any) -> Any:
    """Return a value with every URL in it masked, in lists, tuples and mappings, too."""
    if isinstance(value, str):
        return masked(value)
    if type(value) in (list, tuple):
        return type(value)(map(shown, value))
    return {name: shown(part) for name, part in value.items()} if type(value) is dict else value


def masked_repr(self: Any) -> str:
    """Show a dataclass with masked URLs; to be set as its ``__repr__``."""
    parts = (
        f"{field.name}={shown(getattr(self, field.name))!r}" for field in fields(self) if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(parts)})"
