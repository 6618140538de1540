"""The sending side of a feeder: arrivals, conversations, and what clients share."""
