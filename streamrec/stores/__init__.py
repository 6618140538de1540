"""Stores that read, list, write and delete objects, behind one protocol for every kind of URL."""

from __future__ import annotations

from streamrec.stores.base.protocol import ObjectInfo, RangeBody, Store
from streamrec.stores.base.source_text import expand
from streamrec.stores.open import Stores

__all__ = ["ObjectInfo", "RangeBody", "Store", "Stores", "expand"]
