"""Where things are in this checkout."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
SUPPORT = TESTS / "support"
RECORDED = TESTS / "recorded"
MANIFESTS = TESTS / "unit/dlctl/manifest/manifests"
