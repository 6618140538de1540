from __future__ import annotations

import base64
import hashlib

import pytest
from jinja2 import UndefinedError

from streamrec.report.html import environment, policy, read_text


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_a_policy_allows_the_document_s_own_parts_alone() -> None:
    both = policy(style="a {}", script="b()")
    assert f"style-src {digest('a {}')};" in both
    assert f"script-src {digest('b()')};" in both
    assert both.startswith("default-src 'none';")
    assert "script-src" not in policy(style="a {}")


def test_a_template_escapes_and_shares_the_parts() -> None:
    template = environment("streamrec.report").from_string(
        '{% from "parts.html" import bar %}{{ bar(part) }}{{ text }} {{ part|percent }}'
    )
    filled = template.render(part=0.25, text="<b>")
    assert 'width="25.0"' in filled
    assert filled.endswith("&lt;b&gt; 25%")
    with pytest.raises(UndefinedError):
        template.render(part=0.25)


@pytest.mark.parametrize("name", ["page.css", "report.css", "copy.js"])
def test_a_style_holds_nothing_that_ends_its_element(name: str) -> None:
    assert "</" not in read_text(name)
