"""With Megatron: a stream that is saved and restored by the calls of Energon's loader.

Megatron's training scripts call ``megatron.energon.SavableDataLoader`` so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.adapters.torch import as_loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.streams.stream import Stream

__all__ = ["SavableStream"]


class SavableStream:
    """Batches of tensors, with Energon's calls for their state.

    Args:
        stream: With the rank of ``streamrec.rank_of(parallel_state)``.
        group: The data-parallel group, ``parallel_state.get_data_parallel_group()``, whose ranks
            save and restore together; ``None``: all processes.
        **arguments: Those of :func:`streamrec.adapters.torch.as_loader`.
    """

    def __init__(self, stream: Stream, group: Any = None, **arguments: Any) -> None:
        self._loader = as_loader(stream, **arguments)
        self._group = group

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the state of this rank, after the last batch given."""
        return self._loader.state_dict()

    def restore_state_rank(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state of this rank or, by record, of any rank; ``None`` changes nothing."""
        if state is not None:
            self._loader.load_state_dict(state)

    def save_state_global(self, global_dst_rank: int) -> list[dict[str, Any]] | None:
        """Return the states of all ranks of the group on one of them, ``None`` on the others."""
        from torch import distributed

        own = self.save_state_rank()
        if not distributed.is_initialized():
            return [own]
        is_there = distributed.get_rank() == global_dst_rank
        size = distributed.get_world_size(self._group)
        states: list[dict[str, Any]] | None = [{} for _ in range(size)] if is_there else None
        distributed.gather_object(own, states, global_dst_rank, self._group)
        return states

    def restore_state_global(
        self, state: Sequence[Mapping[str, Any]] | None, *, src_rank: int | None = None
    ) -> None:
        """Go on from the states of all ranks, of which there may have been another number.

        Args:
            state: The states, on each rank; with ``src_rank``, on that rank alone.
            src_rank: The rank within the group that has them.
        """
        from torch import distributed

        states = [state]
        if src_rank is not None and distributed.is_initialized():
            group: Any = self._group or distributed.group.WORLD
            source = distributed.get_global_rank(group, src_rank)
            distributed.broadcast_object_list(states, source, self._group)
        if states[0] is not None:
            self._loader.load_state_dict(states[0])
