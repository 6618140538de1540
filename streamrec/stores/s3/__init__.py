"""The store of S3 and compatible services."""
