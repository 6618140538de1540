"""The chunks of a dataset's index, in which the order by record reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Chunks(NamedTuple):
    """All chunks of a dataset, shard after shard: int64 ``[chunks]`` each."""

    shard: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    first_record: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
