"""The status page: one document without scripts, images and fonts from anywhere."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from streamrec.feeder.page.chart import HEIGHT, WIDTH, chart_of
from streamrec.feeder.page.samples import EVERY
from streamrec.feeder.page.view import view_of
from streamrec.feeder.page.words import percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template


def page(snapshot: Mapping[str, Any], *, refreshes: bool = True) -> str:
    """Return the page of a snapshot that has samples.

    Args:
        snapshot: The snapshot; all text in it is escaped and bounded.
        refreshes: True: the browser loads the page again every few seconds.
    """
    view = view_of(snapshot)
    return _template().render(
        view=view,
        lines=[(line, chart_of(line.values)) for line in view.series],
        style=style(),
        refresh=int(EVERY) if refreshes else None,
    )


@cache
def headers() -> dict[str, str]:
    """Return the headers that let a browser load nothing but the page, and keep nothing of it."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def environment(package: str) -> Environment:
    """Return the means to fill in the templates of a package, which may import ``parts.html``."""
    here = PackageLoader("streamrec.feeder.page", "")
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), here]),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["percent"] = percent
    made.globals |= {"width": WIDTH, "height": HEIGHT}
    return made


@cache
def style() -> str:
    """Return the style sheet."""
    return (resources.files("streamrec.feeder.page") / "page.css").read_text()


@cache
def _template() -> Template:
    return environment("streamrec.feeder.page").get_template("page.html")
