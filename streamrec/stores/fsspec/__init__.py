"""The store over fsspec's filesystems."""
