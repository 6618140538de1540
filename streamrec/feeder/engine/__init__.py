"""The private engine process, both ends of it: the trainer's handle, and the child."""
