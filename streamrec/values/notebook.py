"""Tables for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return an HTML table of two columns under a title; all text is escaped."""
    from html import (
        escape,  # a large table of entities, which programs outside notebooks do without
    )

    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{body}</tbody></table>"
