"""The user's functions: their code, their identity, and the way to the engine process by value.

``server``, ``engine`` and what stands above may import it; it imports no other room of the feeder.
"""
