"""Benchmarks: dlctl and the least work that could do the same, measured in one run: report.py."""

import sys
from pathlib import Path

for _folder in ("cluster", "support"):  # what the tests start, benchmarks start, too
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / _folder))
