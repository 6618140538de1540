"""Stores that read shards from local files, memory, http(s), S3 and GCS, behind one protocol.

A store reads a range of one object, and lists objects. It does not retry or limit requests;
``pipeline`` does. A cache of ranges stands before the others where one is named. Cloud SDKs are
imported by the module of the store that needs them.
"""

from __future__ import annotations

from streamrec.stores.base.protocol import ObjectInfo, RangeBody, Store
from streamrec.stores.open import Stores, expand

__all__ = ["ObjectInfo", "RangeBody", "Store", "Stores", "expand"]
