from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.plan.order.shard_names import Task
from streamrec.sources.json_lines import ArrayPiece, elements_of, json_pieces, open_json_lines
from streamrec.stores.stored_files import find_files
from tests.sources.tables import NAMES, ROWS
from tests.sources.test_delimited import records_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SPAN = "streamrec.sources.json_lines._SPAN"
PIECE_BYTES = "streamrec.sources.table.PIECE_BYTES"


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
        ('[{"a": 1}\n, 5]', "line 2: after element 0 of the array stands ', 5]', not ']' alone"),
        ('[{"a": 1},]', "line 1: after element 0 of the array stands ',]'"),
        ('[{"a": 1}]]', "stands ']]'"),
        ('[{"a": 1}] {"a": 1}', "stands '] {\"a\": 1}', not ']' alone"),
        ('[{"a": 1}\f]', "stands '\\x0c]'"),
        ('[\n{"a": 1}\n', "line 3: after element 0 of the array the file ends, without a ']'"),
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
    assert "line 4: the text before it must be ',' alone, not '7\\n,'" in str(errors[0])


def test_a_real_table(tmp_path: Path) -> None:
    rows = [dict(zip(NAMES, map(json.loads, row), strict=True)) for row in ROWS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    source = open_json_lines(str(tmp_path))
    floats = {name for name, dtype in source.features.items() if dtype == "float32"}
    expected = [
        {name: float(value) if name in floats else value for name, value in row.items()}
        for row in rows
    ]
    assert records_of(source) == [sr.encode_example(row) for row in expected]


def test_lists_objects_and_nulls(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"a": [1, 2], "b": {"c": "x", "d": None}, "e": 1},
        {"a": [], "b": {"c": None}, "e": 2.5},
        {"a": 3},
    ]
    source = open_json_lines(write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows))))
    assert source.features == {"a": "int64", "b/c": "bytes", "b/d": "bytes", "e": "float32"}
    specs: Any = {
        "a": sr.VarLenFeature("int64"),
        "b/c": sr.FixedLenFeature((), "bytes", "none"),
        "e": sr.FixedLenFeature((), "float32", -1.0),
    }
    found = sr.parse_example(records_of(source), specs)
    assert found["a"].to_list() == [[1, 2], [], [3]]
    assert found["b/c"].to_list() == [b"x", b"none", b"none"]
    assert found["e"].tolist() == [1.0, 2.5, -1.0]


def test_wrong_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    later = ['{"a": 1}'] * 1000 + ['{"b": 1}', '{"b": null}']
    path = tmp_path / "x.jsonl"
    wrong = ["{", "[1]", '{"a": [[1]]}', '{"a": {"x": 1}}', '{"a": 1e99}']
    write(path, "\n".join(['{"a": 1}', "", *wrong, *later]))
    source = open_json_lines(str(path), features={"a": "int64"})
    errors: list[DataError] = []
    assert len(records_of(source, errors.append)) == 1004
    expected = [
        "line 3: its object does not end; give one object a line",
        "line 4: it is not a JSON object; give one",
        "line 5: column 'a' holds a list of lists",
        "line 7: column 'a' holds 1e+99, which is beyond int64",
    ]
    assert len(errors) == len(expected)
    for error, words in zip(errors, expected, strict=True):
        assert f"{path}: {words}" in str(error)
    errors.clear()
    records_of(open_json_lines(str(path)), errors.append)
    assert "line 1008: 'b' is not in the first 1000 rows" in str(errors[-1])


def test_tasks_read_files_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", f'{{"a": {number}}}\n')
    source = open_json_lines(str(tmp_path))
    second = source.part(Task(1, 3))
    assert second is not None
    assert records_of(second) == [sr.encode_example({"a": 1})]
    assert source.part(Task(1, 4)) is None


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl: line 1: it is not JSON: Expecting property"):
        open_json_lines(write(tmp_path / "x.jsonl", '{"a": 1,}\n'))
    with pytest.raises(ConfigError, match="there is no JSON object with values"):
        open_json_lines(write(tmp_path / "x.jsonl", "{}\n"))
    place = write(tmp_path / "y.jsonl", '{"a": 1}\n')
    with pytest.raises(ConfigError, match="--key: 'b' is not a feature"):
        open_json_lines(place, key="b")
    assert open_json_lines(place, features={"late": "int64"}).features == {"late": "int64"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": {"b": 1}, "a/b": 2}', "a/b"),
        ('{"a": {"b": 1, "b": 1}}', "b"),
        ('{"a/b": {"c": 1}, "a": {"b/c": 2}}', "a/b/c"),
    ],
)
def test_two_values_of_one_feature(row: str, name: str, tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", f'{{"a": 1, "a/b": 1, "a/b/c": 1}}\n{row}\n')
    with pytest.raises(DataError, match=f"line 2: two values are named '{name}'"):
        records_of(open_json_lines(place))


def test_the_first_rows_tell_the_types(tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", '{"a": 1}\n{"a": 2.5, "late": "x"}')
    assert open_json_lines(place).features == {"a": "float32", "late": "bytes"}


def test_numbers_beside_texts_keep_the_text_they_have(tmp_path: Path) -> None:
    rows = ['"x"', "1.10", "true", "1e400", "99999999999999999999", "NaN"]
    place = write(tmp_path / "x.jsonl", "".join(f'{{"a": {row}}}\n' for row in rows))
    texts = [row.strip('"') for row in rows]
    assert records_of(open_json_lines(place)) == [sr.encode_example({"a": t}) for t in texts]
    later = '{"a": "x"}\n' * 1000 + '{"a": 1.10}\n'
    place = write(tmp_path / "x.jsonl", later)
    with pytest.raises(DataError, match=r"line 1001: column 'a' holds 1\.1, which is a number"):
        records_of(open_json_lines(place))
    source = open_json_lines(place, types={"a": "bytes"})
    assert records_of(source)[-1] == sr.encode_example({"a": "1.10"})


@pytest.mark.parametrize(("other", "keep"), [("5.0", "int64"), ("[2, 0.5]", "bytes")])
def test_the_advice_takes_the_whole_column(other: str, keep: str, tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", f'{{"a": {other}}}\n{{"a": 16777217}}\n')
    with pytest.raises(DataError, match=f"--type a={keep}, which keeps the digits, or --type a=f"):
        records_of(open_json_lines(place))
    assert len(records_of(open_json_lines(place, types={"a": keep}))) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("1e39", "holds 1e.39, which is beyond float32"),
        ("1e400", "holds a number above 1.8e308, which is beyond float32"),
        ("99999999999999999999", "which is beyond int64"),
        ("-1e-50", "holds -1e-50, which is 0 as float32; .* --type a=bytes, .* --type a=float32"),
        ('"\\ud800"', "half of a character"),
    ],
)
def test_values_that_do_not_fit(value: str, words: str, tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", f'{{"a": {value}}}\n')
    with pytest.raises(DataError, match=f"line 1: column 'a' .*{words}"):
        records_of(open_json_lines(place))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n"a": 1\n}\n', "line 1: its object does not end; give one object a line, or one array"),
        ('{"a": tru}', "line 1: it is not JSON: Expecting value at character 7; correct it"),
        ('{"a": "x}', "it is not JSON: Unterminated string starting at character 7; correct it"),
        ('{"a": "\f"}', "it is not JSON: Invalid control character at character 8; correct it"),
    ],
)
def test_texts_that_are_not_objects(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_json_lines(write(tmp_path / "x.json", text))
    assert words in str(caught.value)


def test_not_a_number_and_infinities_that_the_file_names(tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", '{"a": NaN}\n{"a": -Infinity}\n{"a": null}\n')
    found = sr.parse_example(
        records_of(open_json_lines(place)), {"a": sr.FixedLenFeature((), "float32", 5.0)}
    )
    assert str(found["a"].tolist()) == "[nan, -inf, 5.0]"


def test_a_name_with_half_of_a_character(tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", '{"a": 1}\n{"\\ud800": 1}\n{"a": 2}\n')
    errors: list[DataError] = []
    assert len(records_of(open_json_lines(place), errors.append)) == 2
    assert "line 2: the name '\\ud800' has half of a character" in str(errors[0])


def test_columns_that_are_left_out(tmp_path: Path) -> None:
    place = write(tmp_path / "x.jsonl", '{"a": 1, "b": [[1]]}\n')
    source = open_json_lines(place, drop=["b"])
    assert records_of(source) == [sr.encode_example({"a": 1})]
