"""The feeder's protocol, without I/O; README.md names the files."""
