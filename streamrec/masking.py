"""Text that is shown: credentials and terminal control characters are removed from it.

Shards are read by their whole URLs. Wherever a URL is shown (in an error, a log, a ``repr``, a
report, or to the client of a feeder), its user is left out, and the query of an http URL too,
since no list of parameter names would hold every signature.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN = "**********"
MOST = 8 << 10
"""The most characters of a text that are shown: a few screens, however much a peer sends."""

_QUERIED = r"\b((?:https?|tcp|tls)://"
_QUERY = re.compile(rf"(?is){_QUERIED}[^?#]*)(\?[^#]*)?(?:#.*)?")
_QUERY_IN_TEXT = re.compile(
    # A query that is masked already is left alone. Punctuation after a URL is no part of it.
    rf"(?i){_QUERIED}[^?#\s'\">]*[?#])(?!\.\.\.[:;,.)]*(?:[\s'\">]|\Z))[^\s'\">]*[^\s'\">:;,.)]"
)
_USER = re.compile(
    r"(?i)\b((?:https?|ftps?|sftp|ssh|smb|tcp|tls|unix|webdavs?|webhdfs)://)[^/?#\s]*@"
)
"""Schemes whose URLs may name a user. In others, the name before ``@`` is not a user: with Azure it
is a container, with GitHub a branch."""
_PASSWORD = re.compile(
    # In github: and git: URLs, a repository and a branch stand before the @.
    r"(?i)\b((?!github:|git:)[a-z][a-z0-9+.-]*://)[^/?#:\s]*:[^/?#\s]*@"
)
_PARAMETER = re.compile(
    r"(?i)([?&;#](?:[\w.-]*(?:signature|token|secret|passw|credential|key|auth)[\w.-]*|sig)=)"
    r"[^&#\s'\">]+"
)
"""Secret parameters in the query of any other scheme, or of a URL whose beginning was cut off."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 controls but tab and line feed, marks of writing direction, and lone surrogates."""
_LINE_END = re.compile(rf"[\t\n]|{_CONTROL.pattern}")
"""The same with tab and line feed: a URL has one line, and begins no other in a log."""
_SUSPICIOUS = re.compile(rf"[?@#;&]|{_LINE_END.pattern}")
_OPTION = re.compile(
    r"secret|token|passw|credential|private|signature|auth|cookie|headers|sas_|connection_string"
    r"|\bkey\b|_key\b",
    re.IGNORECASE,
)
"""The names of options whose values are credentials."""


def masked(url: str) -> str:
    """Return a URL without credentials and control characters."""
    if not _SUSPICIOUS.search(url):  # A dataset may have a million URLs: most end here.
        return url
    plain = _QUERY.sub(lambda found: found[1] + ("?..." if found[2] else ""), url)
    return _LINE_END.sub(_replaced, _without_users(plain))


def type_of(value: object) -> str:
    """Return the name of a value's type with its article, as in "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def printable(text: str) -> str:
    """Return a text that may be shown: its URLs masked, and cut after ``MOST`` characters.

    Control characters become question marks.
    """
    # Twice as much is masked as is shown, so that the cut divides no secret.
    plain = text[: 2 * MOST]
    plain = _without_users(_QUERY_IN_TEXT.sub(r"\1...", plain))
    if len(text) > MOST:
        plain = f"{plain[:MOST]}... (cut: there are {len(text)} characters)"
    return _CONTROL.sub(_replaced, plain)


def _replaced(found: re.Match[str]) -> str:
    r"""Return a question mark; for a byte of a name that is not UTF-8, its number (``\xe9``)."""
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else "?"


def _without_users(text: str) -> str:
    return _PARAMETER.sub(r"\1...", _PASSWORD.sub(r"\1", _USER.sub(r"\1", text)))


def without_secrets(value: Any) -> Any:
    """Hide the options with secret names, at every depth, and mask the URLs in the others."""
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
    """Hide the values of options that a text (an error about them, say) quotes."""
    for value in options.values():
        # Shorter values are in every text by chance, and no secrets.
        if isinstance(value, str) and len(value) > 3:
            text = text.replace(value, HIDDEN)
    return text


def say_where(message: str, facts: Mapping[str, Any]) -> str:
    """Return the text of an error: the fields that say where, and then the message."""
    texts = (str(value) if name == "url" else f"{name} {value}" for name, value in facts.items())
    where = ", ".join(texts)
    return f"{where}: {message}" if where else message


class Hidden(dict[str, Any]):
    """Options that may hold credentials: a mapping whose ``repr`` shows their names alone."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {HIDDEN}' for name in self)}}}"


def mask_urls(value: Any) -> Any:
    """Mask every URL in a value, inside lists, tuples and mappings too."""
    if isinstance(value, str):
        return masked(value)
    if type(value) in (list, tuple):
        return type(value)(map(mask_urls, value))
    return {name: mask_urls(part) for name, part in value.items()} if type(value) is dict else value


def masked_repr(self: Any) -> str:
    """Return a dataclass's ``repr`` with masked URLs; a class sets this as its ``__repr__``."""
    parts = (
        f"{field.name}={mask_urls(getattr(self, field.name))!r}"
        for field in fields(self)
        if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(parts)})"
