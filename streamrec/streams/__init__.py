"""What a training job iterates, and who reads for it; README.md names the files."""
