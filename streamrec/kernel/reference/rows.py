"""The copying of records, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel.contract import fresh
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.values.record_rows import RecordRows


def gather(
    rows: RecordRows,
    allocate: Allocate = fresh,  # noqa: ARG001 - joining brings its own memory
) -> BytesColumn:
    """Copy the payloads of rows into one column.

    Args:
        rows: The records.
        allocate: Not used: joining brings its own memory.
    """
    return BytesColumn.of(list(rows.payloads()))
