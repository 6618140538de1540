"""The receiving side of a feeder, and what both sides need of a connection."""
