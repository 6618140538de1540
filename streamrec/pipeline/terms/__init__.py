"""The terms of a run: what is settled before it begins."""
