"""With torchtitan: a stream as the dataloader of its trainer.

::

    from streamrec.adapters.torchtitan import StreamDataLoader

    def open_stream(rank, batch_size):
        return sr.open(source, features, rank=rank, batch_size=batch_size, epochs=None)

    config.dataloader = StreamDataLoader.Config(
        open=open_stream, inputs={"input": "tokens"}, targets="labels"
    )
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrec.adapters.torch import as_loader
from streamrec.adapters.torch.loader import ignore_masked
from streamrec.errors import ConfigError
from streamrec.streams.ranks import Rank
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["StreamDataLoader"]

with needs("streamrec.adapters.torchtitan", "torchtitan"):
    BaseDataLoader: Any = import_module("torchtitan.components.dataloader").BaseDataLoader


class StreamDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The dataloader of a ``torchtitan`` trainer; its ``Config`` builds it.

    A checkpoint holds the states of all ranks, so that any number of ranks resumes from it.

    Args:
        config: What to read.
        dp_world_size: The number of data-parallel ranks.
        dp_rank: The rank of this process among them.
        local_batch_size: Rows of what the trainer takes at once.
        **_: What else the trainer gives: the tokenizer and the length of sequences.

    Raises:
        ConfigError: The global batch cannot be divided by the ranks and their batches.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The settings of the loader: the stream, and the features of a batch.

        ``Any`` stands for types that torchtitan's command line could not read.
        """

        open: Any = None
        """From ``rank=`` and ``batch_size=`` to the stream; a function of the user."""
        inputs: Any = None
        """The model's names of inputs, and the features that they are of."""
        targets: str = "labels"
        """The feature of the labels."""
        global_batch_size: int | None = None
        """Rows of a step of all ranks, as of the trainer: so that a step has the same records on
        any number of ranks, also where they accumulate gradients. ``None``: one batch a rank."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any
    ) -> None:
        whole = config.global_batch_size or local_batch_size * dp_world_size
        if whole % (local_batch_size * dp_world_size):
            raise ConfigError(
                f"a global batch of {whole} rows cannot be divided into batches of "
                f"{local_batch_size} rows on {dp_world_size} ranks; change global_batch_size or "
                "local_batch_size"
            )
        stream = config.open(rank=Rank(dp_rank, dp_world_size), batch_size=whole // dp_world_size)
        inputs = config.inputs or {"input": "input"}
        self._rows = local_batch_size
        self._loader = as_loader(stream, inputs=inputs, targets=config.targets, gather=True)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for inputs, labels, *mask in self._loader:
            targets = ignore_masked(labels, *mask or [None])
            for first in range(0, len(targets), self._rows):
                rows = slice(first, first + self._rows)
                yield {name: column[rows] for name, column in inputs.items()}, targets[rows]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks; all of them call it."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the states of any number of ranks; an empty one changes nothing."""
        if state_dict:
            self._loader.load_state_dict(state_dict)
