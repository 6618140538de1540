"""The batches of a stream in a ``transformers.Trainer``, and their state in its checkpoints.

The Trainer resumes by dropping as many batches of the epoch as it has trained on. Here the stream
resumes from its own state, and what the Trainer then drops is empty, and was never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.data_loader import SkipDataLoader
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from streamrec.adapters.torch.loader import ignore_masked
from streamrec.adapters.torch.worker import of_all
from streamrec.errors import ConfigError
from streamrec.flow import callers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.adapters.torch.loader import Loader


class TrainerBatches(IterableDataset[Any]):
    """The batches of a loader, as the Trainer takes them of its ``DataLoader``.

    Args:
        loader: Of this rank's part of the stream.
    """

    # What Accelerate makes a DataLoader with, when it skips.
    batch_size = prefetch_factor = None
    drop_last = False

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.set_epoch = loader.set_epoch

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def dataset(self) -> TrainerBatches:
        """The dataset that Accelerate's ``skip_first_batches`` makes a new loader of."""
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        skipping = callers.nearest(SkipDataLoader)
        for _ in range(skipping.skip_batches if skipping else 0):
            yield {}
        for batch in self._loader:
            # A plain dict: the Trainer makes each batch anew by its class.
            columns = dict(batch)
            labels = ignore_masked(columns.get("labels"), batch.mask)
            yield columns if labels is None else {**columns, "labels": labels}


def state_callback(loader: Loader) -> Any:
    """Return the Trainer's callback that keeps the state of a loader in its checkpoints."""

    class StreamState(TrainerCallback, ExportableState):  # type: ignore[misc, unused-ignore]
        """The callback; a class of its own for each loader, since the Trainer may make it anew."""

        def __init__(self) -> None:
            self._own = self._saved = loader.state_dict()

        def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            """Go on from the checkpoint that the Trainer has loaded."""
            if state.global_step:
                saved = state.stateful_callbacks.setdefault(type(self).__name__, {})
                loader.load_state_dict(_states_in(saved))
                self._own = self._saved = loader.state_dict()

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            """Note the state after a step; where the Trainer is about to save, those of all."""
            self._own = self._saved = loader.state_dict()
            if control.should_save:
                self._saved = of_all(self._own, True)

        def on_epoch_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            """Collect the states of all ranks where the Trainer is about to save."""
            if control.should_save:
                self._saved = of_all(self._own, True)

        def state(self) -> dict[str, Any]:
            """Return what the Trainer keeps."""
            return {"args": {}, "attributes": {"_saved": self._saved}}

    return StreamState()


def _states_in(saved: Any) -> Any:
    states = saved.get("attributes", {}).get("_saved")
    if not states:
        raise ConfigError(
            "the checkpoint of the Trainer has no state of a stream; resume from one that was "
            "saved after feed(trainer, stream), or begin without it"
        )
    return states
