from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from streamrec.errors import ConfigError, DataError, RecordTooLarge
from streamrec.sources.mds_shards import INDEX_COPIES, MDSColumns, read_index, samples_of
from streamrec.sources.source import DEFAULT_MEMORY, Memory
from streamrec.sources.table_values import RowError
from streamrec.stores.stored_files import find_files
from tests.sources.mds_writer import write_mds

if TYPE_CHECKING:
    from pathlib import Path


U4 = "<u4"
CODES = {"uint8": 8, "int16": 17, "float16": 18, "int32": 33, "float32": 34, "float64": 66}


def sample(value: bytes) -> bytes:
    """A sample of one column whose values have sizes of their own."""
    return len(value).to_bytes(4, "little") + value


def listed(parts: list[bytes], head: bytes = b"") -> bytes:
    sizes = np.array([len(parts), *map(len, parts)], U4).tobytes()
    return head + sizes + b"".join(parts)


def value_of(encoding: str, data: bytes, dtype: str | None = None) -> Any:
    columns = MDSColumns([("x", encoding, None)])
    features = columns.types(sample(data))
    if dtype is not None:
        features = {"x": dtype}
    return columns.values(sample(data), features)["x"]


@pytest.mark.parametrize(
    ("encoding", "data", "expected"),
    [
        ("bytes", b"x\0", b"x\0"),
        ("str", "ü".encode(), "ü".encode()),
        ("json", b"[1]", b"[1]"),
        ("jpeg", b"\xff\xd8", b"\xff\xd8"),
        ("int", np.int64(-3).tobytes(), [-3]),
        ("uint64", np.uint64(7).tobytes(), [7]),
        ("float16", np.float16(1.5).tobytes(), [1.5]),
        ("str_int", b"-12", [-12]),
        ("str_float", b"2.5", [2.5]),
        ("str_decimal", b"0.1", [np.float32(0.1)]),
        ("jpeg_array", listed([b"a", b"", b"bc"]), [b"a", b"", b"bc"]),
        ("list[png]", listed([b"a", b"bc"], bytes(4)), [b"a", b"bc"]),
        ("ndarray:int16:2,2", np.arange(4, dtype="<i2").tobytes(), [0, 1, 2, 3]),
    ],
)
def test_values(encoding: str, data: bytes, expected: Any) -> None:
    found = value_of(encoding, data)
    assert (found if isinstance(found, bytes | list) else found.tolist()) == expected


@given(
    array=st.sampled_from(list(CODES)).flatmap(
        lambda name: (
            arrays(np.dtype(name), array_shapes(max_dims=3, max_side=300))
            if name == "uint8"
            else arrays(np.dtype(name), array_shapes(max_dims=3, max_side=4))
        )
    ),
    is_named=st.booleans(),
)
def test_arrays(array: Any, is_named: bool) -> None:
    name = array.dtype.name
    code = max(0, math.ceil(math.log2(max(array.shape) + 1)) - 1) // 8
    head = bytes([array.ndim << 2 | code]) + np.array(array.shape, f"<u{1 << code}").tobytes()
    data = head + array.tobytes()
    encoding = f"ndarray:{name}" if is_named else "ndarray"
    if not is_named:
        data = bytes([CODES[name]]) + data
    columns = MDSColumns([("x", encoding, None)])
    features = columns.types(sample(data))
    kind = "float32" if array.dtype.kind == "f" else "int64"
    assert features == {"x": kind, "x/shape": "int64"}
    assert value_of(encoding, data, "bytes") == array.tobytes()
    with np.errstate(over="ignore"):
        narrow = array.astype(kind)
    if np.array_equal(np.isfinite(narrow), np.isfinite(array)):
        row = columns.values(sample(data), features, given=features)
        found: Any = columns.join([row] * 2, features)
        np.testing.assert_array_equal(found["x"].to_list()[1], narrow.ravel())
        assert found["x/shape"].to_list() == [list(array.shape)] * 2


def test_columns_of_samples() -> None:
    given: list[tuple[str, str, int | None]] = [
        ("a", "int", 8), ("b", "bytes", None), ("c", "ndarray:uint8", None), ("p", "pkl", None),
    ]  # fmt: skip
    columns = MDSColumns(given)
    assert columns.others == {"p": "pkl"}
    sizes = np.array([2, 4, 1], U4).tobytes()
    data = sizes + np.int64(5).tobytes() + b"bb" + bytes([1 << 2, 2, 8, 9]) + b"P"
    types = {"a": "int64", "b": "bytes", "c": "int64", "c/shape": "int64"}
    assert columns.types(data) == types
    row = columns.values(data, {"b": "bytes", "c": "float32"})
    assert row["b"] == b"bb"
    found = columns.join([row], {"c": "float32"})["c"].to_list()
    assert found == [[8.0, 9.0]]
    assert columns.join([], types)["c"].to_list() == []
    for size in range(len(data)):
        with pytest.raises(RowError, match="do not have the sizes that it says"):
            columns.types(data[:size])


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("int", b"1234567"),
        ("int", bytes(16)),
        ("str_float", b"\xff"),
        ("ndarray", b""),
        ("ndarray", b"\x07\x04\x01"),
        ("ndarray:int32", bytes([1 << 2, 2]) + bytes(4)),
        ("ndarray:int32", bytes([63 << 2 | 3])),
        ("ndarray:int32:2", bytes(3)),
        ("jpeg_array", b"\xff\xff\xff\xff"),
        ("list[jpeg]", listed([b"abc"], bytes(4)) + b"d"),
    ],
)
def test_wrong_values(encoding: str, data: bytes) -> None:
    with pytest.raises(RowError, match="column 'x' does not hold what its type says"):
        value_of(encoding, data)


@pytest.mark.parametrize(
    ("encoding", "data", "dtype", "words"),
    [
        ("uint64", np.uint64(1 << 63).tobytes(), "int64", "9223372036854775808, which is beyond"),
        ("float64", np.float64(1e300).tobytes(), "float32", "1e+300, which is beyond float32"),
        ("float64", np.float64(1e-50).tobytes(), "float32", "1e-50, which is 0 as float32"),
        ("float64", np.float64(0.5).tobytes(), "int64", "0.5, which is not int64"),
        ("float64", np.float64("nan").tobytes(), "int64", "nan, which is not int64"),
        ("float64", np.float64(16777217).tobytes(), "float32", "add --type x=int64, which keeps"),
        ("str_int", b"9223372036854775808", "int64", "'9223372036854775808', which is beyond"),
        ("str_int", b"x", "int64", "'x', which is not int64"),
        ("str_float", b"1e400", "float32", "'1e400', which is beyond float32"),
        ("str_decimal", b"16777217", "float32", "add --type x=int64, which keeps the digits"),
    ],
)
def test_numbers_that_do_not_fit(encoding: str, data: bytes, dtype: str, words: str) -> None:
    with pytest.raises(RowError) as caught:
        value_of(encoding, data, dtype)
    assert f"column 'x' holds {words}" in str(caught.value) or words in str(caught.value)


def test_numbers_that_fit_another_way() -> None:
    assert np.isnan(value_of("float64", np.float64("nan").tobytes()))
    long = np.float64(16777217).tobytes()
    assert value_of("float64", long, "int64") == [16777217]
    assert value_of("str_int", b"9223372036854775808", "bytes") == b"9223372036854775808"
    columns = MDSColumns([("x", "float64", 8)])
    row: Any = columns.values(long, {"x": "float32"}, given={"x"})
    assert row["x"].tolist() == [16777216.0]


def test_two_columns_that_make_one_feature() -> None:
    array = bytes([8, 1 << 2, 1, 7])
    columns = MDSColumns([("a", "ndarray", None), ("a/shape", "int", 8)])
    data = np.array([len(array)], U4).tobytes() + array + np.int64(9).tobytes()
    with pytest.raises(RowError, match="two columns make the feature 'a/shape'"):
        columns.types(data)
    assert columns.types(data, {"a"}.__contains__) == {"a": "int64", "a/shape": "int64"}


def test_other_encodings() -> None:
    names = ["pkl", "pil", "list[pil]", "ndarray:complex64", "ndarray:x:1", "no"]
    columns = MDSColumns([(name, name, None) for name in names])
    assert list(columns.others) == names


SAMPLES = [[b"%d" % n, bytes(n)] for n in range(9)]
COLUMNS = {"a": "str", "b": "bytes"}


def read(root: Path, *part: int, memory: Memory = DEFAULT_MEMORY) -> list[list[bytes]]:
    files = {file.name: file for file in find_files(str(root), {})}
    shards = read_index(files, str(root), memory)
    found = []
    for shard in shards:
        first, stop = part or (0, shard.samples)
        found.append(samples_of(files[shard.stored.basename], shard, first, stop, memory))
    return found


def encoded(samples: list[list[bytes]]) -> list[bytes]:
    return [
        b"".join([*(len(value).to_bytes(4, "little") for value in sample), *sample])
        for sample in samples
    ]


@given(
    shards=st.lists(
        st.lists(st.tuples(st.binary(max_size=9), st.binary()), min_size=1), max_size=3
    ),
    compression=st.sampled_from([None, "gz:3", "bz2", "zstd"]),
)
def test_what_is_written_is_read(
    shards: Any, compression: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = write_mds(tmp_path_factory.mktemp("d") / "x", COLUMNS, shards, compression)
    assert read(root) == [encoded(samples) for samples in shards]


def test_a_part(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES])
    for first in range(9):
        for stop in range(first + 1, 10):
            assert read(root, first, stop) == [encoded(SAMPLES[first:stop])]


@pytest.mark.parametrize("compression", [None, "gz", "bz2", "zstd:5"])
def test_damaged_shards(compression: str | None, tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], compression)
    (path,) = root.glob("shard*")
    data = path.read_bytes()
    whole, refused = read(root), 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        try:
            found = read(root)
        except DataError as error:
            assert "the shard is damaged: " in str(error)
            refused += 1
        else:  # a gzip file has a time, which is no part of the data
            assert compression in (None, "zstd:5") or found == whole
    assert refused > 20


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES, SAMPLES])
    good = json.loads((root / "index.json").read_text())

    def changed(*path: Any, value: Any) -> None:
        index = json.loads(json.dumps(good))
        place = index
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        (root / "index.json").write_text(json.dumps(index))

    raw = ("shards", 1, "raw_data")
    for path, value, words in [
        (("version",), 1, "not an index of MDS, version 2, at 'version'"),
        (("shards", 1, "format"), "json", r"at 'shards\.1\.format'"),
        ((*raw, "basename"), "/etc/passwd", r"at 'shards\.1\.raw_data\.basename'"),
        ((*raw, "basename"), "../../etc/passwd", r"\.\./\.\./etc/passwd is not there"),
        ((*raw, "bytes"), 1 << 40, r"at 'shards\.1\.raw_data\.bytes'"),
        ((*raw, "bytes"), 7, r"shard\.00001\.mds has \d+ bytes, but the index says 7"),
        ((*raw, "basename"), "no", "no is not there, but the index says"),
        (("shards", 1, "column_sizes"), [8], "columns without a name or a type"),
        (("shards", 1, "samples"), 3, "it has 9 samples, but the index says 3"),
        (("shards", 1, "column_encodings"), ["str", "str"], "has other columns than"),
        (
            ("shards", 1, "zip_data"),
            good["shards"][1]["raw_data"],
            "is compressed by 'none', and streamrec reads bz2",
        ),
    ]:
        changed(*path, value=value)
        with pytest.raises((DataError, ConfigError), match=words):
            read(root)
    (root / "index.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no index\.json; give the directory"):
        read(root)


@pytest.mark.parametrize(("compression", "hashes"), [(None, []), ("zstd", []), (None, ["md5"])])
def test_samples_have_a_limit(compression: str | None, hashes: list[str], tmp_path: Path) -> None:
    samples = [[b"%d" % n, bytes(20_000)] for n in range(4)]
    root = write_mds(tmp_path / "x", COLUMNS, [samples], compression, hashes)
    assert read(root, memory=Memory(4 * 81_000)) == [encoded(samples)]
    with pytest.raises(RecordTooLarge, match="what is read together of the shard takes"):
        read(root, memory=Memory(4 * 79_000))


def test_an_index_has_a_limit(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES])
    size = (root / "index.json").stat().st_size
    with pytest.raises(RecordTooLarge, match="the index takes"):
        read(root, memory=Memory(INDEX_COPIES * size - 1))


@pytest.mark.parametrize("compression", [None, "gz"])
def test_hashes_are_checked(compression: str | None, tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], compression, ["sha1", "md5"])
    assert read(root) == [encoded(SAMPLES)]
    index = root / "index.json"
    document = json.loads(index.read_text())
    stored = document["shards"][0]["zip_data" if compression else "raw_data"]
    stored["hashes"]["md5"] = stored["hashes"]["md5"][::-1]
    index.write_text(json.dumps(document))
    with pytest.raises(DataError, match="the shard is damaged: its md5 is not the one in"):
        read(root)


def test_a_changed_byte_in_a_value(tmp_path: Path) -> None:
    """Only the hash can tell it: every length is right."""
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], None, ["sha256"])
    path = root / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"8" + bytes(8), b"7" + bytes(8)))
    with pytest.raises(DataError, match="its sha256 is not the one in the index"):
        read(root)


def test_hashes_of_an_unknown_kind(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], None, ["sha1"])
    index = root / "index.json"
    index.write_text(index.read_text().replace('"sha1": ', '"another": '))
    with pytest.raises(ConfigError, match=r"are of the kind another; .* pip install xxhash"):
        read(root)
