"""The whole main job on one machine: ``streamrec demo``."""

from __future__ import annotations

from streamrec.demo.job import Summary, run

__all__ = ["Summary", "run"]
