"""Batches of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.origin import NoColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from streamrec.pipeline.batch.origin import Origin
    from streamrec.pipeline.batch.torch_columns import Casts
    from streamrec.plan.state.position import Position


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
        # A NamedTuple takes its fields one by one, any other tuple takes a sequence.
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
