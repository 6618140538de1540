"""Batches: their columns, what makes them of records, and their form on the wire."""
