"""Benchmarks: dlctl and the least work that could do the same, measured in one run: report.py."""
