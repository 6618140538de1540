"""With Hugging Face's ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.adapters.passes import check_stream
from streamrec.errors import ConfigError
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.adapters.torch.records import Record, Records
    from streamrec.streams.stream import Stream

__all__ = ["as_dataset", "collate", "feed"]


def as_dataset(stream: Stream, dtype: Any | Mapping[str, Any] = None) -> Records:
    """Return a stream of single records as a dataset for ``transformers.Trainer``.

    Each record is a mapping from feature name to tensor, as in
    :func:`streamrec.adapters.torch.as_loader`; strings stay ``bytes``. The Trainer collates the
    records, and does it many times faster with :func:`collate` as its ``data_collator``. The model
    gets every feature of the stream, so name only features that it takes.

    The Trainer sets the epoch before each epoch, so an evaluation begins at the beginning. It
    resumes by reading the epoch's batches again up to the step of the checkpoint. Without an index,
    or ``steps_per_epoch``, the dataset has no length and the Trainer needs ``max_steps``.

    The Trainer divides a dataset between its processes by itself. If there are several, open the
    stream with ``rank=0`` and ``world_size=1`` on each; a rank's part is refused.

    Args:
        stream: The stream, opened without ``batch_size``.
        dtype: As in :func:`streamrec.adapters.torch.as_loader`.

    Raises:
        ConfigError: There is no such dtype. While iterating: the stream gives batches.
    """
    with needs("streamrec.adapters.huggingface", "huggingface"):
        from streamrec.adapters.torch.records import Records
        from streamrec.pipeline.batch.torch_columns import Casts

    check_stream(stream, "as_dataset")
    return Records(stream, Casts.of(dtype), None)


def feed(trainer: Any, stream: Stream, dtype: Any | Mapping[str, Any] = None) -> None:
    """Let a ``transformers.Trainer`` train on the batches of a stream, without sampler or collator.

    Each process reads its own part of the stream, and nothing else. Checkpoints of the Trainer hold
    the states of all ranks: ``train(resume_from_checkpoint=...)`` goes on at the exact batch on any
    number of ranks, and reads nothing again. The model gets every feature of the stream.

    Args:
        trainer: The Trainer, made without ``train_dataset``. ``feed`` comes after all callbacks.
        stream: Opened with a ``batch_size``, which holds in place of
            ``per_device_train_batch_size``.
        dtype: As in :func:`streamrec.adapters.torch.as_loader`.

    Raises:
        ConfigError: There is no such dtype, or the Trainer has a dataset already.
    """
    with needs("streamrec.adapters.huggingface", "huggingface"):
        from streamrec.adapters.huggingface_state import TrainerBatches, state_callback
        from streamrec.adapters.torch import as_loader

    if trainer.train_dataset is not None:
        raise ConfigError(
            "the Trainer has a train_dataset, and would not read the stream; leave it out"
        )
    loader = as_loader(stream, trainer.args.device, dtype)
    batches = TrainerBatches(loader)
    trainer.get_train_dataloader = lambda: batches
    trainer.add_callback(state_callback(loader))


def collate(records: Sequence[Record]) -> dict[str, Any]:
    """Return the batch of some records: the ``data_collator`` of a ``transformers.Trainer``.

    A feature whose values all have one shape is a tensor ``[records, ...]`` of the stream's own
    memory, without a copy if the records follow each other in it. Any other feature is a list with
    each record's value.

    Args:
        records: Records of :func:`as_dataset`, at least one.

    Raises:
        ConfigError: The records are not from :func:`as_dataset`.
        WrongFeatureType: A feature cannot be cast, or has a dtype that torch lacks.
    """
    with needs("streamrec.adapters.huggingface", "huggingface"):
        from streamrec.adapters.torch.records import collate

    return collate(records)
