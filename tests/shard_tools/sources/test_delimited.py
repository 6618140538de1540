from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.plan.shard_names import Task
from streamrec.shard_tools.sources.delimited import open_delimited
from tests.shard_tools.sources.tables import NAMES, ROWS, TABLE

if TYPE_CHECKING:
    from pathlib import Path


def fail(error: DataError) -> None:
    raise error


def records_of(source: Any, refuse: Any = fail) -> list[bytes]:
    blocks = [source.read(piece, refuse) for piece in source.pieces()]
    return [record for block in blocks for record in block.records.to_list()]


def test_a_real_table() -> None:
    source = open_delimited(str(TABLE))
    assert sorted(source.features) == sorted(NAMES)
    kinds: dict[str, Any] = dict(source.features)
    specs: Any = {name: sr.FixedLenFeature((), dtype) for name, dtype in kinds.items()}
    found = sr.parse_example(records_of(source), specs)
    for place, name in enumerate(NAMES):
        texts = [row[place] for row in ROWS]
        column = found[name]
        if source.features[name] == "bytes":
            assert column.to_list() == [text.encode() for text in texts]
        else:
            np.testing.assert_array_equal(column, np.array(texts, float).astype(column.dtype))
    assert source.total == TABLE.stat().st_size


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_quotes_nulls_and_types(tmp_path: Path) -> None:
    place = write(tmp_path / "x.csv", 'a,b,c,d\n1,"x, ""y""\nz",,NA\n,,99999999999999999999,2.5\n')
    source = open_delimited(place, null=["NA"])
    assert source.features == {"a": "int64", "b": "bytes", "c": "bytes", "d": "float32"}
    assert records_of(source) == [
        sr.encode_example({"a": 1, "b": 'x, "y"\nz', "c": b""}),
        sr.encode_example({"b": b"", "c": "99999999999999999999", "d": 2.5}),
    ]


def test_chosen_columns_and_a_key(tmp_path: Path) -> None:
    place = write(tmp_path / "x.tsv", "a\tb\n1\t2\n")
    source = open_delimited(place, features={"b": "float32"}, key="b")
    (piece,) = source.pieces()
    block = source.read(piece, fail)
    assert list(block.records) == [sr.encode_example({"b": 2.0})]
    assert block.keys == [b"2.0"]
    with pytest.raises(ConfigError, match="--key: 'a' is no feature; choose among b"):
        open_delimited(place, features={"b": None}, key="a")
    with pytest.raises(ConfigError, match="'ab' is not one character"):
        open_delimited(place, delimiter="ab")


def test_wrong_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = b'a,b\n1,2\n\n"3\n",4,5\nx"y,7\n"x"y,7\n8,\xff\n' + b"9,9\n" * 1000 + b"x,10\n"
    path.write_bytes(rows)
    source = open_delimited(str(path), features={"a": "int64", "b": None})
    errors: list[DataError] = []
    assert len(records_of(source, errors.append)) == 1001
    expected = [
        "line 4: the row has 3 values, but the first row names 2",
        "line 6: column 'a' holds 'x\"y', which is no int64",
        "line 7: double quotes open here and do not close well (',' expected after '\"'); correct",
        "line 8: there are bytes that are not UTF-8; convert",
        "line 1009: column 'a' holds 'x', which is no int64",
    ]
    assert len(errors) == len(expected)
    for error, words in zip(errors, expected, strict=True):
        assert f"{path}: {words}" in str(error)


ROWS_OF_QUOTES = [b'%d,"row ""%d"",\nof two lines"\n' % (n, n) for n in range(5000)]


@pytest.mark.parametrize("stray", [b'7,"open', b'7,"open ""', b'"', b'"7"x,open', b'7,"a,b,c"d'])
def test_a_quote_that_does_not_close_costs_one_row(
    tmp_path: Path, stray: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever pieces are cut, and however much the quote would swallow."""
    monkeypatch.setattr("streamrec.shard_tools.sources.text_pieces.PIECE_BYTES", 5000)
    monkeypatch.setattr("streamrec.shard_tools.sources.row_ends.MOST_BYTES", 20_000)
    path = tmp_path / "x.csv"
    plain = [b"%d,plain\n" % n for n in range(5000)]
    path.write_bytes(b"".join([b"a,b\n", *ROWS_OF_QUOTES[:1000], stray + b"\n", *plain]))
    source = open_delimited(str(path))
    with pytest.raises(DataError, match=r"x\.csv: line 2002: double quotes open here and do not"):
        records_of(source)
    errors: list[DataError] = []
    found = records_of(source, errors.append)
    assert [error.message.partition(":")[0] for error in errors] == ["line 2002"]
    texts = [sr.encode_example({"a": n, "b": f'row "{n}",\nof two lines'}) for n in range(1000)]
    assert found == texts + [sr.encode_example({"a": n, "b": "plain"}) for n in range(5000)]


def test_quotes_in_values_are_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.shard_tools.sources.text_pieces.PIECE_BYTES", 300)
    path = tmp_path / "x.csv"
    pipes = [b'%d,5" pipe\n' % n for n in range(999)]
    rows = [row for pair in zip(pipes, ROWS_OF_QUOTES[:999], strict=True) for row in pair]
    path.write_bytes(b"".join([b"a,b\n", *rows]))
    source = open_delimited(str(path))
    assert len(records_of(source)) == 2 * 999
    assert len(list(source.pieces())) > 99


def test_files_of_one_table(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "a\n1\n")
    write(tmp_path / "2.csv", "a\n2.5\n")
    source = open_delimited(str(tmp_path))
    assert records_of(source) == [sr.encode_example({"a": value}) for value in (1.0, 2.5)]
    write(tmp_path / "3.csv", "b\n1\n")
    with pytest.raises(ConfigError, match=r"3\.csv: its columns are b, but those of .* are a"):
        open_delimited(str(tmp_path))


def test_tasks_read_files_of_their_own(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.csv", f"a\n{number}\n{number + 0.5}\n")
    source = open_delimited(str(tmp_path))
    parts = [source.part(Task(number, 2)) for number in range(2)]
    assert [[file.name for file in part.files] for part in parts if part] == [
        ["0.csv", "1.csv"],
        ["2.csv", "3.csv", "4.csv"],
    ]
    assert [r for part in parts if part for r in records_of(part)] == records_of(source)
    assert source.part(Task(0, 6)) is None


@pytest.mark.parametrize("text", ["", "a,a\n1,2\n", "a,\n1,2\n"])
def test_names_are_needed(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the first row must name the columns"):
        open_delimited(write(tmp_path / "x.csv", text))


def test_no_rows(tmp_path: Path) -> None:
    assert records_of(open_delimited(write(tmp_path / "x.csv", "a,b\n"))) == []
