"""What meets a framework; each file imports its own, and nothing else does."""
