"""Fetch processes: sockets, TLS and HTTP of a stream, on cores of their own."""
