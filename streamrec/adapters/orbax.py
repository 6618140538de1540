"""With Orbax: the state of a stream beside the model's in a checkpoint.

::

    from streamrec.adapters.orbax import StreamRestore, StreamSave

    args = ocp.args.Composite(model=ocp.args.StandardSave(model), stream=StreamSave(arrays))
    manager.save(step, args=args)
    args = ocp.args.Composite(model=ocp.args.StandardRestore(), stream=StreamRestore(arrays))
    manager.restore(step, args=args)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrec.errors import MalformedPosition
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.adapters.jax import GlobalBatches
    from streamrec.adapters.keras import KerasDataset
    from streamrec.streams.stream import Stream

__all__ = ["StreamCheckpointHandler", "StreamRestore", "StreamSave"]

with needs("streamrec.adapters.orbax", "jax"):
    import jax

    ocp: Any = import_module("orbax.checkpoint")


class StreamCheckpointHandler(ocp.CheckpointHandler):  # type: ignore[misc]
    """Orbax's handler for streams: a file of each process, ``process_0-of-8.json``.

    The state is taken while ``save`` runs, in asynchronous checkpoints too.
    """

    def save(self, directory: Path, args: Any) -> None:
        """Write the state of this process's stream."""
        # A file of each process: all of them write into one directory.
        name = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
        (directory / name).write_text(json.dumps(args.item.state_dict()))

    def restore(self, directory: Path, args: Any) -> Any:
        """Let a stream go on from the states of all processes, and return it.

        The number of processes and ranks may differ from those that saved the states, as
        ``Stream.load_state_dict`` says.

        Raises:
            StateError: There are no states, or they do not belong together.
        """
        texts = [path.read_text() for path in directory.glob("process_*-of-*.json")]
        if not texts:
            raise MalformedPosition(
                f"there is no state of a stream in {directory}; restore what StreamSave has saved"
            )
        # The processes that hold one rank's rows have one state.
        try:
            states = [json.loads(text) for text in sorted(set(texts))]
        except ValueError:
            raise MalformedPosition(
                f"a state of a stream in {directory} is not JSON, so it was not written whole; "
                "restore another checkpoint"
            ) from None
        args.item.load_state_dict(states)
        return args.item


@ocp.args.register_with_handler(StreamCheckpointHandler, for_save=True)
@dataclass
class StreamSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The argument that saves the state of a stream or of ``as_arrays``."""

    item: Stream[Any] | GlobalBatches | KerasDataset


@ocp.args.register_with_handler(StreamCheckpointHandler, for_restore=True)
@dataclass
class StreamRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The argument that restores a state: a new stream of the same dataset and order."""

    item: Stream[Any] | GlobalBatches | KerasDataset
