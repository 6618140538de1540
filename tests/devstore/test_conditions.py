from __future__ import annotations

from email.utils import formatdate

import pytest
from multidict import CIMultiDict

from streamrec.devstore.conditions import evaluate, range_still_holds

MODIFIED = 1_700_000_000.75
BEFORE, AT, AFTER = (formatdate(int(MODIFIED) + shift, usegmt=True) for shift in (-60, 0, 60))


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ({}, "proceed"),
        ({"If-Match": '"aa"'}, "proceed"),
        ({"if-match": "aa"}, "proceed"),
        ({"If-Match": '"bb", "aa"'}, "proceed"),
        ({"If-Match": "*"}, "proceed"),
        ({"If-Match": '"bb"'}, "failed"),
        ({"If-None-Match": '"aa"'}, "not modified"),
        ({"If-None-Match": 'W/"aa"'}, "not modified"),
        ({"If-None-Match": "*"}, "not modified"),
        ({"If-None-Match": '"bb"'}, "proceed"),
        ({"If-Unmodified-Since": BEFORE}, "failed"),
        ({"If-Unmodified-Since": AT}, "proceed"),
        ({"If-Unmodified-Since": AFTER}, "proceed"),
        ({"If-Modified-Since": BEFORE}, "proceed"),
        ({"If-Modified-Since": AT}, "not modified"),
        ({"If-Modified-Since": AFTER}, "not modified"),
        ({"If-Modified-Since": "yesterday"}, "proceed"),
        ({"If-Unmodified-Since": "yesterday"}, "proceed"),
    ],
)
def test_one_precondition(headers: dict[str, str], verdict: str) -> None:
    assert evaluate(CIMultiDict(headers), "aa", MODIFIED) == verdict


def test_tags_go_before_dates() -> None:
    both = CIMultiDict({"If-Match": '"aa"', "If-Unmodified-Since": BEFORE})
    assert evaluate(both, "aa", MODIFIED) == "proceed"
    none = CIMultiDict({"If-None-Match": '"bb"', "If-Modified-Since": AFTER})
    assert evaluate(none, "aa", MODIFIED) == "proceed"


def test_match_goes_before_none_match() -> None:
    both = CIMultiDict({"If-Match": '"bb"', "If-None-Match": '"aa"'})
    assert evaluate(both, "aa", MODIFIED) == "failed"


def test_a_missing_object_matches_nothing() -> None:
    assert evaluate(CIMultiDict({"If-Match": "*"}), None, 0) == "failed"
    assert evaluate(CIMultiDict({"If-None-Match": "*"}), None, 0) == "proceed"


@pytest.mark.parametrize(
    ("value", "holds"),
    [('"aa"', True), ('"bb"', False), ('W/"aa"', False), (AT, True), (BEFORE, False)],
)
def test_if_range(value: str, holds: bool) -> None:
    assert range_still_holds(CIMultiDict({"If-Range": value}), "aa", MODIFIED) is holds


def test_without_if_range_the_range_holds() -> None:
    assert range_still_holds(CIMultiDict(), "aa", MODIFIED)
