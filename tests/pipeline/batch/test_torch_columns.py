"""Each kind of column as tensors: equal values, the same memory, and casts that lose nothing."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse
from tests.support import IN_TORCHS_WORKER, Deferred, has_torch, torch

columns: Any = Deferred("streamrec.pipeline.batch.torch_columns")
pytestmark = [has_torch, IN_TORCHS_WORKER]
NATIVE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
VIEWED = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def tensor_of(column: Any, dtype: Any = None) -> Any:
    return columns.Casts.of(dtype).columns({"x": column})["x"]


def numbers(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


class TestNumbers:
    @pytest.mark.parametrize("name", NATIVE)
    @pytest.mark.parametrize("shape", [(4,), (2, 3), (0, 3)])
    def test_they_share_the_memory(self, name: str, shape: tuple[int, ...]) -> None:
        array = numbers(name, *shape)
        tensor = tensor_of(array)
        assert tensor.dtype == getattr(torch, name)
        assert tensor.shape == shape
        assert not array.size or tensor.data_ptr() == array.ctypes.data
        assert tensor.numpy().tolist() == array.tolist()

    @pytest.mark.parametrize("name", VIEWED)
    def test_dtypes_beyond_numpy_are_viewed(self, name: str) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        array = numbers(getattr(ml_dtypes, name), 2, 3)
        tensor = tensor_of(array)
        assert tensor.dtype == getattr(torch, name)
        assert tensor.data_ptr() == array.ctypes.data
        assert tensor.float().tolist() == array.astype("float32").tolist()

    def test_a_dtype_that_torch_lacks_is_refused_by_name(self) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        with pytest.raises(WrongFeatureType, match="feature x: torch has no dtype like int4"):
            tensor_of(numbers(ml_dtypes.int4, 3))

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6)[::-1],
            np.arange(6).reshape(2, 3).T,
            np.broadcast_to(np.float32(2), (3, 2)),
            np.arange(4).astype(">i4"),
        ],
    )
    def test_what_torch_cannot_share_is_copied(self, array: np.ndarray[Any, Any]) -> None:
        assert tensor_of(array).tolist() == array.tolist()

    def test_a_number_of_a_record(self) -> None:
        assert tensor_of(np.int64(7)).item() == 7


class TestOtherColumns:
    def test_a_ragged_column_is_a_nested_tensor(self) -> None:
        values = numbers("float32", 6)
        column = Ragged(values, np.array([0, 2, 2, 6]))
        tensor = tensor_of(column)
        assert tensor.layout == torch.jagged
        assert tensor.values().data_ptr() == values.ctypes.data
        assert tensor.offsets().data_ptr() == column.row_splits.ctypes.data
        assert [row.tolist() for row in tensor.unbind()] == column.to_list()

    def test_its_values_may_have_a_shape(self) -> None:
        column = Ragged(numbers("int64", 5, 2), np.array([0, 3, 5]))
        assert [row.tolist() for row in tensor_of(column).unbind()] == column.to_list()

    @pytest.mark.parametrize("rows", [0, 2])
    def test_one_without_values(self, rows: int) -> None:
        tensor = tensor_of(Ragged(numbers("int64", 0), np.zeros(rows + 1, np.int64)))
        assert tensor.size(0) == rows

    def test_a_part_of_a_ragged_column(self) -> None:
        column = Ragged(numbers("int64", 6), np.array([1, 3, 4]))
        assert [row.tolist() for row in tensor_of(column).unbind()] == [[1, 2], [3]]

    def test_rows_of_rows_are_pairs_around_it(self) -> None:
        inner = Ragged(numbers("int64", 4), np.array([0, 1, 3, 4]))
        column = Ragged(inner, np.array([0, 2, 3]))
        pair = tensor_of(column)
        assert isinstance(pair, columns.RaggedTensors)
        rows = [row.tolist() for row in pair.values.unbind()]
        splits = pair.row_splits.tolist()
        assert [rows[a:b] for a, b in pairwise(splits)] == column.to_list()
        assert pair.row_splits.data_ptr() == column.row_splits.ctypes.data

    def test_strings_stay_as_they_are(self) -> None:
        strings = BytesColumn.of([b"a", b"", b"bc"])
        ragged = Ragged(Ragged(strings, np.array([0, 1, 3])), np.array([0, 2]))
        sparse = Sparse(np.zeros((3, 2), np.int64), strings, (1, 3))
        for column in (strings, ragged, sparse, b"one"):
            assert tensor_of(column) is column

    def test_a_sparse_column(self) -> None:
        indices = np.array([[0, 1], [1, 0], [1, 2]])
        values = np.array([5.0, 6.0, 7.0], "float32")
        column = Sparse(indices, values, (2, 3))
        tensor = tensor_of(column)
        assert tensor.layout == torch.sparse_coo
        assert tensor._values().data_ptr() == values.ctypes.data
        assert tensor._indices().data_ptr() == indices.ctypes.data
        assert tensor.to_dense().tolist() == column.to_dense().tolist()

    def test_pictures_of_different_sizes_are_a_list(self) -> None:
        shapes = np.array([[2, 3, 1], [1, 1, 3]])
        column = Arrays(numbers("uint8", 9), np.array([0, 6, 9]), shapes)
        first, second = tensor_of(column)
        assert (first.shape, second.shape) == ((2, 3, 1), (1, 1, 3))
        assert first.data_ptr() == column.values.ctypes.data
        assert [first.tolist(), second.tolist()] == [picture.tolist() for picture in column]


class TestCasts:
    def test_integers_are_narrowed(self) -> None:
        for dtype in (torch.int32, "int32", {"x": torch.int32}):
            tensor = tensor_of(np.array([-5, 2**31 - 1]), dtype)
            assert (tensor.dtype, tensor.tolist()) == (torch.int32, [-5, 2**31 - 1])

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([1, 2**31], "int32"),
            ([-1, 3], "uint16"),
            ([70000, 3], "uint16"),
            ([2], "bool"),
            (np.array([2**63], "uint64"), "int64"),
        ],
    )
    def test_an_integer_that_does_not_fit_is_refused(self, values: Any, dtype: str) -> None:
        with pytest.raises(WrongFeatureType, match=r"feature x: the value .* does not fit"):
            tensor_of(np.asarray(values), {"x": getattr(torch, dtype)})

    @pytest.mark.parametrize("name", ["float16", "float8_e4m3fn"])
    def test_a_finite_number_that_would_become_infinite_is_refused(self, name: str) -> None:
        dtype = getattr(torch, name)
        assert tensor_of(np.array([1.5], "float32"), dtype).dtype == dtype
        with pytest.raises(WrongFeatureType, match=r"100000.0 does not fit"):
            tensor_of(np.array([1.0, 1e5], "float32"), dtype)

    def test_infinity_stays_what_it_is(self) -> None:
        assert tensor_of(np.array([np.inf], "float32"), "float16").tolist() == [np.inf]

    def test_a_dtype_for_all_is_for_its_kind(self) -> None:
        plain = {
            "float": numbers("float32", 2),
            "int": numbers("int64", 2),
            "bool": np.array([True]),
            "image": numbers("uint8", 2),
            "complex": numbers("complex64", 2),
        }
        dtypes = {name: x.dtype for name, x in columns.Casts.of("bfloat16").columns(plain).items()}
        assert dtypes == {
            "float": torch.bfloat16,
            "int": torch.int64,
            "bool": torch.bool,
            "image": torch.uint8,
            "complex": torch.complex64,
        }

    def test_one_by_name_may_change_the_kind(self) -> None:
        tensor = tensor_of(numbers("uint8", 3), {"x": torch.float32})
        assert (tensor.dtype, tensor.tolist()) == (torch.float32, [0.0, 1.0, 2.0])

    @pytest.mark.parametrize("name", ["float32", "complex64"])
    def test_no_fraction_is_cut_off(self, name: str) -> None:
        with pytest.raises(WrongFeatureType, match=r"feature x: .* cannot be cast to torch"):
            tensor_of(numbers(name, 3), {"x": torch.int32})

    def test_ragged_sparse_and_pictures_are_cast_inside(self) -> None:
        ragged = Ragged(numbers("float32", 3), np.array([0, 3]))
        sparse = Sparse(np.zeros((1, 2), np.int64), numbers("float32", 1), (1, 3))
        pictures = Arrays(numbers("uint8", 3), np.array([0, 3]), np.array([[1, 1, 3]]))
        assert tensor_of(ragged, "float16").dtype == torch.float16
        assert tensor_of(sparse, "float16").dtype == torch.float16
        assert tensor_of(pictures, {"x": torch.float32})[0].dtype == torch.float32

    def test_the_same_dtype_copies_nothing(self) -> None:
        array = numbers("float32", 3)
        assert tensor_of(array, torch.float32).data_ptr() == array.ctypes.data

    @pytest.mark.parametrize("dtype", ["float33", 7, {"x": "Tensor"}])
    def test_what_is_no_dtype_is_refused(self, dtype: Any) -> None:
        with pytest.raises(ConfigError, match="torch has no dtype"):
            columns.Casts.of(dtype)

    def test_a_dtype_of_numpy_serves(self) -> None:
        for dtype in (np.float16, np.dtype("float16"), np.dtype(">f2")):
            assert tensor_of(numbers("float32", 2), dtype).dtype == torch.float16

    @pytest.mark.parametrize("name", ["complex64", "qint8", "uint4"])
    def test_a_dtype_that_no_number_is_cast_to(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"no column is cast to torch.{name}"):
            columns.Casts.of(getattr(torch, name))

    def test_strings_are_not_cast(self) -> None:
        strings = BytesColumn.of([b"a"])
        assert tensor_of(strings, "float16") is strings
        for column in (strings, Ragged(strings, np.array([0, 1])), b"a"):
            with pytest.raises(WrongFeatureType, match=r"feature x: strings cannot be cast"):
                tensor_of(column, {"x": "float16"})

    def test_a_feature_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ConfigError, match="names the feature 'y', and the stream gives 'x'"):
            tensor_of(numbers("int64", 1), {"y": torch.int32})

    def test_bfloat16_needs_no_ml_dtypes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # an import of it fails
        assert tensor_of(numbers("float32", 2), "bfloat16").dtype == torch.bfloat16
