"""`pytest tests/golden --update-golden` writes the expected scripts anew; nothing else does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))  # login_side


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the expected files anew")
