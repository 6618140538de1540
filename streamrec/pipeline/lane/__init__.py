"""Lanes: records from bytes, in the order of the dataset, and the cut into batches."""
