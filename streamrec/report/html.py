"""HTML documents that need nothing from anywhere: templates, styles, and what a browser may do."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from streamrec.report.charts import HEIGHT, WIDTH
from streamrec.report.words import percent

PACKAGE: Final = "streamrec.report"


@cache
def environment(package: str) -> Environment:
    """Return the means to fill in the templates of a package, which may import ``parts.html``."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader(PACKAGE, "")]),
        autoescape=True,
        # A name that a template misspells is an error, and not an empty place on the page.
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["percent"] = percent
    templates.globals |= {"width": WIDTH, "height": HEIGHT}
    return templates


def policy(*, style: str, script: str = "") -> str:
    """Return the policy that lets a browser run and load nothing but a document's own parts."""
    # Digests and not unsafe-inline: text that slipped through would still not run.
    scripts = f"script-src '{_digest(script)}'; " if script else ""
    return (
        f"default-src 'none'; {scripts}style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def read_text(name: str) -> str:
    """Return a file of this package: a style sheet, or a script."""
    return (resources.files(PACKAGE) / name).read_text()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
