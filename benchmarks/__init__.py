"""Benchmarks: dlctl beside the least that could do the same, measured in one run; see report.py."""
