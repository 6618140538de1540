from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.config.record_choice import Pack, SplitPart, split_parts
from streamrec.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("train", [SplitPart("train")]),
        ("all", [SplitPart("all")]),
        ("train + test-2", [SplitPart("train"), SplitPart("test-2")]),
        ("train[:90%]", [SplitPart("train", None, 90.0, "%")]),
        ("train[12.5%:]", [SplitPart("train", 12.5, None, "%")]),
        ("train[-10:-2]", [SplitPart("train", -10, -2)]),
        ("train[10:20%]", [SplitPart("train", 10.0, 20.0, "%")]),
        ("train[1_000:]", [SplitPart("train", 1000)]),
        ("train[2shard]", [SplitPart("train", 2, 3, "shard")]),
        ("train[-1shard]", [SplitPart("train", -1, 0, "shard")]),
    ],
)
def test_parts(text: str, parts: list[SplitPart]) -> None:
    assert split_parts(text) == parts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the part '', which is not a split; give names with slices"),
        ("train+", "the part ''"),
        ("train[", "the part 'train\\['"),
        ("train[:]", "the slice 'train\\[:\\]', which has no bounds"),
        ("train[1:2:3]", "which has no bounds"),
        ("train[5]", "only a shard can be named alone"),
        ("train[1.5:]", "whose bounds are not numbers"),
        ("train[:101%]", "percents go from -100 to 100"),
        ("all[:10%]", "slices 'all'"),
    ],
)
def test_other_texts_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_parts(text)


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("x", (0, 10)),
        ("x[3:]", (3, 10)),
        ("x[:-3]", (0, 7)),
        ("x[-10:10]", (0, 10)),
        ("x[25%:75%]", (2, 8)),  # 2.5 and 7.5 are rounded to the even number
        ("x[-10%:]", (9, 10)),
        ("x[1shard:]", (4, 10)),
        ("x[:-1shard]", (0, 8)),
        ("x[1shard]", (4, 8)),
        ("x[-1shard]", (8, 10)),
        ("x[:0]", (0, 0)),
    ],
)
def test_records(text: str, records: tuple[int, int]) -> None:
    (part,) = split_parts(text)
    assert part.records([4, 4, 2]) == records


def test_more_records_than_there_are() -> None:
    (part,) = split_parts("x[:11]")
    with pytest.raises(ValueError, match="the split 'x' has only 10 records"):
        part.records([4, 4, 2])


def test_the_defaults_of_a_pack() -> None:
    pack = Pack(8)
    assert (pack.split, pack.bins, pack.overlong) == (False, 16, "truncate")
    assert (pack.documents, pack.padding) == (None, 0)


def test_a_pack_of_numbers_of_numpy() -> None:
    eight: Any = np.int64(8)
    assert repr(Pack({"a": eight}, bins=eight)) == repr(Pack({"a": 8}, bins=8))
    given = Pack(eight, documents=eight, padding=eight)
    assert repr(given) == repr(Pack(8, documents=8, padding=8))


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
def test_a_pack_that_serves(options: Any) -> None:
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
def test_a_pack_that_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Pack(**options)
