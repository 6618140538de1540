from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ConfigError, DataError
from streamrec.plan.order.shard_names import Task
from streamrec.sources.arrow import class_labels, join_labels, open_arrow
from tests.cli.support import streamrec
from tests.sources.tables import NAMES, ROWS
from tests.sources.test_delimited import fail, records_of

if TYPE_CHECKING:
    from pathlib import Path


PETS = {"_type": "ClassLabel", "names": ["cat", "dog"]}
NUMBERS = {"cat": 0, "dog": 1}


def schema(features: Any) -> Any:
    """Return the metadata of a schema as ``datasets`` writes them."""
    text = json.dumps({"info": {"features": features}}).encode()
    return SimpleNamespace(metadata={b"huggingface": text})


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"label": PETS, "n": {"dtype": "int64", "_type": "Value"}}, {"label": NUMBERS}),
        ({"all": {"feature": PETS, "_type": "Sequence"}}, {"all": NUMBERS}),
        ({"all": {"feature": PETS, "_type": "List"}}, {"all": NUMBERS}),
        ({"all": [PETS]}, {"all": NUMBERS}),
        ({"outer": {"inner": PETS}}, {"outer/inner": NUMBERS}),
        ({"x": [], "y": None, "z": {"feature": None, "_type": "List"}}, {}),
        ({"x": {"_type": "ClassLabel"}}, {"x": {}}),
        ([], {}),
    ],
)
def test_features(features: Any, found: Any) -> None:
    assert class_labels(schema(features)) == found


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"info": 1}', b"\xff"])
def test_other_metadata(text: bytes) -> None:
    assert class_labels(SimpleNamespace(metadata={b"huggingface": text})) == {}
    assert class_labels(SimpleNamespace(metadata=None)) == {}


def test_files_that_differ(caplog: pytest.LogCaptureFixture) -> None:
    one, two = {"a": NUMBERS, "b": NUMBERS}, {"a": NUMBERS, "b": {"dog": 0, "cat": 1}}
    assert join_labels([one, two, {}]) == {"a": NUMBERS}
    assert "the class names of column 'b' differ between files" in caplog.text


def test_a_table_of_hugging_face(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": PETS, "other": PETS}
    table = pa.table({"label": [1, 0, 1], "other": [0, 0, 0]})
    metadata = schema(features).metadata
    parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "x.parquet")
    where = f"{tmp_path}/x.parquet", f"{tmp_path}/x.tfrecord"
    outcome = streamrec("write", *where, "--shards", "1", "--features", "label")
    assert outcome.code == 0, outcome
    assert sr.labels(f"{tmp_path}/x-*.tfrecord") == NUMBERS


pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq: Any = pytest.importorskip("pyarrow.parquet")


def parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_a_real_table(tmp_path: Path) -> None:
    columns = {name: [json.loads(row[n]) for row in ROWS] for n, name in enumerate(NAMES)}
    table = pa.table({name: list(map(float, column)) for name, column in columns.items()})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table, 300)
    with pa.ipc.new_stream(tmp_path / "y.arrow", table.schema) as stream:
        stream.write_table(table)
    for name in ("x.parquet", "x.arrow", "y.arrow"):
        source = open_arrow(str(tmp_path / name))
        specs: Any = {name: sr.FixedLenFeature((), "float32") for name in NAMES}
        found = sr.parse_example(records_of(source), specs)
        for name, column in columns.items():
            np.testing.assert_array_equal(found[name], np.array(column, np.float32))
    assert open_arrow(str(tmp_path / "x.parquet")).total == len(ROWS)


def test_tasks_read_files_or_row_groups_of_their_own(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 3000)):
        table = pa.table({"n": list(range(first, first + 3000))})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)
    source = open_arrow(f"{tmp_path}/")
    for tasks in (1, 2, 4, 6):
        parts = [source.part(Task(number, tasks)) for number in range(tasks)]
        assert all(parts)
        assert [r for part in parts if part for r in records_of(part)] == records_of(source)
    second = source.part(Task(1, 6))
    assert second is not None
    assert next(iter(second.pieces())).first == 1000
    assert source.part(Task(0, 7)) is None
    table = pa.table({"n": [1, 2, 3]})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table, 1)
    assert open_arrow(f"{tmp_path}/x.arrow").part(Task(0, 2)) is None


def test_errors_name_the_row_of_the_file(tmp_path: Path) -> None:
    lists = [[1]] * 2500 + [[None]] + [[1]] * 499
    pq.write_table(pa.table({"n": lists}), tmp_path / "x.parquet", row_group_size=1000)
    part = open_arrow(f"{tmp_path}/x.parquet").part(Task(1, 2))
    assert part is not None
    with pytest.raises(DataError, match="row 2500, column 'n'"):
        records_of(part)


def test_tables_in_a_store(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet(path, a=list(range(3000)), b=["text"] * 3000)
    here = open_arrow(str(path))
    with pa.ipc.new_file(tmp_path / "x.arrow", pq.read_schema(path)) as file:
        file.write_table(pq.read_table(path))
    with DevStore() as store:
        for name in ("x.parquet", "x.arrow"):
            store.put(f"tables/{name}", (tmp_path / name).read_bytes())
            there = open_arrow(f"s3://tables/{name}", storage_options=store.storage_options)
            assert there.total == (3000 if "parquet" in name else None)
            assert records_of(there) == records_of(here)
        there = open_arrow("s3://tables/x.arrow", storage_options=store.storage_options)
        store.faults = [FaultRule(status=403, code="AccessDenied")]
        with pytest.raises(AccessDenied, match=r"s3://tables/x\.arrow"):
            records_of(there)


def test_every_type(tmp_path: Path) -> None:
    place = parquet(
        tmp_path / "x.parquet",
        bools=pa.array([True, None, False]),
        small=pa.array([1, None, -3], pa.int8()),
        decimals=pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("2.5")]),
        days=pa.array([dt.date(1970, 1, 2), None, dt.date(1970, 1, 3)]),
        times=pa.array([5, None, 7], pa.timestamp("us")),
        texts=pa.array(["é", None, ""]),
        words=pa.array(["a", None, "a"]).dictionary_encode(),
        fixed=pa.array([b"ab", None, b"cd"], pa.binary(2)),
        lists=pa.array([[1, 2], None, []]),
        strings=pa.array([["a", "bc"], None, [""]]),
        vectors=pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        nested=pa.array([[[1], [2, 3]], None, [[]]]),
        struct=pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
    )
    records = records_of(open_arrow(place))
    assert records[0] == sr.encode_example(
        {
            "bools": 1,
            "small": 1,
            "decimals": 1.5,
            "days": 1,
            "times": 5,
            "texts": "é",
            "words": "a",
            "fixed": b"ab",
            "lists": [1, 2],
            "strings": ["a", "bc"],
            "vectors": [1.0, 2.0],
            "nested": [1, 2, 3],
            "nested/row_lengths": [1, 2],
            "struct/a": 1,
            "struct/b/c": "x",
        }
    )
    assert records[1] == b"\n\x00"  # no feature has a value
    specs: Any = {
        "nested": sr.RaggedFeature(
            "int64",
            value_key="nested",
            partitions=[sr.RaggedFeature.RowLengths("nested/row_lengths")],
        ),
        "texts": sr.FixedLenFeature((), "bytes", "none"),
        "small": sr.FixedLenFeature((), "int64", -1),
        "strings": sr.VarLenFeature("bytes"),
        "vectors": sr.VarLenFeature("float32"),
    }
    found = sr.parse_example(records, specs)
    assert found["nested"].to_list() == [[[1], [2, 3]], [], [[]]]
    assert found["texts"].to_list() == ["é".encode(), b"none", b""]
    assert found["small"].tolist() == [1, -1, -3]
    assert found["strings"].to_list() == [[b"a", b"bc"], [], [b""]]
    assert found["vectors"].to_list() == [[1.0, 2.0], [], [3.0, 4.0]]


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    place = parquet(
        tmp_path / "x.parquet",
        a=pa.array([1, 2, 2**63, 4], pa.uint64()),
        b=pa.array([1.0, 1e300, 1.0, 1.0]),
        c=pa.array([[1], [1], [1], [1, None]]),
    )
    source = open_arrow(place)
    with pytest.raises(DataError, match=r"x\.parquet: row 2, column 'a': holds 9"):
        records_of(source)
    errors: list[DataError] = []
    assert records_of(source, errors.append) == [sr.encode_example({"a": 1, "b": 1.0, "c": [1]})]
    assert sorted(str(error).partition(": ")[2][:20] for error in errors) == [
        "row 1, column 'b': h",
        "row 2, column 'a': h",
        "row 3, column 'c': a",
    ]


def test_keys_and_types(tmp_path: Path) -> None:
    place = parquet(tmp_path / "x.pq", a=[1, 2], b=["x", "y"])
    source = open_arrow(place, features={"a": "float32", "b": None}, key="b")
    (piece,) = source.pieces()
    block = source.read(piece, fail)
    assert block.keys == [b"x", b"y"]
    assert next(iter(block.records)) == sr.encode_example({"a": 1.0, "b": "x"})
    with pytest.raises(ConfigError, match="column 'b' is bytes, not int64"):
        open_arrow(place, features={"b": "int64"})
    with pytest.raises(ConfigError, match="--key: 'c' is not a feature"):
        open_arrow(place, key="c")


def test_refusals(tmp_path: Path) -> None:
    deep = parquet(tmp_path / "x.parquet", a=[[[[1]]]], b=[1])
    with pytest.raises(ConfigError, match=r"column 'a' has a type .* --features b, or convert it"):
        open_arrow(deep)
    assert open_arrow(deep, features={"b": None}).features == {"b": "int64"}
    parquet(tmp_path / "y.parquet", b=[1])
    with pytest.raises(ConfigError, match=r"x\.parquet has the column 'a', and .* does not"):
        open_arrow(str(tmp_path))
    broken = tmp_path / "z.parquet"
    broken.write_bytes(b"PAR1 no parquet")
    with pytest.raises(DataError, match=r"z\.parquet: Arrow cannot read it: .*; write the file"):
        open_arrow(str(broken))
    with pytest.raises(ConfigError, match=r"that no feature has; convert it$"):
        open_arrow(parquet(tmp_path / "z.parquet", a=[[[[1]]]]))


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ([("a", pa.array([1])), ("a", pa.array([2]))], "a"),
        ([("a", pa.array([{"x": 1}])), ("a/x", pa.array([2]))], "a/x"),
        ([("a", pa.array([[[1, 5]]])), ("a/row_lengths", pa.array([9]))], "a/row_lengths"),
        ([("a", pa.array([{"x": 1, "y": 2}])), ("a/y", pa.array([[{"n": 1}]]))], "a/y"),
    ],
)
def test_two_columns_that_make_one_feature(columns: Any, name: str, tmp_path: Path) -> None:
    names, arrays = zip(*columns, strict=True)
    table = pa.table([*arrays, pa.array([7])], names=[*names, "other"])
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    with pytest.raises(ConfigError, match=f"two columns make the feature '{name}'"):
        open_arrow(str(path))
    left = open_arrow(str(path), drop=[name])
    assert "other" in left.features
    assert name not in left.features


def test_whole_numbers_beside_a_gap_keep_their_digits(tmp_path: Path) -> None:
    place = parquet(tmp_path / "x.parquet", id=pa.array([1.0, None, 16777217.0, float("nan")]))
    with pytest.raises(DataError, match=r"row 2, column 'id': holds 16777217\.0.* --type id=int64"):
        records_of(open_arrow(place))
    gap = b"\n\x00"
    assert records_of(open_arrow(place, types={"id": "int64"})) == [
        sr.encode_example({"id": 1}), gap, sr.encode_example({"id": 16777217}), gap,
    ]  # fmt: skip
    rounded = records_of(open_arrow(place, types={"id": "float32"}))
    assert rounded[2] == sr.encode_example({"id": 16777216.0})
    texts = records_of(open_arrow(place, types={"id": "bytes"}))
    assert texts[2] == sr.encode_example({"id": "16777217"})


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (pa.array([2**63], pa.uint64()), "int64", None),
        (pa.array([2**63], pa.uint64()), "bytes", b"9223372036854775808"),
        (pa.array([decimal.Decimal(2**62)], pa.decimal128(38, 0)), "int64", 2**62),
        (pa.array([decimal.Decimal(2**63)], pa.decimal128(38, 0)), "int64", None),
        (pa.array([decimal.Decimal("16777217.25")]), "float32", 16777217.25),
        (pa.array([decimal.Decimal("90071992547409931.25")]), "bytes", b"90071992547409931.25"),
        (pa.array([0.5]), "int64", None),
        (pa.array([1e300]), "int64", None),
        (pa.array([16777217]), "float32", 16777216.0),
    ],
)
def test_types_that_the_user_names(array: Any, dtype: str, expected: Any, tmp_path: Path) -> None:
    source = open_arrow(parquet(tmp_path / "x.parquet", a=array), types={"a": dtype})
    if expected is None:
        with pytest.raises(DataError, match=r"row 0, column 'a': holds .*, which is (beyond|not)"):
            records_of(source)
    else:
        assert records_of(source) == [sr.encode_example({"a": expected})]


@pytest.mark.parametrize(
    ("array", "what", "helps"),
    [
        (pa.array([1.0, 0.5]), "not int64", True),
        (pa.array([1.0, float("inf")]), "beyond int64", False),
        (pa.array([1.0, 1e300]), "beyond int64", False),
        (pa.array([1, 2**63], pa.uint64()), "beyond int64", False),
        (pa.array([0, 2**64 - 1], pa.uint64()), "beyond int64", False),
        (pa.array([1.0, -(2.0**63) * 2]), "beyond int64", False),
    ],
)
def test_what_helps_where_a_number_is_not_int64(
    array: Any, what: str, helps: bool, tmp_path: Path
) -> None:
    source = open_arrow(parquet(tmp_path / "x.parquet", a=array), types={"a": "int64"})
    with pytest.raises(DataError, match=rf"row 1, column 'a': holds .*, which is {what}") as caught:
        records_of(source)
    assert ("a=float32" in str(caught.value)) == helps
    assert "a=bytes" in str(caught.value)


@pytest.mark.parametrize("text", ["16777217.0", "1234567.89", "90071992547409931.25"])
def test_decimals_keep_their_whole_part_or_are_refused(text: str, tmp_path: Path) -> None:
    number = decimal.Decimal(text)
    place = parquet(tmp_path / "x.parquet", a=pa.array([number]))
    if abs(decimal.Decimal(float(np.float32(number))) - number) < 1:
        assert records_of(open_arrow(place)) == [sr.encode_example({"a": float(number)})]
        return
    keep = "int64" if number == int(number) else "bytes"
    with pytest.raises(DataError, match=rf"changed by float32; .* --type a={keep}"):
        records_of(open_arrow(place))
    assert records_of(open_arrow(place, types={"a": keep}))


def test_the_advice_takes_the_whole_column(tmp_path: Path) -> None:
    columns = {
        "int64": pa.array([16777217.0, None, float("nan"), 5.0]),
        "bytes": pa.array([16777217.0, None, 0.5]),
    }
    for keep, column in columns.items():
        place = parquet(tmp_path / "x.parquet", a=column)
        with pytest.raises(DataError, match=f"--type a={keep}, which keeps the digits, or --type"):
            records_of(open_arrow(place))
        assert records_of(open_arrow(place, types={"a": keep}))
    parquet(tmp_path / "x.parquet", a=pa.array([0.5]))
    parquet(tmp_path / "y.parquet", a=pa.array([16777217]))
    with pytest.raises(DataError, match=r"y.parquet: row 0, .* --type a=bytes, which keeps the d"):
        records_of(open_arrow(str(tmp_path)))


@pytest.mark.parametrize("number", [1e-50, decimal.Decimal("1e-50")])
def test_numbers_that_float32_makes_0(number: Any, tmp_path: Path) -> None:
    place = parquet(tmp_path / "x.parquet", a=pa.array([number]))
    with pytest.raises(DataError, match=r"0 as float32; .* --type a=bytes, .* --type a=float32"):
        records_of(open_arrow(place))
    source = open_arrow(place, types={"a": "float32"})
    assert records_of(source) == [sr.encode_example({"a": 0.0})]


def test_forms_in_which_others_keep_values(tmp_path: Path) -> None:
    views = pa.array(["x", None, "long enough for a buffer of its own"], pa.string_view())
    words = pa.array(["a", "b"], pa.string_view())
    columns = {
        "views": views,
        "lists": pa.array([["x", "y"], None, []], pa.list_(pa.string_view())),
        "list_views": pa.array([[1, 2], None, [3]], pa.list_view(pa.int64())),
        "words": pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), words),
        "ids": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([b"1" * 16, None, b"2" * 16], pa.binary(16))
        ),
        "flags": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, None, 5], pa.int8())),
        "tensors": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(12, dtype=np.int16).reshape(3, 2, 2)
        ),
        "nothing": pa.nulls(3),
        "no_lists": pa.array([[], None, []], pa.list_(pa.null())),
    }
    table = pa.table(columns)
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table)
    source = open_arrow(str(tmp_path / "x.arrow"))
    assert records_of(source) == [
        sr.encode_example(
            {"views": "x", "lists": ["x", "y"], "list_views": [1, 2], "words": "b",
             "ids": b"1" * 16, "flags": 0, "tensors": [0, 1, 2, 3]}
        ),
        sr.encode_example({"tensors": [4, 5, 6, 7]}),
        sr.encode_example(
            {"views": views[2].as_py(), "list_views": [3], "words": "a", "ids": b"2" * 16,
             "flags": 1, "tensors": [8, 9, 10, 11], "lists": []}
        ),
    ]  # fmt: skip
    empty = parquet(tmp_path / "y.parquet", nothing=pa.nulls(3))
    with pytest.raises(ConfigError, match="every column has no value in any row"):
        open_arrow(empty)
    assert open_arrow(empty, types={"nothing": "int64"}).features == {"nothing": "int64"}


def test_a_tensor_in_another_order_is_refused(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int16(), (2, 3), permutation=[1, 0])
    values = pa.FixedSizeListArray.from_arrays(pa.array(range(6), pa.int16()), 6)
    table = pa.table({"a": pa.ExtensionArray.from_storage(kind, values), "b": [1]})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table)
    with pytest.raises(ConfigError, match="column 'a' has a type that no feature has"):
        open_arrow(str(tmp_path / "x.arrow"))


def test_files_whose_columns_differ_in_order_and_form(tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet", a=pa.array([1], pa.int32()), b=["x"], c=pa.nulls(1))
    parquet(tmp_path / "2.parquet", c=[2.5], b=pa.array(["y"], pa.large_string()), a=[7])
    parquet(tmp_path / "3.parquet", c=[3], b=pa.nulls(1, pa.string()), a=pa.nulls(1))
    source = open_arrow(f"{tmp_path}/")
    assert source.features == {"a": "int64", "b": "bytes", "c": "float32"}
    assert records_of(source) == [
        sr.encode_example({"a": 1, "b": "x"}),
        sr.encode_example({"a": 7, "b": "y", "c": 2.5}),
        sr.encode_example({"c": 3.0}),
    ]
    parquet(tmp_path / "4.parquet", c=["x"], b=["z"], a=[1])
    with pytest.raises(ConfigError, match=r"4\.parquet: column 'c' is bytes, but in .* float32"):
        open_arrow(f"{tmp_path}/")


def test_checksums_of_pages_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"a": ["needle" * 9] * 10})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    assert len(records_of(open_arrow(str(path)))) == 10
    data = path.read_bytes()
    places = [found.start() for found in re.finditer(b"needle" * 9, data)]
    at = places[len(places) // 2]  # others are statistics
    path.write_bytes(data[:at] + b"N" + data[at + 1 :])
    with pytest.raises(DataError, match=r"Arrow cannot read it: .*CRC"):
        records_of(open_arrow(str(path)))


INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([1 << 24, (1 << 24) + 1])
FLOATS = st.floats() | st.sampled_from([16777217.0, 123456789.25, 1e39])
COLUMNS = st.sampled_from(
    [
        (INTEGERS, pa.int64()),
        (st.integers(0, (1 << 64) - 1), pa.uint64()),
        (FLOATS, pa.float64()),
        (st.text(), pa.string()),
        (st.text(), pa.string_view()),
        (st.sampled_from(["a", "b"]), pa.dictionary(pa.int8(), pa.string())),
        (st.binary(), pa.large_binary()),
        (st.booleans(), pa.bool_()),
        (st.lists(INTEGERS, min_size=1), pa.list_(pa.int64())),
        (st.lists(st.text(), min_size=1), pa.list_view(pa.string_view())),
    ]
)


@st.composite
def random_tables(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    rows = draw(st.integers(1, 6))
    arrays, values = {}, {}
    for number, (each, kind) in enumerate(draw(st.lists(COLUMNS, min_size=1, max_size=3))):
        name = f"c{number}"
        values[name] = draw(st.lists(st.none() | each, min_size=rows, max_size=rows))
        arrays[name] = pa.array(values[name], kind)
    return pa.table(arrays), [{n: values[n][row] for n in values} for row in range(rows)]


def is_kept(value: Any) -> bool:
    """Return whether a feature holds a value, with the whole part of a number."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, float) and np.isfinite(value):
        with np.errstate(over="ignore"):
            narrow = float(np.float32(value))
        is_emptied = narrow == 0 != value
        is_near = abs(value) > 1 << 53 or abs(narrow - value) < 1
        return bool(np.isfinite(narrow) and is_near and not is_emptied)
    return True


@given(table=random_tables())
def test_each_value_is_kept_or_refused(
    table: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made, rows = table
    path = tmp_path_factory.mktemp("arrow") / "x.arrow"
    with pa.ipc.new_file(path, made.schema) as file:
        file.write_table(made)
    good = [row for row in rows if all(map(is_kept, row.values()))]
    present = [{n: v for n, v in row.items() if v is not None} for row in good]
    refused: list[DataError] = []
    found = records_of(open_arrow(str(path)), refused.append)
    assert found == [sr.encode_example(row) or b"\n\x00" for row in present]
    assert len(refused) == len(rows) - len(good)
