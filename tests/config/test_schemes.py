from __future__ import annotations

from importlib import import_module

import pytest

from streamrec.config.schemes import SCHEMES, is_own, line_of, prefix_of, prefixes_in


@pytest.mark.parametrize(
    ("url", "prefix", "name"),
    [
        ("a/b.tfrecord", "file", "file"),
        ("", "file", "file"),
        ("FILE:///a", "file", "file"),
        ("s3a://b/x://y", "s3a", "s3"),
        ("GS://b/x", "gs", "gcs"),
        ("https://h/x::y", "https", "http"),
        ("simplecache::s3://b/x", "simplecache", "simplecache"),
        ("unheard://b/x", "unheard", "unheard"),
    ],
)
def test_the_line_of_a_url(url: str, prefix: str, name: str) -> None:
    assert (prefix_of(url), line_of(url).name) == (prefix, name)


def test_only_stores_of_ours_keep_two_colons_in_names() -> None:
    own = {prefix for prefix in SCHEMES if is_own(f"{prefix}://x")}
    assert own == {"file", "memory", "http", "https", "s3", "s3a", "gs", "gcs"}


def test_the_links_of_a_chain() -> None:
    assert prefixes_in("simplecache::zip://x::S3://b/a.zip") == ["zip", "s3"]
    assert prefixes_in("/a/b") == []


@pytest.mark.parametrize("prefix", SCHEMES)
def test_each_line_names_what_there_is(prefix: str) -> None:
    line = SCHEMES[prefix]
    module, _, name = line.store.rpartition(".")
    assert hasattr(import_module(f"streamrec.stores.{module}"), name)
    if line.errors:
        assert hasattr(import_module(f"streamrec.stores.{line.errors}"), "own_meaning")
    assert SCHEMES.get(line.written or prefix) is line
