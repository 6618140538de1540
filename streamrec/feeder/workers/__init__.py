"""The worker processes of a daemon, as their supervisor sees them."""
