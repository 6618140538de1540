"""The store of local files."""
