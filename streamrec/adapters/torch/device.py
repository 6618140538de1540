"""Batches on their way to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.torch_batch import each_tensor, pinned

if TYPE_CHECKING:
    from torch import Tensor


def device_of(device: Any) -> torch.device | None:
    """Read the argument ``device``.

    Raises:
        ConfigError: There is no such device.
    """
    try:
        found = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"torch has no device {device!r} ({error}); give one as 'cuda' or 'cuda:1'"
        ) from None
    if found is not None and found.type == "cuda":
        _check_cuda(found)
    return found


def _check_cuda(device: torch.device) -> None:
    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"device={str(device)!r}: this torch was built without CUDA; install one with it, or "
            "leave device out"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r}: torch finds no GPU here; check the driver by `nvidia-smi`, "
            "or leave device out"
        )


def mover_to(device: torch.device | None) -> Mover:
    """Return a way to move batches to a device."""
    if device is not None and device.type == "cuda":
        return CudaMover(device)
    return Mover(device)


class Mover:
    """Moves batches at once; to no device, it leaves them where they are.

    Args:
        device: Where to.
    """

    ahead = False
    """True if a batch is to be sent before the one ahead of it is used."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def send(self, batch: Any) -> Any:
        """Begin to move a batch."""
        if self._device is None:
            return batch
        return each_tensor(batch, lambda tensor: tensor.to(self._device))

    def arrive(self, batch: Any) -> Any:
        """Return a batch that was sent, for use."""
        return batch


class CudaMover(Mover):
    """Copies batches from pinned memory on a stream of its own, beside the computation.

    The pinned memory is of torch's pool, which reuses it when the copy is done.
    """

    ahead = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        cuda: Any = torch.cuda
        self._side = cuda.Stream(device)

    def send(self, batch: Any) -> Any:
        """Begin to copy a batch, and return at once."""
        # The memory of an earlier batch may be used anew: only behind the work that was on it.
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            sent = each_tensor(batch, self._copy)
            return sent, self._side.record_event()

    def arrive(self, batch: Any) -> Any:
        """Have the computation wait for a batch that was sent."""
        sent, copied = batch
        torch.cuda.current_stream(self._device).wait_event(copied)
        return sent

    def _copy(self, tensor: Tensor) -> Tensor:
        return pinned(tensor).to(self._device, non_blocking=True)
