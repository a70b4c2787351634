"""What `bench.py` times, a file for each subject."""
