"""The reports: documents that need nothing from anywhere, with one small script of their own."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from streamrec.feeder.page.chart import WIDTH, chart_of
from streamrec.feeder.page.render import environment, style
from streamrec.measure.comparison import NOISE
from streamrec.measure.view import view_of

if TYPE_CHECKING:
    from jinja2 import Environment

    from streamrec.measure.comparison import ComparisonView
    from streamrec.measure.figures import Figures

PACKAGE = "streamrec.measure.report"


def render_html(figures: Figures) -> str:
    """Return the report of a benchmark as one HTML document; all text in it is escaped."""
    view = view_of(figures)
    charts = [(line, chart_of(line.values, WIDTH / len(line.values))) for line in view.series]
    return _rendered("report.html", view=view, lines=charts)


def render_comparison_html(found: ComparisonView) -> str:
    """Return the report of two benchmarks as one HTML document; all text in it is escaped."""
    return _rendered("comparison.html", found=found, noise=NOISE)


def _rendered(template: str, **values: Any) -> str:
    script, sheet = _file("copy.js"), style() + _file("report.css")
    return (
        _environment()
        .get_template(template)
        .render(policy=_policy(script, sheet), script=script, style=sheet, **values)
    )


def _policy(script: str, sheet: str) -> str:
    """Return the policy that lets a browser run and load nothing but the document's own parts."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(sheet)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    return environment(PACKAGE)


@cache
def _file(name: str) -> str:
    return (resources.files(PACKAGE) / name).read_text()
