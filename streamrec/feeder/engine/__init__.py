"""The private engine process, both ends of it: the trainer's handle, the child and what it serves.

``workers`` and ``operate`` may import it: a worker opens its datasets as an engine process does.
"""
