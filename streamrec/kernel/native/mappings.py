"""The encoding of single mappings by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.kernel import _native

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_plain(features: Mapping[str, Any], codes: dict[str, int] | None = None) -> bytes | None:
    """Serialize a mapping of plain values as one Example, if it is one.

    Args:
        features: The values by the features' names. A ``dict`` of ``bytes``, ``str``, ``int``,
            ``float``, lists and tuples of them, and NumPy's arrays is one of plain values.
        codes: The field of ``Feature`` that each feature must have.

    Returns:
        The message; ``None`` where values are not plain, have no representation, or are of other
        types than ``codes`` says.
    """
    return _native.encode(features, codes, np.ndarray)
