"""The base of specs, and the types by which type checkers know what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeAlias

from typing_extensions import TypeVar

from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config.keywords import Number, OtherDType, String

Shape: TypeAlias = "SupportsIndex | Sequence[SupportsIndex]"
AnyDType: TypeAlias = "Number | String | OtherDType"
Gives_co = TypeVar("Gives_co", default=Any, covariant=True)
GivesOther = TypeVar("GivesOther", BytesColumn, Arrays, Ragged, Sparse)
"""The type of the columns of specs that all give the same one, other than arrays."""


class DenseColumn:
    """The type parameter of specs that give arrays.

    It stands for ``npt.NDArray[Any]``: where an argument's type holds an ``Any``, mypy takes
    overloads for ambiguous.
    """


class Spec(Generic[Gives_co]):
    """The base of all specs, generic over the columns that they give in batches of Examples."""

    def _set(self, **values: Any) -> None:
        """Set attributes in their normal form, although specs are frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
