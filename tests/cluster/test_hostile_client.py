"""Faults of this machine on the way of a real training: a full disk, a record of two versions."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from trainings import state_of, submit, wait_for_state, write_training


@pytest.fixture
def full(tmp_path):
    """A file system of this machine without a free byte, on which a folder is ours."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", place]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    (place / "state").mkdir()
    (place / "got").mkdir()
    with contextlib.suppress(OSError), (place / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(b"x" * 4096)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def fish(cluster):
    """The login shell of the site's user is fish, where this machine has it."""
    program = shutil.which("fish") or shutil.which("tcsh")
    if os.getuid() != 0 or program is None:
        pytest.skip("needs root, and fish: apt-get install fish")
    file = cluster.folder / "etc/etc/passwd"
    before = file.read_text()
    user = re.escape(cluster.user_name)
    file.write_text(re.sub(rf"(?m)^({user}:.*:)[^:\n]*$", rf"\g<1>{program}", before))
    yield program
    file.write_text(before)


def test_a_full_disk_here_and_a_record_of_two_versions(
    dlctl, cluster_site, fish, full, tmp_path, wait_until
):
    """Takes longer because one training goes the whole way, over a login shell of another kind."""
    result = 'head -c 500000 /dev/urandom >"$RESULT_DIR/big"'
    folder = write_training(tmp_path / "job", {"command": result})
    elsewhere = {"XDG_STATE_HOME": str(full / "state")}
    refused = dlctl("submit", "manifest.yml", "--site", cluster_site.name, cwd=folder,
                    env=elsewhere)  # fmt: skip
    told(refused, 8, "make room there")
    assert not list(cluster_site.root.glob("jobs/*")), "nothing is sent without a record"

    training_id = submit(dlctl, cluster_site, folder)
    wait_for_state(dlctl, wait_until, training_id, "COMPLETED")
    told(dlctl("adopt", cluster_site.name, env=elsewhere), 8, "make room there")
    told(dlctl("fetch", "results", training_id, "--to", full / "got"), 9, "No space left on device")
    assert not list(full.rglob("big"))
    with Path("/dev/full").open("w") as output:
        listed = subprocess.run(
            [sys.executable, "-m", "dlctl", "list"],
            stdout=output, stderr=subprocess.PIPE, env=dlctl.env, text=True,
        )  # fmt: skip
    assert listed.returncode == 1 and "standard output can't be written" in listed.stderr
    got = tmp_path / "got"
    dlctl("fetch", "results", training_id, "--to", got, ok=True)
    assert next(got.rglob("big")).stat().st_size == 500_000

    # A newer dlctl adds a field to this training, and a training that this one can't understand.
    file = Path(dlctl.env["XDG_STATE_HOME"], "dlctl/trainings.db")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE more SET fields = json_set(fields, '$.colour', 'red')")
        (columns,) = [[row[1] for row in connection.execute("PRAGMA table_info(trainings)")]]
        values = ", ".join({"training_id": "'newer-1'", "state": "'DREAMING'"}.get(name, name)
                           for name in columns)  # fmt: skip
        connection.execute(f"INSERT INTO trainings SELECT {values} FROM trainings")
    listed = dlctl("list", "--json", ok=True)
    assert [row["training_id"] for row in listed.json] == [training_id]
    assert "newer-1" in listed.stderr and "does not understand" in listed.stderr
    assert state_of(dlctl, training_id)["state"] == "COMPLETED"
    dlctl("adopt", cluster_site.name, ok=True)
    dlctl("prune", "--older-than", "1s", "--yes", "--dry-run", ok=True)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        kept = [row[0] for row in connection.execute("SELECT training_id FROM trainings")]
        fields = [json.loads(row[0]) for row in connection.execute("SELECT fields FROM more")]
    assert sorted(kept) == sorted(["newer-1", training_id])
    assert [each["colour"] for each in fields if each.get("colour")] == ["red"]


def told(done, code, words):
    """Check that a command ended with one sentence and what to do."""
    assert done.exit_code == code and words in done.stderr, done
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 3, done
