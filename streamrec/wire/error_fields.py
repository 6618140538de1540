"""Errors as plain JSON-able data, for another process or a report."""

from __future__ import annotations

from typing import Any

from streamrec import errors
from streamrec.errors import StreamrecError, field_names
from streamrec.masking import printable

_TYPES: dict[str, type] = {
    **dict.fromkeys(("url", "feature", "setting", "stage", "code"), str),
    "position": dict,
}
"""The types of the fields; those not named here are integers."""

_BY_NAME: dict[str, type[StreamrecError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, StreamrecError)
}


def to_fields(error: BaseException) -> dict[str, Any]:
    """Describe an error as plain JSON-able data, for another process.

    An error from outside the tree travels as a ``StreamrecError`` that names its type.
    """
    if not isinstance(error, StreamrecError):
        return {"type": "StreamrecError", "message": printable(f"{type(error).__name__}: {error}")}
    return {"type": type(error).__name__, "message": error.message, **error.fields()}


def from_fields(fields: dict[str, Any]) -> StreamrecError:
    """Rebuild the error that :func:`to_fields` described.

    The fields may come from an untrusted peer: unknown names and values of a wrong type are
    dropped, and an error of an unknown type becomes a ``StreamrecError``.
    """
    kind = _BY_NAME.get(str(fields.get("type")), StreamrecError)
    facts = {name: _fact(name, fields.get(name)) for name in field_names(kind)}
    return kind(str(fields.get("message", "no message")), **facts)


def _fact(name: str, value: Any) -> Any:
    """Return a field's value, or ``None`` where it has a wrong type or size."""
    # Not by isinstance: True is an int.
    if type(value) is not _TYPES.get(name, int):
        return None
    # Offsets and numbers of records are 64 bits wide everywhere else.
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return None
    return printable(value) if isinstance(value, str) else value
