"""Makes streamrec's specs of a dataset's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Mapping


def specs(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, sr.FixedLenFeature]:
    """Return specs for features in the plain form of :mod:`bench.datasets`."""
    return {name: sr.FixedLenFeature(**arguments) for name, arguments in plain.items()}
