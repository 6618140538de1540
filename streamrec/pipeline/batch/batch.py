"""Batches: columns of rows, and what is known about the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn

import numpy as np
from typing_extensions import TypeVar

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.origin import Components, NoColumn, Origin
from streamrec.values.columns import BytesColumn, form_of, html_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from streamrec.pipeline.batch.torch_batch import TensorBatch
    from streamrec.plan.state.position import Position

ColumnType_co = TypeVar("ColumnType_co", default=Any, covariant=True)
MOST_NAMES = 8
"""The most columns that a batch's ``repr`` names."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Mapping[str, ColumnType_co], Generic[ColumnType_co]):
    """A batch: a mapping from feature name to column, in memory that belongs to the user.

    ``len(batch)`` is the number of rows; raw streams have the one column ``records``. The type
    parameter is the type of the columns, if all have one type.
    """

    columns: Mapping[str, ColumnType_co]
    rows: int
    epoch: int
    """The lowest epoch of the rows, from 0."""
    origin: Origin
    next_position: Position
    """The position of what comes after this batch; ``next_position.to_dict()`` is a checkpoint."""
    mask: npt.NDArray[np.bool_] | None = None
    """bool ``[rows]``: False where a row is padding, or takes the place of a damaged record, which
    ``origin`` then names; ``None`` where nothing is ever padded."""
    components: Components | None = None
    """The components of a mix; ``None`` where nothing is mixed."""

    def __getitem__(self, name: str) -> ColumnType_co:
        try:
            return self.columns[name]
        except KeyError:
            raise NoColumn(name, self.columns) from None

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return self.rows

    @property
    def records(self) -> BytesColumn:
        """The serialized records of a raw stream (``features=None``)."""
        column: Any = self.columns["records"]
        if not isinstance(column, BytesColumn):
            raise AttributeError(  # noqa: TRY004 - the attribute is not there
                "this batch is parsed into features and has no raw records; "
                "open the stream with features=None, or take a feature by its name"
            )
        return column

    @property
    def source(self) -> npt.NDArray[np.str_]:
        """``[rows]``: the name of the component that each row came from; ``""`` for padding."""
        if self.components is None:
            raise AttributeError(
                "this batch comes from a stream with one source, so it has no batch.source; "
                "only streams of streamrec.mix have batch.source"
            )
        names = np.array([*self.components.names, ""])
        return names[self.components.of(self.origin.shards)]

    def to_torch(self, dtype: Any | Mapping[str, Any] = None) -> TensorBatch:
        """Return the batch as tensors of the same memory, as ``adapters.torch.as_loader`` gives it.

        Args:
            dtype: A torch dtype, or its name, for all floating-point columns or all integer
                columns; or a mapping from feature name to dtype. Columns that are cast are copied.

        Raises:
            ConfigError: There is no such dtype or feature.
            WrongFeatureType: A feature cannot be cast, or has a dtype that torch lacks.
        """
        from streamrec.pipeline.batch.torch_batch import TensorBatch
        from streamrec.pipeline.batch.torch_columns import Casts

        # Without its columns: else tensors on a device would keep the arrays on this host.
        about = replace(self, columns={}, mask=None)
        return TensorBatch.of(self.columns, self.mask, about, Casts.of(dtype))

    def to(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the columns are arrays of NumPy, not tensors.

        Lightning and Accelerate call it if they are given a bare stream.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "a batch holds arrays, which are not moved to a device; in place of the stream iterate "
            "streamrec.adapters.torch.as_loader(stream), whose batches hold tensors and have to(), "
            "or take batch.to_torch().to(device)"
        )

    if not TYPE_CHECKING:  # else every name would be one of its attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Tell what a batch has; called for what it does not have.

            Raises:
                AttributeError: Always.
            """
            attribute = getattr(type(self), name, None)
            if isinstance(attribute, property) and attribute.fget:
                attribute.fget(self)  # raises anew what led here
            # Python's own protocols, such as copying, ask for such names, and expect a plain error.
            if attribute is not None or name.startswith("__"):
                raise AttributeError(name)
            if name in self.columns:
                raise AttributeError(f"a column is taken by its name: batch[{name!r}]")
            raise AttributeError(
                f"a batch has no attribute {name!r}; its columns are taken by name, as in "
                "batch['name'], and list(batch) names them"
            )

    def __repr__(self) -> str:
        names = [*self.columns][:MOST_NAMES]
        more = len(self.columns) - len(names)
        return (
            f"<Batch of {self.rows} rows: {', '.join(names)}{f' and {more} more' if more else ''}>"
        )

    def _repr_html_(self) -> str:
        """Return a table of the columns, which notebooks show."""
        forms = {name: form_of(column) for name, column in self.columns.items()}
        return html_table(f"Batch of {self.rows} rows, epoch {self.epoch}", forms)

    def _ipython_key_completions_(self) -> list[str]:
        """Return the names that notebooks complete after ``batch[``."""
        return list(self.columns)
