"""Adapters to frameworks; each file alone imports its own, and is imported when it is named."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ADAPTERS = (
    "huggingface",
    "jax",
    "keras",
    "megatron",
    "meshes",
    "orbax",
    "ray",
    "tensorflow",
    "torch",
    "torchtitan",
)


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS:
        raise AttributeError(
            f"module 'streamrec.adapters' has no attribute {name!r}; there are "
            f"{', '.join(_ADAPTERS)}"
        )
    # The import sets the attribute, so that this is called once for each.
    return import_module(f"streamrec.adapters.{name}")
