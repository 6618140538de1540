"""The reports: documents that need nothing from anywhere, with one small script of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.measure.comparison import NOISE
from streamrec.measure.view import view_of
from streamrec.report.charts import WIDTH, chart_of
from streamrec.report.html import environment, policy, read_text

if TYPE_CHECKING:
    from streamrec.measure.comparison import ComparisonView
    from streamrec.measure.figures import Figures

PACKAGE = "streamrec.measure"


def render_html(figures: Figures) -> str:
    """Return the report of a benchmark as one HTML document; all text in it is escaped."""
    view = view_of(figures)
    charts = [(line, chart_of(line.values, WIDTH / len(line.values))) for line in view.series]
    return _render("report.html", view=view, lines=charts)


def render_comparison_html(found: ComparisonView) -> str:
    """Return the report of two benchmarks as one HTML document; all text in it is escaped."""
    return _render("comparison.html", found=found, noise=NOISE)


def _render(template: str, **values: Any) -> str:
    script, style = read_text("copy.js"), read_text("page.css") + read_text("report.css")
    return (
        environment(PACKAGE)
        .get_template(template)
        .render(policy=policy(style=style, script=script), script=script, style=style, **values)
    )
