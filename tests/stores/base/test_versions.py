from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.stores.base.versions import is_strong, same_version, version_of
from streamrec.stores.local.local_store import LocalStore
from streamrec.stores.stored_files import find_files
from tests.stores.conformance import read
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

HTTP_TIME = "Sat, 21 Nov 2026 00:46:45 GMT"


@pytest.mark.parametrize("other", ['"a"', 'W/"a"', "a", ' "a"'])
def test_same_version(other: str) -> None:
    assert same_version('"a"', other)
    assert same_version(other, '"a"')
    assert not same_version(other, '"b"')


@pytest.mark.parametrize(
    ("etag", "strong"), [('"a"', True), ("1712345", True), ('W/"a"', False), ("", False)]
)
def test_weak_etags_name_no_version(etag: str, strong: bool) -> None:
    assert is_strong(etag) is strong


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"etag": '"a"'}, '"a"'),
        ({"etag": "a"}, '"a"'),
        ({"etag": 'W/"a"', "modified": HTTP_TIME}, 'W/"a"'),
        ({"generation": "17", "etag": '"a"'}, "17"),
        ({"generation": 17}, "17"),
        ({"etag": "", "modified": HTTP_TIME, "size": 5}, 'W/"1795222005-5"'),
        ({"etag": '""', "modified": "2026-11-21T00:46:45.678Z", "size": 5}, 'W/"1795222005-5"'),
        ({"modified": "2026-11-21T00:46:45", "size": 5}, 'W/"1795222005-5"'),
        ({"modified": "yesterday", "size": 5}, 'W/"yesterday-5"'),
        ({"size": 5}, 'W/"undated-5"'),
        ({}, None),
    ],
)
def test_versions(said: dict[str, Any], version: str | None) -> None:
    assert version_of(**said) == version


@given(st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters='"')))
def test_quotes_are_no_part_of_a_version(name: str) -> None:
    quoted, bare = version_of(etag=f'"{name}"', size=5), version_of(etag=name, size=5)
    if name.strip().removeprefix("W/") == name:
        assert quoted is not None
        assert bare is not None
        assert same_version(quoted, bare)


@asynchronous
async def test_a_listed_file_has_the_version_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"data")
    (found,) = await asyncio.to_thread(find_files, str(path), {})
    store = LocalStore()
    _, info = await read(store, str(path), 0, 4, etag=found.version)
    assert info.etag == found.version
    await store.aclose()
