"""The pages as a site: `make site`."""

import subprocess

import pytest
from repository import REPOSITORY
from third_party import place


@pytest.mark.slow
def test_the_site_is_made_without_a_warning_and_finds_words():
    python = place() / "site/bin/python"
    if not python.exists():
        pytest.skip(f"there is no {python}: .ci/make-frameworks {place()} site")
    command = [python, "docs/make_site.py"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    made = REPOSITORY / "build/site"
    assert "own-script.html" in (made / "index.html").read_text()
    assert "CHECKPOINT_DIR" in (made / "search/search_index.json").read_text()
