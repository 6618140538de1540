"""The worker processes of a daemon, as their supervisor sees them.

``operate`` may import it.
"""
