"""Adapters to frameworks; each file alone imports its own."""
