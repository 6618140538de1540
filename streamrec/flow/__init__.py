"""Values, memory and time on their way through a run; README.md names the files."""
