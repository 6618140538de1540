"""Checkpoints of ``torch.save``, in which a program keeps the states of its streams."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def load(path: Path) -> Any:
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
