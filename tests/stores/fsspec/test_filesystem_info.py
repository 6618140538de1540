from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.stores.base.versions import same_version
from streamrec.stores.fsspec.filesystem_info import size_of, version_of

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"ETag": '"abc-2"', "size": 5, "LastModified": THEN}, '"abc-2"'),
        ({"ETag": 'W/"abc"'}, 'W/"abc"'),
        ({"etag": "0x8D", "content_md5": bytearray(b"\x01\xff")}, '"0x8D"'),
        ({"content_md5": bytearray(b"\x01\xff")}, '"01ff"'),
        ({"generation": "17", "md5Hash": "x"}, '"17"'),
        ({"generation": "17", "etag": "CJ="}, '"17"'),
        ({"blob_id": "b", "lfs": {"size": 3, "sha256": "s"}}, '"s"'),
        ({"blob_id": "b", "lfs": None}, '"b"'),
        ({"sha": "1f"}, '"1f"'),
        ({"mtime": THEN, "size": 5}, '"1767323045.0-5"'),
        ({"mtime": THEN.replace(tzinfo=None), "size": 5}, '"1767323045.0-5"'),
        ({"created": 1767323045.0, "size": 5}, '"1767323045.0-5"'),
        ({"mtime": 1.5, "created": 1.25, "ino": 7, "size": 5}, '"7-1.5-1.25-5"'),
        ({"modify": "20260102030405", "size": 5}, '"20260102030405-5"'),
        ({"CRC": 77, "date_time": (1980, 1, 1, 0, 0, 0), "size": 5}, '"77"'),
        ({"date_time": (1980, 1, 1, 0, 0, 0), "size": 5}, '"(1980, 1, 1, 0, 0, 0)-5"'),
        ({"Last-Modified": "Sat, 21 Nov 2026 00:46:45 GMT", "size": None},
         '"Sat, 21 Nov 2026 00:46:45 GMT-None"'),
        ({"size": 5, "ino": 7}, None),
        ({"ETag": "", "size": 5}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_versions(info: dict[str, Any], version: str | None) -> None:
    assert version_of(info) == version


@pytest.mark.parametrize(
    ("info", "size"),
    [({"size": 5}, 5), ({"size": 5.0}, 5), ({"size": 0}, 0), ({"size": None}, None), ({}, None),
     ({"size": "-"}, None), ({"size": -1}, None), ({"size": float("nan")}, None),
     ({"size": 1e30}, None)],
)  # fmt: skip
def test_sizes(info: dict[str, Any], size: int | None) -> None:
    assert size_of(info) == size


@given(one=st.text(min_size=1), other=st.text(min_size=1))
def test_other_hashes_are_other_versions(one: str, other: str) -> None:
    bare, others = one.strip().strip('"'), other.strip().strip('"')
    same = same_version(
        version_of({"md5": f"-{bare}-"}) or "", version_of({"md5": f"-{others}-"}) or ""
    )
    assert same == (bare == others)
