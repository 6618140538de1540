"""Figures of how well an order mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

LAGS = 128
"""Largest distance of neighbours; more than there are lanes."""


def quality(
    order: npt.NDArray[np.int64], classes: npt.NDArray[np.int64], batch_size: int
) -> dict[str, float]:
    """Return the figures of one epoch's order.

    Args:
        order: int64 ``[n]``: record numbers in the order of delivery, a permutation.
        classes: int64 ``[n]``: class of each record number.
        batch_size: Number of records in a batch.
    """
    return {
        "chi_square": chi_square(classes[order], batch_size),
        "displacement": float(np.abs(order - np.arange(len(order))).mean() / len(order)),
        "neighbours": correlation(order, 1),
        "neighbours_most": max(abs(correlation(order, lag)) for lag in range(1, LAGS + 1)),
    }


def chi_square(classes: npt.NDArray[np.int64], batch_size: int) -> float:
    """Return the mean chi-square of the batches over its degrees of freedom.

    It is about 1 where batches are fair samples.

    Args:
        classes: int64 ``[n]``: classes of the records in the order of delivery.
        batch_size: Number of records in a batch.
    """
    batches = classes[: len(classes) // batch_size * batch_size].reshape(-1, batch_size)
    count = int(classes.max()) + 1
    expected = np.bincount(classes, minlength=count) / len(classes) * batch_size
    observed = np.stack([np.bincount(batch, minlength=count) for batch in batches])
    return float((((observed - expected) ** 2 / expected).sum(axis=1) / (count - 1)).mean())


def correlation(order: npt.NDArray[np.int64], lag: int) -> float:
    """Return Pearson's correlation of the numbers of records that are ``lag`` apart."""
    return float(np.corrcoef(order[:-lag], order[lag:])[0, 1])
