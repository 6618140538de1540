from __future__ import annotations

import pytest

from streamrec.formats.examples.faults import MOST_COMPARED, _nearest


@pytest.mark.parametrize(
    ("there", "wanted", "words"),
    [
        (["labels", "image"], ["label"], " (did you mean 'labels'?)"),
        (["labels", "image"], ["label", "labels"], " (it has 'image', 'labels')"),
        (["x"], ["label"], " (it has 'x')"),
        ([], ["label"], " (it has none)"),
        (list("jihgfedcba"), ["label"], f" (it has {', '.join(map(repr, 'abcdefgh'))})"),
    ],
)
def test_a_name_that_another_spec_takes_is_not_meant(
    there: list[str], wanted: list[str], words: str
) -> None:
    assert _nearest("label", dict.fromkeys(there), wanted) == words


def test_so_many_names_are_compared() -> None:
    names = [f"{number:05}" for number in range(MOST_COMPARED)]
    assert _nearest("labels", dict.fromkeys([*names[1:], "label"]), []) == (
        " (did you mean 'label'?)"
    )
    assert "did you mean" not in _nearest("labels", dict.fromkeys([*names, "label"]), [])
