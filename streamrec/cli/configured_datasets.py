"""The opening of a configuration's datasets, and what is found there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streamrec.errors import StreamrecError
from streamrec.masking import masked
from streamrec.pipeline.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config import DatasetSettings

MOST_SHOWN = 3
"""Names of shards that are shown."""


async def survey(
    datasets: Mapping[str, DatasetSettings],
) -> dict[str, dict[str, Any] | StreamrecError]:
    """Open datasets as the daemon does, and close them.

    Returns:
        By name, the shards and the fingerprint for a single rank; or why it cannot be opened.
    """
    found = await asyncio.gather(*map(_look, datasets.values()))
    return dict(zip(datasets, found, strict=True))


async def _look(settings: DatasetSettings) -> dict[str, Any] | StreamrecError:
    try:
        dataset = await Dataset.open(settings)
        try:
            fingerprint = dataset.fingerprint(dataset.settings.batch_size, 1)
        finally:
            await dataset.aclose()
    except StreamrecError as error:
        return error
    return {
        "shards": len(dataset.shards),
        "bytes": dataset.stored_bytes,
        "first": [masked(url) for url in dataset.shards[:MOST_SHOWN]],
        "lanes": dataset.lanes,
        "fingerprint": fingerprint.to_dict(),
    }
