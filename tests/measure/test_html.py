from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from streamrec.measure.comparison import compare
from streamrec.measure.html import render_comparison_html, render_html
from tests.documents import HOSTILE, Tags
from tests.measure.samples import bare, extreme, figures, hostile, improved

if TYPE_CHECKING:
    from streamrec.measure.figures import Figures


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_verdict_is_on_top() -> None:
    text = Tags(render_html(figures())).text
    places = [
        text.index(words)
        for words in (
            "The latency of the store holds this job back.",
            "480.0 MB/s",
            "x 2.4",
            "By Little's law",
            "Batches waited for a first byte during 55%",
            'memory_budget = "1GiB"',
            "Where the time goes",
            "What each resource allows",
            "Range size and requests at a time",
            "Bytes",
            "Time to the first byte",
            "Processing, on one core",
            "The job",
            "Costs",
            "Spent of the budget",
            "Machine",
            "Left out",
        )
    ]
    assert places == sorted(places)


def test_foreign_text_stays_text() -> None:
    document = render_html(hostile(HOSTILE))
    tags = Tags(document)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert not {"iframe", "img", "object"} & {tag for tag, _ in tags.found}
    assert document.count("<style>") == document.count("</style>") == 1
    assert "<script>alert(1)</script>'\"{{ 7 * 7 }}?]0;x?" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)
    assert not any(name.startswith("on") for _, attrs in tags.found for name in attrs)


def test_secrets_are_left_out() -> None:
    document = render_html(hostile("https://me:password@host/x?X-Amz-Signature=abc"))
    assert "password" not in document
    assert "abc" not in document


@pytest.mark.parametrize("what", [figures(), bare()], ids=["whole", "bare"])
def test_nothing_is_loaded_and_only_our_script_runs(what: Figures) -> None:
    document = render_html(what)
    (script,) = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", document, re.DOTALL)
    tags = Tags(document)
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in tags.found
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert "default-src 'none';" in policy
    assert f"script-src {digest(script)};" in policy
    assert f"style-src {digest(style)};" in policy
    for tag, attributes in tags.found:
        assert tag not in ("img", "iframe", "form", "a")
        assert "src" not in attributes
        assert "style" not in attributes
        assert (attributes.get("href") or "data:image/svg+xml,").startswith("data:image/svg+xml,")
    assert "url(" not in style
    assert "@import" not in style


def test_a_report_of_little_says_what_is_missing() -> None:
    text = Tags(render_html(bare())).text
    assert "No verdict: too little was measured." in text
    assert "all of it: interrupted" in text
    for title in ("Where the time goes", "Costs", "Processing"):
        assert title not in text


@pytest.mark.parametrize("number", [0.0, -1.0, 5e-324, 1e300])
def test_no_number_is_too_strange_to_be_shown(number: float) -> None:
    strange = extreme(number)
    for document in (render_html(strange), compared(strange, figures())):
        assert "</html>" in document
    assert "</html>" in compared(figures(), strange)


def test_a_report_is_small() -> None:
    assert len(render_html(figures())) < 100_000


def compared(one: Figures, other: Figures, name: str = "after") -> str:
    return render_comparison_html(compare(one, other, ("before", name)))


def test_a_comparison_begins_with_what_changed() -> None:
    text = Tags(compared(figures(), improved())).text
    places = [
        text.index(words)
        for words in (
            "The job is faster in after: 467.4 MB/s became 1.1 GB/s.",
            "The latency of the store holds this job back.",
            "The link holds this job back.",
            "Rates and times",
            "x 2.32",
            "▲ better",
            "Where the time goes",
            "Ratios by range size",
            "What differs",
            "A difference is noise where",
        )
    ]
    assert places == sorted(places)


def test_a_comparison_of_little() -> None:
    text = Tags(compared(bare(), bare())).text
    assert "The two have no rate in common." in text
    assert "Neither the machine nor the settings." in text


def test_foreign_text_stays_text_in_a_comparison() -> None:
    document = compared(figures(), hostile(HOSTILE), HOSTILE)
    tags = Tags(document)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert "<script>alert(1)</script>" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)
