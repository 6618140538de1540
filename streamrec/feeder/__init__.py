"""The feeder: batches over a socket, from a daemon or from an engine process of one's own."""

from __future__ import annotations
