"""Lanes: records from bytes, in the order of the dataset."""
