from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.plan.order.shard_names import Task
from streamrec.sources import delimited, table
from streamrec.sources.delimited import RowEnds, open_delimited
from streamrec.sources.source import files_of
from tests.sources.tables import NAMES, ROWS, TABLE

if TYPE_CHECKING:
    from pathlib import Path


@given(
    rows=st.lists(st.lists(st.text('a", \n', max_size=5), min_size=1, max_size=3), max_size=9),
    stray=st.lists(st.text('a"|', max_size=5).map("a".__add__), max_size=3),
    size=st.integers(1, 20),
    delimiter=st.sampled_from([",", "¦"]),
)
def test_pieces_are_whole_rows(
    rows: list[list[str]],
    stray: list[str],
    size: int,
    delimiter: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = io.StringIO(newline="")
    # Quotes inside of a value are characters like others.
    text.writelines(f"{value}\n" for value in stray)
    csv.writer(text, lineterminator="\n", delimiter=delimiter).writerows(rows)
    path = tmp_path_factory.mktemp("d") / "x.csv"
    path.write_bytes(text.getvalue().encode())
    (file,) = files_of(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "PIECE_BYTES", size)
        pieces = list(table.text_pieces(file, end_of=RowEnds(delimiter)))
    parsed, line = [], 1
    for piece in pieces:
        assert piece.line == line
        line += piece.data.count(b"\n")
        read = io.StringIO(piece.data.decode(), newline="")
        parsed += list(csv.reader(read, delimiter=delimiter))
    read = io.StringIO(text.getvalue(), newline="")
    assert parsed == list(csv.reader(read, delimiter=delimiter))


def test_quotes_that_are_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PIECE_BYTES", 10)
    monkeypatch.setattr(delimited, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b'a\nb\n"c' + b"\n" * 100)
    (file,) = files_of(str(path))
    pieces = [piece.data for piece in table.text_pieces(file, end_of=RowEnds(","))]
    assert pieces[0] == b"a\nb\n"
    assert len(pieces[1]) > 50
    assert set(map(len, pieces[2:-1])) == {10}
    assert b"".join(pieces) == path.read_bytes()


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
    place = write(tmp_path / "x.csv", 'a,b,c,d\n1,"x, ""y""\nz",,NA\n,,007,2.5\n')
    source = open_delimited(place, null=["NA"])
    assert source.features == {"a": "int64", "b": "bytes", "c": "bytes", "d": "float32"}
    assert records_of(source) == [
        sr.encode_example({"a": 1, "b": 'x, "y"\nz', "c": b""}),
        sr.encode_example({"b": b"", "c": "007", "d": 2.5}),
    ]


def test_chosen_columns_and_a_key(tmp_path: Path) -> None:
    place = write(tmp_path / "x.tsv", "a\tb\n1\t2\n")
    source = open_delimited(place, features={"b": "float32"}, key="b")
    (piece,) = source.pieces()
    block = source.read(piece, fail)
    assert list(block.records) == [sr.encode_example({"b": 2.0})]
    assert block.keys == [b"2.0"]
    with pytest.raises(ConfigError, match="--key: 'a' is not a feature; choose among b"):
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
        "line 6: column 'a' holds 'x\"y', which is not int64",
        "line 7: double quotes open here and do not close well (',' expected after '\"'); correct",
        "line 8: there are bytes that are not UTF-8; convert",
        "line 1009: column 'a' holds 'x', which is not int64",
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
    monkeypatch.setattr("streamrec.sources.table.PIECE_BYTES", 5000)
    monkeypatch.setattr("streamrec.sources.delimited.MOST_BYTES", 20_000)
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
    monkeypatch.setattr("streamrec.sources.table.PIECE_BYTES", 300)
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the first row must name the columns"),
        ("a,b,a\n1,2,3\n", "columns 1 and 3 are both named 'a'"),
        ("a,\n1,2\n", "column 2 has no name"),
        (",index\n1,2\n", "column 1 has no name"),
        ('"a,b\n', "line 1, which must name the columns: double quotes open here"),
    ],
)
def test_names_are_needed(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        open_delimited(write(tmp_path / "x.csv", text))


def test_no_rows(tmp_path: Path) -> None:
    assert records_of(open_delimited(write(tmp_path / "x.csv", "a,b\n"))) == []


def test_the_first_rows_tell_the_types(tmp_path: Path) -> None:
    """However many bytes they have, and where no line feed ends the last one."""
    place = write(tmp_path / "x.csv", "a,b\n1,Ada\n2.5,Alan")
    assert open_delimited(place).features == {"a": "float32", "b": "bytes"}
    assert len(records_of(open_delimited(place))) == 2


def test_the_first_rows_may_take_several_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.sources.table.PIECE_BYTES", 100)
    place = write(tmp_path / "x.csv", "a\n" + "1\n" * 999 + "2.5\n" + "x\n" * 9)
    source = open_delimited(place)
    assert source.features == {"a": "float32"}
    with pytest.raises(DataError, match="line 1002: column 'a' holds 'x', which is not float32"):
        records_of(source)


def test_numbers_that_do_not_fit_are_refused_by_row_column_and_value(tmp_path: Path) -> None:
    rows = "1,1.5,1\n99999999999999999999,1e39,007\n3,16777217,3\n"
    place = write(tmp_path / "x.csv", f"a,b,c\n{rows}")
    errors: list[DataError] = []
    source = open_delimited(place)
    assert source.features == {"a": "int64", "b": "float32", "c": "bytes"}
    assert len(records_of(source, errors.append)) == 1
    assert [error.message for error in errors] == [
        "line 3: column 'a' holds '99999999999999999999', which is beyond int64; correct it, or "
        "add --type a=bytes, which keeps its digits",
        "line 4: column 'b' holds '16777217', which is 16777216 as float32; correct it, or add "
        "--type b=bytes, which keeps the digits, or --type b=float32, which rounds it",
    ]
    texts = open_delimited(place, types={"a": "bytes", "b": "bytes"})
    assert records_of(texts)[1] == sr.encode_example(
        {"a": "99999999999999999999", "b": "1e39", "c": "007"}
    )


@pytest.mark.parametrize(
    ("first", "keep"),
    [("5.0", "int64"), ("nan", "int64"), ("2.5", "bytes"), ("2.5\n" + "5.0\n" * 1000, "bytes")],
)
def test_the_advice_takes_the_whole_column(
    first: str, keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.sources.table.PIECE_BYTES", 100)
    place = write(tmp_path / "x.csv", f"a\n{first.rstrip()}\n16777217\n")
    with pytest.raises(DataError, match="which is 16777216 as float32") as caught:
        records_of(open_delimited(place))
    assert f"add --type a={keep}, which keeps the digits, or --type a=float32" in str(caught.value)
    assert records_of(open_delimited(place, types={"a": keep}))


@pytest.mark.parametrize("number", [5, 16777217])
def test_whole_numbers_beside_a_gap_are_int64_whatever_they_are(
    number: int, tmp_path: Path
) -> None:
    place = write(tmp_path / "x.csv", f"id,b\n{number}.0,1\n,2\n")  # as Pandas writes them
    expected = [sr.encode_example({"id": number, "b": 1}), sr.encode_example({"b": 2})]
    assert records_of(open_delimited(place)) == expected
    write(tmp_path / "x.csv", f"id,b\n{number}.0,1\n,2\n3.0,3\n2.5,4\n")
    source = open_delimited(place)
    assert source.features == {"id": "float32", "b": "int64"}


def test_what_does_not_fit_behind_the_first_rows_is_refused_with_a_type(tmp_path: Path) -> None:
    place = write(tmp_path / "x.csv", "id,b\n" + "5.0,\n" * 999 + ",1.0\n2.5,1.0\n")
    source = open_delimited(place)
    assert source.features == {"id": "int64", "b": "int64"}
    with pytest.raises(
        DataError, match=r"line 1002: column 'id' holds '2.5', .* --type id=float32, which takes it"
    ):
        records_of(source)


def test_whole_numbers_beside_nan_keep_their_digits(tmp_path: Path) -> None:
    expected = [sr.encode_example({"id": 16777217, "b": 1}), sr.encode_example({"b": 2})]
    place = write(tmp_path / "x.csv", "id,b\n16777217,1\nnan,2\n")
    with pytest.raises(DataError, match=r"line 2: column 'id' holds '16777217'.* --type id=int64"):
        records_of(open_delimited(place))
    assert records_of(open_delimited(place, types={"id": "int64"})) == expected
    assert records_of(open_delimited(place, null=["nan"])) == expected


def test_long_values(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    text = "x" * (before + 1)
    place = write(tmp_path / "x.csv", f'a,b\n{text},1\n"{text}\n""y""",2\n')
    assert records_of(open_delimited(place)) == [
        sr.encode_example({"a": text, "b": 1}),
        sr.encode_example({"a": f'{text}\n"y"', "b": 2}),
    ]
    assert csv.field_size_limit() == before


def test_the_index_of_pandas_has_a_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = open_delimited(write(tmp_path / "x.csv", ",k\n0,x\n1,y\n"))
    assert records_of(source)[1] == sr.encode_example({"index": 1, "k": "y"})
    assert "column 1 has no name, as an index of Pandas; it becomes 'index'" in caplog.text
    assert open_delimited(str(tmp_path / "x.csv"), drop=["index"]).features == {"k": "bytes"}


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("x.csv", "a;b\n1;2\n", "a semicolon"),
        ("x.csv", "a\tb\n", "a tab"),
        ("x.tsv", "a,b", "a comma"),
    ],
)
def test_one_column_with_another_separator_in_its_name(
    name: str, text: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_delimited(write(tmp_path / name, text))
    assert f"with {what} in it; if that stands between values, give it as" in caplog.text


def test_blank_lines_are_rows_of_one_column(tmp_path: Path) -> None:
    """So Polars writes what is missing; an empty text has quotes."""
    place = write(tmp_path / "x.csv", 'a\nx\n\n""\n')
    rows = [sr.encode_example({"a": "x"}), b"\n\x00", sr.encode_example({"a": ""})]
    assert records_of(open_delimited(place)) == rows
    place = write(tmp_path / "x.csv", "\na,b\n1,2\n\n\n3,4\n")
    assert len(records_of(open_delimited(place))) == 2


CELLS = st.text("ab\"',;\n\r\t 0é", max_size=6) | st.integers(-(1 << 70), 1 << 70).map(str)


@given(
    rows=st.integers(1, 3).flatmap(
        lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=8)
    ),
    delimiter=st.sampled_from(",;\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    size=st.sampled_from([7, 1 << 20]),
)
def test_any_table_is_what_python_reads(
    rows: list[list[str]],
    delimiter: str,
    end: str,
    quoting: Any,
    size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if end == "\n" and quoting == csv.QUOTE_MINIMAL:  # Python writes it bare, as an end of a row
        rows = [[cell.replace("\r", "") for cell in row] for row in rows]
    names = [f"n{number}" for number in range(len(rows[0]) if rows else 1)]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(
        [names, *rows]
    )
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_bytes(text.getvalue().encode())
    expected = list(csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter))[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamrec.sources.table.PIECE_BYTES", size)
        types = dict.fromkeys(names, "bytes")
        source = open_delimited(str(path), delimiter=delimiter, types=types)
        assert records_of(source) == [
            sr.encode_example(dict(zip(names, row, strict=True))) for row in expected
        ]
