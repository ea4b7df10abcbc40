"""Benchmarks: ours and every peer side by side, in one run. `python -m benchmarks --help`."""
