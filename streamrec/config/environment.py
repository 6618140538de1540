"""Environment variables that override settings.

``PREFIX_GRACE`` overrides ``grace``, ``PREFIX_TLS__CERT`` the setting ``cert`` of ``tls``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, get_args, get_origin

from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVER_PREFIX = "STREAMREC_SERVER_"
"""The beginning of the names of the variables that override the daemon's ``[server]``."""

_OF_A_SERVICE = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?")
"""The ends of the variables that Kubernetes sets in every pod beside a Service: one that is named
like the prefix (``streamrec-server``) must not stop the daemon."""


def overrides(
    model: type[Any], values: Any, variables: Mapping[str, str], prefix: str
) -> tuple[Any, dict[tuple[str, ...], str], list[str]]:
    """Put environment variables over the values of a table.

    Args:
        model: The settings class of the table.
        values: The values; they are not changed.
        variables: All environment variables.
        prefix: The beginning of the names of those that are meant.

    Returns:
        The new values; the variables' names by the paths of what they set; and a sentence for each
        variable that sets nothing.
    """
    changed, names, faults = values, {}, []
    for variable in sorted(variables):
        name = variable.removeprefix(prefix)
        # Without the prefix it is none of ours.
        if name == variable or _OF_A_SERVICE.fullmatch(name):
            continue
        path = tuple(name.lower().split("__"))
        annotation = _annotation(model, path)
        if annotation is None:
            settings = {prefix + setting.upper() for setting in model.model_fields}
            faults.append(
                f"the environment variable {variable} names no setting{nearest(variable, settings)}"
            )
            continue
        changed = _place(changed, path, _plain(annotation, variables[variable]))
        names[path] = variable
    return changed, names, faults


def _annotation(kind: Any, path: tuple[str, ...]) -> Any:
    """Return the type of the setting at a path; ``None``: there is none."""
    if not path:
        return kind
    for table in _members(kind):
        fields = getattr(table, "model_fields", None)
        if fields is not None:
            field = fields.get(path[0])
            return None if field is None else _annotation(field.annotation, path[1:])
        # A table whose keys are names of the user's.
        if get_origin(table) is dict:
            return _annotation(get_args(table)[1], path[1:])
    return None


def _members(kind: Any) -> tuple[Any, ...]:
    """Return a type, or those of a union."""
    return (kind,) if isinstance(kind, type) or get_origin(kind) is dict else get_args(kind)


def _plain(annotation: Any, text: str) -> Any:
    """Return a variable's value as a file would have it; wrong ones are for the validation."""
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(annotation)
    for value in _readings(text):
        try:
            # By the setting's own type: "8" is a number for one setting and a text for another.
            adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError:
            continue
        return value
    return text


def _readings(text: str) -> Iterator[Any]:
    """Yield what a text may mean: JSON, the text itself, or a list with commas."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    # A text stands for itself, since its quotes may be meant; null is no value of a setting.
    if value is not None and not isinstance(value, str):
        yield value
    yield text
    yield [part.strip() for part in text.split(",")]


def _place(values: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a copy of tables with a value at a path; what is not a table stays as it is."""
    if not path:
        return value
    if not isinstance(values, dict):
        return values
    inner = values.get(path[0], {})
    return {**values, path[0]: _place(inner, path[1:], value)}
