from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest

from streamrec.feeder.page.render import headers, page
from streamrec.feeder.page.samples import MOST
from streamrec.feeder.page.view import MOST_ROWS
from tests.documents import HOSTILE, Tags
from tests.feeder.page.snapshots import sample, snapshot


def hostile() -> dict[str, Any]:
    error = {
        "time": 0.0,
        "type": HOSTILE,
        "message": HOSTILE * 1000,
        "dataset": HOSTILE,
        "rank": 1,
        "peer": HOSTILE,
    }
    found = snapshot(HOSTILE, errors=[error] * 20, obstacle=HOSTILE)
    found["datasets"][HOSTILE] |= {"state": "failed", "problem": HOSTILE * 1000}
    return found


def test_foreign_text_stays_text() -> None:
    document = page(hostile())
    tags = Tags(document)
    assert not {"script", "iframe", "img", "object"} & {tag for tag, _ in tags.found}
    assert document.count("<style>") == document.count("</style>") == 1
    assert "<script>alert(1)</script>'\"{{ 7 * 7 }}?]0;x?" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)
    assert len(document) < 100_000


@pytest.mark.parametrize("refreshes", [True, False])
def test_nothing_runs_and_nothing_is_loaded(refreshes: bool) -> None:
    found = snapshot(samples=[sample(), sample()])
    for tag, attributes in Tags(page(found, refreshes=refreshes)).found:
        assert tag not in ("script", "img", "iframe", "form")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert "src" not in attributes
        href = attributes.get("href") or ""
        assert href.startswith("data:image/svg+xml,") or re.fullmatch(r"[a-z.?]*", href)
    refresh = '<meta http-equiv="refresh" content="5">'
    assert (refresh in page(found, refreshes=refreshes)) == refreshes


def test_the_policy_allows_the_page_s_own_style_alone() -> None:
    (style,) = re.findall(r"<style>(.*)</style>", page(snapshot()), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = headers()["Content-Security-Policy"]
    assert "default-src 'none';" in policy
    assert f"style-src 'sha256-{digest}';" in policy
    assert "url(" not in style
    assert "@import" not in style


def test_a_feeder_that_has_just_started() -> None:
    text = Tags(page(snapshot(clients=0))).text
    assert "Nobody reads now." in text
    assert "None: no client reads now." in text
    assert "The first sample is taken within seconds." in text
    assert "None was sent to a client since the start." in text


def test_a_full_page() -> None:
    samples = [sample(waits={"first_byte": 3.0, "body": 1.0}) for _ in range(MOST)]
    budget = {"used": 1 << 20, "lent": 8 << 20, "limit": 4 << 20}
    document = page(snapshot(samples=samples, clients=MOST_ROWS + 1, budget=budget))
    text = Tags(document).text
    assert (
        "longest for the first bytes of each read: the latency of the store, or of the disk."
        in text
    )
    assert "first_byte 75%, body 25%" in text
    assert "and 1 more subscriptions" in text
    assert len(document) < 200_000
