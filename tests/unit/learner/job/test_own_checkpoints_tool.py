"""Verify a program's own checkpoints: what is cut off, missing or changed is named."""

import hashlib
import json
import zipfile

import pytest

from learner.errors import UserFault
from learner.frameworks.own_checkpoints import main
from learner.lifecycle.history import newest_checkpoint


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def verify(root, pattern, *steps):
    found = main(["verify", str(root.parent), pattern, *steps])
    return {each["name"]: each["problem"] for each in found}


def marked(folder, content, **said):
    folder.mkdir()
    (folder / "weights").write_bytes(content)
    (folder / "complete.json").write_text(json.dumps({"files": {"weights": said}}))


def test_sizes_and_checksums_of_the_marker(root):
    sha = hashlib.sha256(b"abc").hexdigest()
    marked(root / "s-1", b"abc", size_bytes=3, sha256=sha)
    marked(root / "s-2", b"abc", size_bytes=4)
    marked(root / "s-3", b"abd", sha256=sha)
    marked(root / "s-4", b"abc")
    (root / "s-4/weights").unlink()
    (root / "s-5").mkdir()
    (root / "s-5/weights").write_bytes(b"abc")
    assert verify(root, "s-*") == {
        "s-1": None,
        "s-2": "weights has 3 bytes, not 4",
        "s-3": "weights does not match its checksum",
        "s-4": "weights is missing",
        "s-5": "complete.json is missing",
    }
    assert verify(root, "s-*", "1") == {"s-1": None}
    with pytest.raises(UserFault, match="no checkpoint of step 9"):
        verify(root, "s-*", "9")


def test_a_zip_file_such_as_torchs_is_checked_by_its_own_checksums(root):
    for step in (1, 2, 3):
        with zipfile.ZipFile(root / f"m-{step}.pt", "w") as archive:
            archive.writestr("data", b"0123456789" * 100)
    content = bytearray((root / "m-2.pt").read_bytes())
    content[100] ^= 1
    (root / "m-2.pt").write_bytes(content)
    (root / "m-3.pt").write_bytes((root / "m-1.pt").read_bytes()[:500])
    found = verify(root, "m-*.pt")
    assert found["m-1.pt"] is None
    assert "does not match its checksum in data" in found["m-2.pt"]
    assert "is cut off" in found["m-3.pt"]


def test_the_step_of_the_newest_complete_one_is_how_far_a_training_is(root):
    marked(root / "s-20", b"a")
    (root / "s-40").mkdir()
    (root / "s-40/weights").write_bytes(b"a")
    assert newest_checkpoint(root.parent, "s-*")[0] == 20
    assert newest_checkpoint(root.parent)[0] > 1e9  # without a pattern: when it was written
