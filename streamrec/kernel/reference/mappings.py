"""The encoding of single mappings, which this kernel leaves to ``formats.examples``.

That encoder takes all values, and is the specification of the one in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_plain(
    features: Mapping[str, Any],  # noqa: ARG001 - it is never plain enough
    codes: dict[str, int] | None = None,  # noqa: ARG001
) -> bytes | None:
    """Return ``None``, so that the encoder for all values is called."""
    return None
