from __future__ import annotations

import pytest

from streamrec.config.record_choice import SplitPart, split_parts


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
