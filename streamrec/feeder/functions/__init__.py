"""The user's functions: their code, their identity, and the way to the engine process."""
