"""Serialized records as programs have them, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.errors import ConfigError
from streamrec.masking import type_of
from streamrec.values.columns import Bytes, BytesColumn
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

Serialized: TypeAlias = "Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn"
"""A batch of serialized records."""
_BYTES = (bytes, bytearray, memoryview)


def batch_rows(serialized: Serialized, single: str) -> RecordRows:
    """Return a batch of serialized records as rows.

    Args:
        serialized: The records; also a tensor of TensorFlow.
        single: The name of the function that takes a single record, for the error.

    Raises:
        ConfigError: The argument is a single record, an array of other than one dimension, or
            holds other things than bytes.
    """
    if isinstance(serialized, BytesColumn):
        return RecordRows.from_column(serialized)
    given = _without_tensor(serialized)
    if isinstance(given, (*_BYTES, str)) or getattr(given, "ndim", 1) != 1:
        raise ConfigError(f"serialized must be a batch of records; for one record use {single}")
    return _rows(list(given))


def single_row(serialized: Bytes) -> RecordRows:
    """Return one serialized record as rows.

    Raises:
        ConfigError: It is not bytes.
    """
    given = _without_tensor(serialized)
    is_scalar = getattr(given, "ndim", None) == 0 and hasattr(given, "item")
    return _rows([given.item() if is_scalar else given])


def _without_tensor(serialized: Any) -> Any:
    return serialized.numpy() if hasattr(serialized, "numpy") else serialized


def _rows(records: list[Any]) -> RecordRows:
    if not set(map(type, records)) <= {bytes}:
        records = list(map(_without_tensor, records))
        wrong = [one for one in records if not isinstance(one, _BYTES)]
        if wrong:
            raise ConfigError(
                f"serialized must hold bytes, not {type_of(wrong[0])}; "
                "give messages as SerializeToString() or encode_example return them"
            )
    return RecordRows.of(records)
