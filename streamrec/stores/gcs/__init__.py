"""The store of Google Cloud Storage."""
