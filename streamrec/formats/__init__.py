"""Bytes and their meaning: TFRecord frames, Examples, feature specs. Pure: no I/O, no asyncio."""
