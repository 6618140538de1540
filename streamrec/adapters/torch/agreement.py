"""The agreement of the ranks of ``torch.distributed`` on one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.errors import ConfigError
from streamrec.plan.state.fingerprint import RankSummary, check_agreement
from streamrec.streams import handle
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from streamrec.streams.stream import Stream


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
