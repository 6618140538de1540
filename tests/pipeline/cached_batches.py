"""Settings of a cache of batches, and a comparison of all that batches have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.pipeline.batch.test_payload import same

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch


def cached(folder: Path, **settings: Any) -> dict[str, Any]:
    return {"cache": {"of": "batches", "folder": folder, "size": "64MiB"}, **settings}


def equal(batches: list[Batch], expected: list[Batch]) -> None:
    """Compare all that a batch has: values, mask, origin, epoch and position."""
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        assert (list(one), len(one), one.epoch) == (list(other), len(other), other.epoch)
        for name in other:
            same(one[name], other[name])
        assert one.next_position.to_dict() == other.next_position.to_dict()
        assert one.components == other.components
        for got, wanted in zip(one.origin, other.origin, strict=True):
            same(got, wanted)
        assert (one.mask is None) == (other.mask is None)
        if one.mask is not None and other.mask is not None:
            same(one.mask, other.mask)
