from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.measure.counted import counted_range
from streamrec.stores.source_text import expand


@given(st.integers(0, 3000), st.integers(1, 50), st.sampled_from([0, 5]), st.sampled_from("-a7"))
def test_it_is_expanded_to_the_same_shards(start: int, more: int, width: int, end: str) -> None:
    names = [f"s3://b/v2/part{end}-{n:0{width}}.rec" for n in range(start, start + more + 1)]
    found = counted_range(sorted(names))
    assert found is not None
    assert expand(found) == names


def test_the_usual_names() -> None:
    names = expand("gs://b/train@128")
    assert counted_range(names) == "gs://b/train-{00000..00127}-of-00128"


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["s3://b/part-0"],
        ["s3://b/part-0", "s3://b/part-2"],
        ["s3://b/part-a", "s3://b/part-b"],
        ["s3://b/part-0", "s3://b/other-1"],
        ["s3://b/part-00", "s3://b/part-1"],
        ["s3://b/[x]-0", "s3://b/[x]-1"],
        ["s3://b/{5..1}-0", "s3://b/{5..1}-1"],
        ["https://user:secret@host/part-0", "https://user:secret@host/part-1"],
    ],
)
def test_other_names_have_none(names: list[str]) -> None:
    assert counted_range(names) is None
