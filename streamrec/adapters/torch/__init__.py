"""With PyTorch: the loader, the agreement of the ranks on a stream, and checkpoints with states."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.plan.state.fingerprint import RankSummary, check_agreement
from streamrec.streams import handle
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from streamrec.adapters.passes import Names
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
    from streamrec.adapters.passes import Pairs, check_stream

    with needs("streamrec.adapters.torch", "torch"):
        from streamrec.adapters.torch.loader import Loader, device_of
        from streamrec.pipeline.batch.torch_columns import Casts

    check_stream(stream, "as_loader")
    pairs = Pairs.of_arguments(inputs, targets)
    return Loader(stream, Casts.of(dtype), device_of(device), pairs, restart, gather)


def agree(stream: Stream) -> None:
    """Check that all processes read one stream, before the first batch.

    Call it on every process of an initialised ``torch.distributed``, with the stream open. If they
    disagree, all of them raise the same error.

    Args:
        stream: Open: in its ``with`` or ``async with`` block.

    Raises:
        ConfigError: The streams differ (the message says in what), or torch.distributed is not
            initialised.
    """
    with needs("streamrec.adapters.torch", "torch"):
        from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError(
            "torch.distributed is not initialised, so the ranks cannot compare; call "
            "init_process_group first"
        )
    gathered: list[str | None] = [None] * distributed.get_world_size()
    # A text: it is pickled on its way, and nothing else of ours should be.
    distributed.all_gather_object(gathered, handle.of(stream).summary().to_json())
    check_agreement([RankSummary.from_json(text or "") for text in gathered])


def agree_at_first(stream: Stream) -> bool:
    """Have the ranks agree, if the stream took its rank from them; return whether they did.

    Raises:
        ConfigError: The streams differ, and in what.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return False
    rank = (distributed.get_rank(), distributed.get_world_size())
    assignment = handle.of(stream).assignment
    # A rank that the user gave may be one of a mesh, whose other ranks are not all of these.
    if assignment.is_given or assignment.rank != rank or rank[1] == 1:
        return False
    # Opened, since what is compared is known only then: the fingerprint names the shards.
    stream.__enter__()
    agree(stream)
    return True


def load_checkpoint(path: Path) -> Any:
    """Return the content of a checkpoint, if it is tensors and plain data alone.

    Objects of other kinds would run code when they are loaded, so they are refused. Tensors are
    mapped into memory, and not read.

    Raises:
        ConfigError: PyTorch is not installed, or cannot load the file.
    """
    instead = "write the state by itself with json.dump(stream.state_dict(), file)"
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path} is a checkpoint of PyTorch, which is not installed; install torch, or "
            f"{instead}"
        ) from None
    try:
        # The format before PyTorch 1.6 cannot be mapped.
        is_archive = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:  # noqa: BLE001 - there is no common root
        kind = type(error).__name__
        raise ConfigError(
            f"{path} cannot be loaded as tensors and plain data ({kind}); {instead}"
        ) from None
