from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import DataError
from streamrec.sources.json_array import ArrayPiece, elements_of, json_pieces
from streamrec.sources.json_lines import open_json_lines
from streamrec.stores.stored_files import find_files
from tests.sources.test_delimited import records_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPAN = "streamrec.sources.json_array._SPAN"
PIECE_BYTES = "streamrec.sources.text_pieces.PIECE_BYTES"


def elements(path: Path) -> Iterator[tuple[str, bytes]]:
    (file,) = find_files(str(path), {})
    for piece in json_pieces(file):
        assert isinstance(piece, ArrayPiece)
        for place, element in elements_of(piece):
            assert isinstance(element, bytes)
            yield place, element


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('{}[]",\\\né a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    objects=st.lists(st.dictionaries(st.text('"\\{}]a', max_size=3), VALUES), max_size=6),
    indent=st.sampled_from([None, 2]),
    is_ascii=st.booleans(),
    size=st.sampled_from([1, 5, 1 << 20]),
    span=st.sampled_from([1, 3, 1 << 20]),
)
def test_elements_are_those_of_the_array(
    objects: list[Any],
    indent: int | None,
    is_ascii: bool,
    size: int,
    span: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    text = json.dumps(objects, indent=indent, ensure_ascii=is_ascii)
    path.write_text(f"\n {text}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PIECE_BYTES, size)
        patch.setattr(SPAN, span)
        found = list(elements(path))
    assert [json.loads(element) for _, element in found] == objects
    assert [place.partition(",")[0] for place, _ in found] == [
        f"element {number}" for number in range(len(objects))
    ]


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_every_cut_is_noticed(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIECE_BYTES, size)
    text = '[{"a": [1]}, {"a": "]}"}]'
    path = tmp_path / "x.json"
    for end in range(1, len(text)):
        path.write_text(text[:end])
        with pytest.raises(DataError, match="if the file is cut off, write it anew"):
            list(elements(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"a": 1}\n, 5]', "line 2: behind element 0 of the array stands ', 5]', not ']' alone"),
        ('[{"a": 1},]', "line 1: behind element 0 of the array stands ',]'"),
        ('[{"a": 1}]]', "stands ']]'"),
        ('[{"a": 1}] {"a": 1}', "stands '] {\"a\": 1}', not ']' alone"),
        ('[{"a": 1}\f]', "stands '\\x0c]'"),
        ('[\n{"a": 1}\n', "line 3: behind element 0 of the array the file ends, without a ']'"),
        (
            '\n[1, "\xe9"]',
            "line 2: the array '[1, \"\xe9\"]' has no object; give an array of objects",
        ),
        ("[\f]", "the array '[\\x0c]' has no object"),
        ("[" + "1, " * 99 + "1]", "the array '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...' has no"),
        ("[" * 5000, "line 1: element 0 of the array has no end"),
        ('[{"a": 1},\n\n {"a": [2', "line 3: element 1 of the array has no end"),
    ],
)
def test_what_is_not_an_array_of_objects(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        list(elements(path))
    assert words in caught.value.message


@pytest.mark.parametrize("text", ["[]", " [ \n]\r\n"])
def test_an_array_of_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert list(elements(path)) == []


def test_a_table_and_its_wrong_rows(tmp_path: Path) -> None:
    good = '[\n{"a": 1, "b": "[{"},\n{"a": 2.5, "b": "x"}'
    source = open_json_lines(write(tmp_path / "x.json", f"{good}\n]\n"))
    assert source.features == {"a": "float32", "b": "bytes"}
    assert records_of(source) == [
        sr.encode_example({"a": 1.0, "b": "[{"}),
        sr.encode_example({"a": 2.5, "b": "x"}),
    ]
    text = f'{good} 7\n, {{"a": "x", "b": ""}}, [1]]'
    source = open_json_lines(write(tmp_path / "x.json", text), types={"a": "float32"})
    errors: list[DataError] = []
    assert len(records_of(source, errors.append)) == 2
    assert [error.message.partition(":")[0] for error in errors] == [
        "element 2, line 4", "element 2, line 4", "element 3, line 4",
    ]  # fmt: skip
    assert "line 4: before it stands '7\\n,', not ',' alone" in str(errors[0])
