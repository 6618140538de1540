"""The values that all layers pass on: blocks and rows of records, columns, batches, messages."""
