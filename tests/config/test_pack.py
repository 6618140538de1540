from __future__ import annotations

from typing import Any

import pytest

from streamrec.config.pack import Pack
from streamrec.errors import ConfigError


def test_the_defaults() -> None:
    pack = Pack(8)
    assert (pack.split, pack.bins, pack.overlong) == (False, 16, "truncate")
    assert (pack.documents, pack.padding) == (None, 0)


@pytest.mark.parametrize(
    ("pack", "size"),
    [
        (Pack(8), 2 * 16 * 8 * 16),
        (Pack(8, bins=1), 2 * 8 * 16),
        (Pack(8, split=True), 2 * 8 * 16),
        (Pack({"a": 8, "b": 4}, bins=3), 2 * 3 * 12 * 16),
    ],
)
def test_the_bytes_of_packs(pack: Pack, size: int) -> None:
    """Those being filled, and as many that are ready: 16 bytes for each value."""
    assert pack.held_bytes == size


@pytest.mark.parametrize(
    "options",
    [
        {"length": 1, "bins": 1, "documents": 1},
        {"length": {"a": 1, "b": 2}},
        {"length": {"a": 2, "b": 2}, "split": True},
        {"length": 2, "split": True, "overlong": "drop"},
    ],
)
def test_what_serves(options: Any) -> None:
    Pack(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "integers from 1 up"),
        ({"length": -1}, "integers from 1 up"),
        ({"length": 1.5}, "integers from 1 up"),
        ({"length": {}}, "integers from 1 up"),
        ({"length": {"a": 1, "b": 0}}, "integers from 1 up"),
        ({"length": 1, "bins": 0}, "integers from 1 up"),
        ({"length": 1, "documents": 0}, "integers from 1 up"),
        ({"length": 1, "overlong": "cut"}, "overlong of a Pack is 'cut'"),
        ({"length": 1, "split": True, "documents": 2}, "one length for all features"),
        ({"length": {"a": 1, "b": 2}, "split": True}, "one length for all features"),
    ],
)
def test_what_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Pack(**options)
