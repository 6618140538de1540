from __future__ import annotations

from streamrec.values.notebook import html_table


def test_all_text_is_escaped() -> None:
    table = html_table("<b>", {"<name>": "a & b"})
    assert "&lt;b&gt;" in table
    assert "&lt;name&gt;" in table
    assert "a &amp; b" in table
    assert "<b>" not in table
