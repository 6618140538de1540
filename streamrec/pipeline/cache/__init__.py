"""The cache of decoded batches: their keys, their form, and the run that delivers from it."""
