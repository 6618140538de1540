"""With PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.adapters.torch.agreement import agree
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.adapters.pairs import Names
    from streamrec.adapters.torch.loader import Loader
    from streamrec.streams.stream import Stream


__all__ = ["agree", "as_loader"]


def as_loader(
    stream: Stream,
    device: Any = None,
    dtype: Any | Mapping[str, Any] = None,
    inputs: Names | None = None,
    targets: Names | None = None,
    restart: bool | None = None,
    gather: Any = False,
) -> Loader:
    """Return a loader of a stream's batches as tensors.

    Each batch is a dict from feature name to tensor, with ``rows``, ``mask`` (a tensor),
    ``epoch``, ``origin``, ``source`` and ``next_position`` beside it, and ``to(device)``. Columns
    that are neither cast nor moved are not copied:

    - numbers ``[rows, ...]``: a tensor;
    - a ragged column of numbers: a nested tensor with the layout ``torch.jagged``; around it, for
      each further level, a pair (``values``, ``row_splits``);
    - a sparse column of numbers: a sparse COO tensor;
    - arrays of different shapes, and pictures of different sizes: a list of tensors;
    - strings, at any depth: the stream's own column, since torch has no tensors of strings.

    A stream of single records gives a dict for each record, or its bytes. With ``targets``, the
    loader gives ``(inputs, targets)`` in place of each dict, and ``(inputs, targets, mask)`` where
    the stream has masks.

    The loader is iterated as it is, without a ``DataLoader``. It goes on as the stream does: with
    the next epoch after the end of one, and after a ``break`` where it stopped. Loops in which
    Lightning validates, tests or predicts begin at the beginning. It may also be the
    dataset of a ``DataLoader`` or ``StatefulDataLoader`` with ``batch_size=None`` and at most one
    worker. ``state_dict()`` is the state after the last batch given, whatever was read ahead. On
    the ranks of ``torch.distributed``, ``agree`` runs before the first loop.

    Args:
        stream: The stream; it is opened when the loader is iterated.
        device: Where the tensors are to be. To a CUDA device they are copied from pinned memory,
            on a stream of their own, one batch ahead.
        dtype: A torch dtype, or its name, for all floating-point columns or all integer columns; or
            a mapping from feature name to dtype.
        inputs: The name of a feature, which gives its tensor; or several names, or a mapping from
            other names to them, which give a dict of tensors.
        targets: As the inputs; ``None``: no pairs.
        restart: True: each loop begins at the beginning of the run, even after a ``break``, as an
            evaluation needs. ``None``: only Lightning's evaluation loops do, and a loop with
            gradients off that goes on after a ``break`` gives a warning. False: no loop does.
        gather: True: ``state_dict()`` holds the states of all ranks of ``torch.distributed``, which
            any number of ranks can load; all of them call it. A process group: those of its ranks
            alone. False: the state of this rank.

    Raises:
        ConfigError: There is no such dtype or device, or ``inputs`` or ``targets`` is left out.
            While iterating: there is no feature of a name, or one cannot be cast.
    """
    from streamrec.adapters.pairs import Pairs, check_stream

    with needs("streamrec.adapters.torch", "torch"):
        from streamrec.adapters.torch.loader import Loader, device_of
        from streamrec.pipeline.batch.torch_columns import Casts

    check_stream(stream, "as_loader")
    pairs = Pairs.of_arguments(inputs, targets)
    return Loader(stream, Casts.of(dtype), device_of(device), pairs, restart, gather)
