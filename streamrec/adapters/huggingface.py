"""With Hugging Face's ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.adapters.torch.records import Records
    from streamrec.streams.stream import Stream

__all__ = ["as_dataset"]


def as_dataset(stream: Stream, dtype: Any | Mapping[str, Any] = None) -> Records:
    """Return a stream of single records as a dataset for ``transformers.Trainer``.

    Each record is a dict from feature name to tensor, as in
    :func:`streamrec.adapters.torch.as_loader`; strings stay ``bytes``. The Trainer collates the
    records. It sets the epoch before each one, and resumes by reading the epoch's batches again up
    to the step of the checkpoint. Without an index, or ``steps_per_epoch``, the dataset has no
    length and the Trainer needs ``max_steps``.

    The Trainer divides a dataset between its processes by itself. Where there are several, open the
    stream with ``rank=0`` and ``world_size=1`` on each; a rank's part is refused.

    Args:
        stream: The stream, opened without ``batch_size``.
        dtype: As in :func:`streamrec.adapters.torch.as_loader`.

    Raises:
        ConfigError: There is no such dtype. While iterating: the stream gives batches.
    """
    from streamrec.adapters.torch.records import Records
    from streamrec.pipeline.batch.torch_columns import Casts

    return Records(stream, Casts.of(dtype), None)
