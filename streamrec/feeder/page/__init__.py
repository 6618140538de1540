"""The status page of a feeder, and what it shares with ``streamrec top``.

``operate`` and the rooms above the feeder may import it; it imports no other room of the feeder.
"""
