"""Columns as tensors, of the same memory unless they are cast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch

from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, cut

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from streamrec.values.columns import Column, Values

VIEWED = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (getattr(torch, name) for name in dir(torch) if name.startswith(("bf", "float8")))
    if isinstance(dtype, torch.dtype)
}
"""The dtypes of 8 and 16 bits that NumPy has by ``ml_dtypes`` alone, by their name there."""


class RaggedTensors(NamedTuple):
    """Rows of rows of different lengths."""

    values: Any
    """The rows of all rows, end to end: a nested tensor, another such pair, or a list of tensors.
    """
    row_splits: Tensor
    """int64 ``[rows + 1]``: row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``."""


class Casts(NamedTuple):
    """The dtypes that were asked for."""

    for_all: torch.dtype | None = None
    by_name: Mapping[str, torch.dtype] = {}

    @classmethod
    def of(cls, dtype: Any | Mapping[str, Any]) -> Self:
        """Read the argument ``dtype``, or return what was read of it before.

        Raises:
            ConfigError: There is no such dtype.
        """
        # A loader reads the argument once, and hands on what it has read.
        if isinstance(dtype, cls):
            return dtype
        if isinstance(dtype, Mapping):
            return cls(by_name={name: dtype_of(value) for name, value in dtype.items()})
        return cls(None if dtype is None else dtype_of(dtype))

    def columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a batch, or the values of a record, as tensors.

        Raises:
            ConfigError: A feature that is to be cast is not there.
            WrongFeatureType: A feature cannot be cast, or has a dtype that torch lacks.
        """
        self.check(columns)
        return {name: self.column(name, column) for name, column in columns.items()}

    def column(self, name: str, column: Any) -> Any:
        """Return a column, or the value of a record, as a tensor or a few; errors as above."""
        return to_tensors(column, Cast(name, self.for_all, self.by_name.get(name)))

    def check(self, columns: Mapping[str, Any]) -> None:
        """Refuse to cast a feature that is not there.

        Raises:
            ConfigError: There is such a feature.
        """
        if missing := self.by_name.keys() - columns.keys():
            raise ConfigError(
                f"dtype names the feature {min(missing)!r}, and the stream gives "
                f"{', '.join(map(repr, columns))}; correct the name"
            )


class Cast(NamedTuple):
    """The conversion of one feature's arrays."""

    name: str
    for_all: torch.dtype | None = None
    """A dtype for arrays of its kind."""
    own: torch.dtype | None = None
    """The dtype for this feature."""

    def __call__(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array as a tensor.

        Raises:
            WrongFeatureType: A value does not fit the dtype, or torch has none like the array's.
        """
        tensor = self._tensor(array)
        dtype = self.own or self.for_all
        if dtype in (None, tensor.dtype) or (self.own is None and not _alike(tensor.dtype, dtype)):
            return tensor
        if tensor.is_complex() or (tensor.is_floating_point() and not dtype.is_floating_point):
            raise self._refusal(f"{tensor.dtype} cannot be cast to {dtype} without loss")
        self._check_range(array, tensor.dtype, dtype)
        return tensor.to(dtype)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        # The memory of a batch is writable and contiguous; a transform may have returned other.
        array = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        try:
            if array.dtype.type.__module__ == "numpy":
                return torch.from_numpy(array)
            # Of ml_dtypes. NumPy's unsigned integers carry the bits over.
            viewed_as = VIEWED[array.dtype.name]
            return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(viewed_as)
        except (TypeError, KeyError):
            raise self._refusal(f"torch has no dtype like {array.dtype}") from None

    def _check_range(self, array: npt.NDArray[Any], dtype: torch.dtype, to: torch.dtype) -> None:
        least, greatest = limits_of(to)
        if least <= limits_of(dtype)[0] and limits_of(dtype)[1] <= greatest:
            return
        wrong = (array < least) | (array > greatest)
        if dtype.is_floating_point:
            # An infinity is not a number for which the other dtype is too narrow.
            wrong &= np.isfinite(array)
        if wrong.any():
            raise self._refusal(f"the value {array[wrong][0]} does not fit {to}")

    def _refusal(self, why: str) -> WrongFeatureType:
        return WrongFeatureType(f"{why}; give it another dtype", feature=self.name)


def dtype_of(dtype: Any) -> torch.dtype:
    """Return torch's dtype of a name; a torch dtype is one already.

    Raises:
        ConfigError: torch has no dtype of this name, or casts no numbers to it.
    """
    names = (getattr(dtype, attribute, None) for attribute in ("__name__", "name"))
    name = dtype if isinstance(dtype, str) else next(filter(None, names), None)
    result = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(name), None)
    if not isinstance(result, torch.dtype):
        raise ConfigError(
            f"torch has no dtype {dtype!r}; give one such as torch.bfloat16, or a mapping of them "
            "by feature"
        )
    if result.is_complex or not _can_cast(result):
        raise ConfigError(
            f"no column is cast to {result}; give a dtype of real numbers, such as torch.bfloat16, "
            "and cast the tensors by themselves"
        )
    return result


def _can_cast(dtype: torch.dtype) -> bool:
    """Return whether torch casts to a dtype: it does not to quantized ones, nor to 4 bits."""
    try:
        torch.ones(1).to(dtype)
    except RuntimeError:
        return False
    return True


def limits_of(dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the least and the greatest finite number of a dtype."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def to_tensors(column: Column | Any, cast: Cast) -> Any:
    """Return a column, or the value of one record, as a tensor or a few."""
    if isinstance(column, np.ndarray | np.generic):
        return cast(np.asarray(column))
    if isinstance(column, Arrays):
        return [cast(array) for array in column]
    if isinstance(column, Sparse) and not isinstance(column.values, BytesColumn):
        indices = torch.from_numpy(column.indices).t()
        return torch.sparse_coo_tensor(
            indices, cast(column.values), column.dense_shape, check_invariants=False
        )
    if isinstance(column, Ragged) and not _holds_strings(column.values):
        return _to_ragged(column, cast)
    if cast.own is not None:
        raise WrongFeatureType(
            f"strings cannot be cast to {cast.own}; leave it out of dtype", feature=cast.name
        )
    return column


def _to_ragged(column: Ragged, cast: Cast) -> Any:
    first, last = int(column.row_splits[0]), int(column.row_splits[-1])
    values = to_tensors(cut(column.values, first, last), cast)
    splits = torch.from_numpy(column.row_splits - first if first else column.row_splits)
    if isinstance(column.values, np.ndarray):
        return torch.nested.nested_tensor_from_jagged(values, splits)
    return RaggedTensors(values, splits)


def _holds_strings(values: Values) -> bool:
    if isinstance(values, Ragged):
        return _holds_strings(values.values)
    return isinstance(values, BytesColumn)


def _alike(one: torch.dtype, other: torch.dtype | None) -> bool:
    """Return whether both are floating-point dtypes, or both integers."""
    return (
        other is not None
        and one.is_floating_point == other.is_floating_point
        and not one.is_complex
        and torch.bool not in (one, other)
    )
