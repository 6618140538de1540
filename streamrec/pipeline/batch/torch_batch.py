"""Batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.pipeline.batch.origin import NoColumn
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from torch import Tensor

    from streamrec.pipeline.batch.origin import Origin
    from streamrec.plan.state.position import Position
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
            wrong &= np.isfinite(array)
        if wrong.any():
            raise self._refusal(f"the value {array[wrong][0]} does not fit {to}")

    def _refusal(self, why: str) -> WrongFeatureType:
        return WrongFeatureType(f"{why}; give it another dtype", feature=self.name)


def dtype_of(dtype: Any) -> torch.dtype:
    """Return torch's dtype of a name; a torch dtype is one already.

    Raises:
        ConfigError: torch has no dtype of this name.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None)
    result = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(name), None)
    if not isinstance(result, torch.dtype):
        raise ConfigError(
            f"torch has no dtype {dtype!r}; give one as torch.bfloat16, or a mapping of them "
            "by feature"
        )
    return result


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


class Pair(tuple[Any, ...]):
    """The inputs and the targets of a batch, and its mask where the stream has masks."""

    __slots__ = ()


class About(Protocol):
    """The facts about the rows of a batch: a batch without its columns."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def epoch(self) -> int:
        """The lowest epoch of the rows, from 0."""

    @property
    def origin(self) -> Origin:
        """The shard and the record of each row."""

    @property
    def source(self) -> npt.NDArray[np.str_]:
        """The name of the component of a mix that each row came from."""

    @property
    def next_position(self) -> Position:
        """The position of what comes after the batch."""


class TensorBatch(dict[str, Any]):
    """A batch: a dict from feature name to tensor, and what is known about its rows.

    ``len(batch)`` is the number of features, as of any dict; ``batch.rows`` is that of rows.

    Args:
        columns: The tensors, by feature name.
        about: What is known about their rows; ``None``: nothing.
        mask: The batch's mask, as a tensor.
    """

    def __init__(
        self, columns: Mapping[str, Any], about: About | None = None, mask: Tensor | None = None
    ) -> None:
        super().__init__(columns)
        self._about = about
        self._mask = mask

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        mask: npt.NDArray[np.bool_] | None,
        about: About,
        casts: Casts,
    ) -> Self:
        """Return a stream's batch as tensors of the same memory, as far as they are not cast."""
        tensor = None if mask is None else torch.from_numpy(mask)
        return cls(casts.columns(columns), about, tensor)

    def __missing__(self, name: str) -> NoReturn:
        raise NoColumn(name, self)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._facts().rows

    @property
    def mask(self) -> Tensor | None:
        """The mask, bool ``[rows]``: False where a row is padding; ``None`` if none ever is."""
        self._facts()
        return self._mask

    @property
    def epoch(self) -> int:
        """The lowest epoch of the rows, from 0."""
        return self._facts().epoch

    @property
    def origin(self) -> Origin:
        """The shard and the record of each row, as NumPy arrays."""
        return self._facts().origin

    @property
    def source(self) -> npt.NDArray[np.str_]:
        """``[rows]``: the name of the component of a mix that each row came from."""
        return self._facts().source

    @property
    def next_position(self) -> Position:
        """The position of what comes after this batch."""
        return self._facts().next_position

    def to(self, device: Any, *, non_blocking: bool = False) -> TensorBatch:
        """Return the batch with its tensors, and its mask, on a device."""
        return self.each(lambda tensor: tensor.to(device=device, non_blocking=non_blocking))

    def pin_memory(self) -> TensorBatch:
        """Return the batch in pinned memory, which torch keeps a pool of."""
        return self.each(pinned)

    def each(self, function: Callable[[Tensor], Tensor]) -> TensorBatch:
        """Return a batch of what a function gives for each tensor, the mask included."""
        columns = {name: each_tensor(column, function) for name, column in self.items()}
        return TensorBatch(columns, self._about, each_tensor(self._mask, function))

    def _facts(self) -> About:
        if self._about is None:
            raise AttributeError(
                "this batch was put together from tensors alone, so its mask, epoch, origin and "
                "position are lost; take them from the loader's own batch, before other code "
                "rebuilds it"
            )
        return self._about


def each_tensor(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to all tensors of a batch, a record or a column.

    Strings, and ``None``, are left as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, TensorBatch):
        return value.each(function)
    if isinstance(value, dict):
        return {name: each_tensor(part, function) for name, part in value.items()}
    if isinstance(value, list):
        return [each_tensor(part, function) for part in value]
    if isinstance(value, tuple):
        parts = [each_tensor(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def pinned(tensor: Tensor) -> Tensor:
    """Return a copy in pinned memory of torch's pool; sparse tensors are left where they are."""
    return tensor if tensor.is_sparse else tensor.pin_memory()


def _refuse(batch: list[Any], *, collate_fn_map: Any = None) -> None:  # noqa: ARG001
    raise ConfigError(
        "the loader gives whole batches, which a DataLoader would collate once more; give the "
        "DataLoader batch_size=None, or the stream none"
    )


for _kind in (TensorBatch, Pair):
    default_collate_fn_map[_kind] = _refuse  # the place that torch documents for own types
