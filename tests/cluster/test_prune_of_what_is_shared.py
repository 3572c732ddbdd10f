"""`dlctl prune` and `dlctl du` of what trainings share: nothing that is in use ever goes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from test_object_stores import of_commands
from test_requirements import wheels  # noqa: F401 - a fixture
from trainings import ON_THE_CLUSTER, submit, wait_for_file, wait_for_state
from waiting import wait_until

from dlctl import contract

COMMAND = """\
set -e; python -c 'import useful'; cat "$DATA_DIR/words"; echo 1 >"$JOB_STATE_DIR/began"
exec sleep 600"""
SHARED = ("runtime", "store", contract.ENVIRONMENTS)


def age(root: Path) -> set[str]:
    """Make all of it look as if nobody had asked for it for days; return what is shared."""
    then = time.time() - 3 * 86400
    shared = [path for name in SHARED for path in root.glob(f"{name}/[!.]*/")]
    cached = [path for path in root.glob("cache/**/*") if not path.is_symlink()]
    for path in [*shared, *cached, *root.glob(f"{contract.MODEL_BLOBS}/*")]:
        os.utime(path, (then, then))
    return {f"{path.parent.name}/{path.name}" for path in shared}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@ON_THE_CLUSTER
def test_nothing_shared_goes_while_it_is_used_and_all_of_it_afterwards(
    dlctl, site, swift_for, wheels  # noqa: F811
):  # fmt: skip
    root = site.root
    data = swift_for.container("shared", {"words": b"forty two"})
    folder, secret = of_commands(dlctl, swift_for, data, COMMAND)
    manifest = json.loads((folder / "manifest.yml").read_text())
    manifest |= {"Learners": 1, "requirements": ["--no-index", f"-f {wheels}", "useful"]}
    (folder / "manifest.yml").write_text(json.dumps(manifest))
    (folder / "notes").write_text("a content of the stored model")
    training_id = submit(dlctl, site, folder, env=secret)
    made = dlctl("models", "create", folder, "--site", site.name, "--json", ok=True).json
    wait_for_file(site.job_dir(training_id) / "state/began")

    def prune(*options: str) -> dict:
        done = dlctl("prune", site.name, "--older-than", "1s", "--json", *options, ok=True)
        return done.json[0]

    def gone(pruned: dict) -> set[str]:
        return set(pruned["removed"]["unused"]) if pruned["removed"] else set()

    shared, before = age(root), files(root)
    assert {name.partition("/")[0] for name in shared} == set(SHARED)
    looked = prune("--dry-run")
    assert looked["trainings"] == looked["cached"] == []
    assert (looked["unused"], looked["contents"]["blobs"]) == ({}, 0)
    prune("--yes")
    kept = {name for name in before if name.startswith((*SHARED, "cache", "models"))}
    assert kept - files(root) == set()
    told = dlctl("du", site.name, "--json", ok=True).json
    assert told["unused"] == {}
    parts = {"environments", "runtimes", "sent folders", "cached data", "stored models"}
    assert parts <= {name for name, size_bytes in told["parts"].items() if size_bytes}

    dlctl("cancel", training_id, ok=True)
    wait_for_state(dlctl, training_id, "CANCELLED")
    # What the training names is asked for once more: its plan is there until it goes itself.
    assert age(root) == shared
    found = wait_until(lambda: prune("--dry-run")["trainings"], 60, what="a second")
    assert [each["training_id"] for each in found] == [training_id]
    assert prune("--yes")["removed"]["trainings"] == [training_id]
    age(root)
    again = prune("--yes")
    left = {f"{path.parent.name}/{path.name}" for name in SHARED for path in root.glob(f"{name}/*")}
    assert not {name for name in left if name.startswith((contract.ENVIRONMENTS, "store"))}
    assert set(again["unused"]) == gone(again)
    assert gone(again) == {name for name in shared if name not in left}
    assert not list(root.glob("cache/**/words"))
    blobs = files(root / contract.MODEL_BLOBS)
    assert blobs and again["contents"]["blobs"] == 0

    dlctl("models", "delete", made["model_id"], "--yes", ok=True)
    age(root)
    assert prune("--yes")["removed"]["contents"] == len(blobs)
    assert files(root / contract.MODEL_BLOBS) == set()
