"""The status page of a feeder, and what it shares with ``streamrec top``."""
