"""Stores that read shards from local files, memory, http(s), S3 and GCS, behind one protocol.

A store reads a range of one object, lists, writes and deletes objects. Its reads are not retried or
limited; ``pipeline`` does that. A cache of ranges stands before the others where one is named.
``config/schemes.py`` says which store a URL has; its module imports what SDKs it needs.

From below: ``base`` (the protocol, versions, troubles), ``local`` and ``fsspec``, ``http``, ``s3``
and ``gcs``, ``cache``, and the files here, which open stores and use them: ``open`` for event
loops, ``blocking`` for others, ``writing`` for one object, ``folder`` and ``stored_files`` for
many.
"""

from __future__ import annotations

from streamrec.stores.base.protocol import ObjectInfo, RangeBody, Store
from streamrec.stores.open import Stores, expand

__all__ = ["ObjectInfo", "RangeBody", "Store", "Stores", "expand"]
