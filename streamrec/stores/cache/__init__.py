"""The cache of pieces, on a disk or in memory: ranges of objects as they came, or whole batches."""
