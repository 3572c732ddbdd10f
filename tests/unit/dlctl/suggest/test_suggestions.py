"""The use case: what is known counts also if no site answers, and `--write` changes the file."""

import json

import pytest
from login_side import make_record
from made_past import MIB, past

from dlctl.errors import ConnectError, ManifestError
from dlctl.record import RecordStore
from dlctl.record.used import keep
from dlctl.scheduler.slurm import Slurm
from dlctl.service.client import Client
from dlctl.service.suggest import suggest

TEXT = """\
name: digits   # ours
learners: 2
memory: 32GiB
time: 40h
framework: {name: pytorch, job: train.py}
training: {epochs: 10, batch_size: 64}
"""


@pytest.fixture
def manifest(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").touch()
    path = folder / "manifest.yml"
    path.write_text(TEXT)
    path.chmod(0o640)
    return path


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A client whose sites don't answer."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))

    def refuse(_, name, **__):
        raise ConnectError(f"{name}: no route")

    monkeypatch.setattr(Client, "open", refuse)
    return Client(RecordStore(tmp_path / "record.db"))


def test_what_is_known_counts_if_no_site_answers(mine, manifest):
    keep(mine.store, [past(site="local", partition="", memory_bytes=300 * MIB)])
    mine.store.add(make_record(training_id="x-1", name="digits", site="far", job_id="9"))
    found = suggest(mine, manifest, "local")
    assert found.unanswered == {"far": "far: no route", "local": "local: no route"}
    by_key = {each.key: each for each in found.suggestions}
    assert by_key["memory"].suggested == "448MiB" and found.trainings == 1
    assert found.start.jobs == 1 and found.start.sentence.startswith(
        "the site does not answer; your"
    )
    assert found.difference == "" and manifest.read_text() == TEXT
    assert json.loads(json.dumps(found.plain()))["suggestions"][0]["asked"] == "32GiB"


def test_write_changes_the_file_behind_a_link_and_keeps_its_mode(mine, manifest, tmp_path):
    keep(mine.store, [past(site="local", partition="", memory_bytes=300 * MIB)])
    link = tmp_path / "link.yml"
    link.symlink_to(manifest)
    content = manifest.read_bytes()
    manifest.write_bytes(b"\xef\xbb\xbf" + content)
    found = suggest(mine, manifest.parent / "../link.yml", "local", write=True)
    assert link.is_symlink() and manifest.stat().st_mode & 0o777 == 0o640
    text = manifest.read_bytes().decode()
    assert text.startswith("\ufeffname: digits   # ours\nlearners: 2\ncpus: 2\nmemory: 448MiB\n")
    assert "+memory: 448MiB" in found.difference and "# ours" not in found.difference
    assert suggest(mine, manifest, "local", write=True).difference == ""


def test_a_manifest_that_is_wrong_is_said_first(mine, manifest):
    manifest.write_text("name: x\n")
    with pytest.raises(ManifestError):
        suggest(mine, manifest, "local", write=True)


ANSWER = (
    "sbatch: Job 41 to start at 2026-11-27T22:03:20 using 2 processors on nodes n1 in partition x"
)
REFUSED = "Batch job submission failed: Requested node configuration is not available"


@pytest.mark.parametrize(("now", "expected"), [
    ("Welcome\n2026-11-27T22:00:00\n", 200.0), ("2026-11-27T22:04:00\n", 0.0), ("", None),
])  # fmt: skip
def test_what_slurm_says_to_a_job_that_it_only_tests(now, expected):
    assert Slurm().parse_start(now, ANSWER)[0] == expected
    refused = Slurm().parse_start("2026-11-27T22:00:00\n", f"failure\nsbatch: error: {REFUSED}")
    assert refused == (None, f"Slurm says: {REFUSED}")
