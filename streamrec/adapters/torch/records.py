"""Single records as a dataset, for a trainer that counts the epochs and collates."""

from __future__ import annotations

from typing import Any

from streamrec.adapters.torch.loader import Loader
from streamrec.adapters.torch.state import epoch_of
from streamrec.errors import ConfigError
from streamrec.pipeline.batch.batch import Batch

__all__ = ["Records"]


class Records(Loader):
    """Single records; made by :func:`streamrec.adapters.huggingface.as_dataset`."""

    def _go_to_epoch(self, epoch: int) -> None:
        """Go to the very beginning of an epoch: the trainer passes over what it has had of it.

        A state of that epoch that was loaded holds.
        """
        if self._is_loaded and epoch == epoch_of(self._stream.state_dict()):
            return
        self._forget()
        self._stream.rewind()
        self._stream.set_epoch(epoch)

    def _tensors(self, item: Any) -> Any:
        if isinstance(item, Batch):
            raise ConfigError(
                "the stream gives batches, and the Trainer makes them of single records; open the "
                "stream without batch_size, and give the Trainer per_device_train_batch_size"
            )
        return super()._tensors(item)
