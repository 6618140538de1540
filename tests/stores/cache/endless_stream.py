"""A process that reads a stream with a cache for ever, and writes a line after each batch.

A pipe holds 16 of these lines: it gets only so far ahead of who reads them.
"""

from __future__ import annotations

import json
import sys

import streamrec as sr

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    with sr.open(**settings, epochs=None) as stream:
        for batch in stream:
            print(f"{len(batch):<4095}", flush=True)
