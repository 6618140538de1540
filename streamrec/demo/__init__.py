"""The whole main job on one machine: ``streamrec demo``.

Shards of real pictures, an object store with latency, a feeder in a process of its own, and a
client a rank; then the proof that every record arrived exactly once an epoch, although one rank
stopped in the middle and went on from its saved state.
"""

from __future__ import annotations

from streamrec.demo.job import Summary, run

__all__ = ["Summary", "run"]
