from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.masking import (
    HIDDEN,
    MOST,
    Hidden,
    mask_urls,
    masked,
    masked_repr,
    printable,
    without_secrets,
    without_values,
)

URLS = [
    ("/a?b", "/a?b"),
    ("s3://b/a?b#c", "s3://b/a?b#c"),
    (
        "s3://arn:aws:s3:eu-west-1:1:accesspoint/x/a@b",
        "s3://arn:aws:s3:eu-west-1:1:accesspoint/x/a@b",
    ),
    ("http://h/a", "http://h/a"),
    ("https://u:untold@h:1/a?b=untold#untold", "https://h:1/a?..."),
    ("HTTPS://u:un@told@h/a", "HTTPS://h/a"),
    ("https://h/a#untold", "https://h/a"),
    ("https://h/a?...&sig=untold", "https://h/a?..."),
    ("https://h/a?", "https://h/a?..."),
    ("http://[::1/x", "http://[::1/x"),
    ("https://h/a@b", "https://h/a@b"),
    ("ftp://user:untold@host/x", "ftp://host/x"),
    ("zip://x::sftp://user:untold@host/a.zip", "zip://x::sftp://host/a.zip"),
    ("simplecache::https://u:untold@h/a?sig=untold", "simplecache::https://h/a?..."),
    ("s3://key:untold@bucket/x", "s3://bucket/x"),
    ("s3://b/x?X-Amz-Signature=untold&versionId=3", "s3://b/x?X-Amz-Signature=...&versionId=3"),
    ("gist://user:untold@id/x", "gist://id/x"),
    ("tcp://untold@feeder:1/train?untold", "tcp://feeder:1/train?..."),
    ("abfs://container@account/x", "abfs://container@account/x"),
    ("github://org:repo@main/x", "github://org:repo@main/x"),
]


@pytest.mark.parametrize(("url", "expected"), URLS)
def test_urls(url: str, expected: str) -> None:
    assert masked(url) == expected
    assert masked(expected) == expected


@pytest.mark.parametrize(("url", "expected"), URLS)
@pytest.mark.parametrize("text", ["{}: it is wrong", "see '{}', please", "({}) or\n{}."])
def test_urls_in_a_text(text: str, url: str, expected: str) -> None:
    once = printable(text.format(url, url))
    assert "untold" not in once
    assert printable(once) == once
    assert printable(text.format(expected, expected)) == text.format(expected, expected)


def test_a_sentence_stays_as_it_is() -> None:
    text = "is it https://host/a? It holds: a@b, c?d=e\n\tand more."
    assert printable(text) == text


def test_a_query_whose_url_begins_elsewhere() -> None:
    assert printable("GET /a?part=1&sig=untold failed") == "GET /a?part=1&sig=... failed"


@pytest.mark.parametrize("show", [masked, printable])
def test_nothing_steers_the_terminal(show: object) -> None:
    assert callable(show)
    assert show("a\x1b[31mb\r\x07\x9b\u202e\ud800c\x00") == "a?[31mb?????c?"
    assert show("caf\udce9 é 漢") == "caf\\xe9 é 漢"


def test_a_text_may_have_lines_and_a_url_has_one() -> None:
    assert printable("line\n\tline") == "line\n\tline"
    assert masked("s3://b/x\n2026-01-01 forged\t") == "s3://b/x?2026-01-01 forged?"


def test_a_text_has_a_few_kilobytes_at_most() -> None:
    text = printable("https://u:untold@h/ " * (1 << 20))
    assert len(text) < MOST + 100
    assert printable("x" * 8192) == "x" * 8192
    assert printable("x" * 8193) == "x" * 8192 + "... (cut: there are 8193 characters)"
    assert text.endswith(f"... (cut: there are {20 << 20} characters)")
    assert "untold" not in text


@given(st.text())
def test_whatever_is_shown_can_be_shown_again(text: str) -> None:
    assert masked(masked(text)) == masked(text)
    printable(text).encode()


def test_options_are_shown_by_their_names() -> None:
    options = Hidden(key="untold", client_kwargs={"x": "untold"})
    assert repr(options) == str(options) == f"{{'key': {HIDDEN}, 'client_kwargs': {HIDDEN}}}"
    assert options["key"] == "untold"


def test_what_is_no_secret_among_options_is_shown() -> None:
    options = {
        "secret": "untold",
        "endpoint_url": "http://u:untold@h",
        "deep": [{"token": "untold"}],
    }
    assert without_secrets(options) == {
        "secret": HIDDEN,
        "endpoint_url": "http://h",
        "deep": [{"token": HIDDEN}],
    }


def test_a_text_about_options_is_shown_without_their_values() -> None:
    options = {"password": "untold", "port": 21, "user": "me"}
    said = without_values("untold: no me at port 21", options)
    assert said == f"{HIDDEN}: no me at port 21"


def test_values_of_every_shape() -> None:
    url = "https://h/a?untold"
    assert mask_urls({"a": [url, (url, 3)], "b": None}) == {
        "a": ["https://h/a?...", ("https://h/a?...", 3)],
        "b": None,
    }
    assert isinstance(mask_urls(Hidden(key=url)), Hidden)


def test_a_dataclass_shows_its_urls_masked() -> None:
    @dataclass
    class Thing:
        url: str
        size: int = 3
        token: str = field(default="untold", repr=False)

        __repr__ = masked_repr

    assert repr(Thing("https://h/a?untold")).endswith("Thing(url='https://h/a?...', size=3)")
