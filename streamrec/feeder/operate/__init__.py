"""The daemon, from its start to its end, and its worker processes from within."""
