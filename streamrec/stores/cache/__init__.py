"""The cache of ranges as they came from a store: pieces of objects, on a disk or in memory."""
