"""The status page: one document without scripts, images and fonts from anywhere."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from streamrec.feeder.page.samples import EVERY
from streamrec.feeder.page.view import view_of
from streamrec.report.charts import chart_of
from streamrec.report.html import environment, policy, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = "streamrec.feeder.page"


def page(snapshot: Mapping[str, Any], *, refreshes: bool = True) -> str:
    """Return the page of a snapshot that has samples.

    Args:
        snapshot: The snapshot; all text in it is escaped and bounded.
        refreshes: True: the browser loads the page again every few seconds.
    """
    view = view_of(snapshot)
    template = environment(PACKAGE).get_template("page.html")
    return template.render(
        view=view,
        lines=[(line, chart_of(line.values)) for line in view.series],
        style=read_text("page.css"),
        refresh=int(EVERY) if refreshes else None,
    )


@cache
def headers() -> dict[str, str]:
    """Return the headers that let a browser load nothing but the page, and keep nothing of it."""
    return {
        "Content-Security-Policy": (
            f"{policy(style=read_text('page.css'))}; frame-ancestors 'none'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
