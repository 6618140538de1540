"""Features of a dataset as streamrec's specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["specs"]


def specs(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, sr.FixedLenFeature]:
    """From the plain form of :mod:`bench.datasets`."""
    return {name: sr.FixedLenFeature(**arguments) for name, arguments in plain.items()}
