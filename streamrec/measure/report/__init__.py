"""The report of a benchmark as an HTML file, and that of two which are compared."""

from streamrec.measure.report.render import render_comparison_html, render_html

__all__ = ["render_comparison_html", "render_html"]
