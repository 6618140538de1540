"""Addresses, TLS, tokens and files of secrets: who may read from a feeder."""
