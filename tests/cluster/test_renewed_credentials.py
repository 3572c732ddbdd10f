"""Credentials that change after the submission: a later attempt gets those of now."""

from __future__ import annotations

from trainings import submit, wait_for_state, write_training

LOCKED = (
    '[ "$STORE_COMBINATION" = "$(cat "$STORE_SHELF/lock")" ] || { echo wrong combination; exit 1; }'
)
TAPE = {
    "templates/stores/tape/store.yml": "description: A tape that is a folder.\n"
    "connection:\n  shelf: {required: true}\n  combination: {required: true, secret: true}\n",
    "templates/stores/tape/load.sh.j2": "#!/bin/bash\nset -eu\nmkdir -p \"$STORE_DATA\"\n"
    f"{LOCKED}\ncp \"$STORE_SHELF/$STORE_CONTAINER\"/* \"$STORE_DATA\"/\n",
    "templates/stores/tape/store.sh.j2": f"#!/bin/bash\nset -eu\n{LOCKED}\n"
    "rm -rf \"$STORE_SHELF/out\"\ncp -rL \"$STORE_SOURCE\" \"$STORE_SHELF/out\"\n",
}  # fmt: skip


def test_a_resumption_takes_the_credentials_of_the_shell_and_keeps_those_that_it_lacks(
    dlctl, local_site, tmp_path
):
    (shelf := tmp_path / "shelf").mkdir()
    (shelf / "in").mkdir()
    (shelf / "in/words").write_text("forty two")
    (shelf / "lock").write_text("new-combination")
    store = {"id": "t", "type": "tape", "training_data": {"container": "in"},
             "training_results": {"container": "out"},
             "connection": {"shelf": str(shelf), "combination": {"from_env": "COMBINATION"}},
             }  # fmt: skip
    folder = write_training(
        dlctl.cwd, {"command": '[ "$TOKEN" = abc ] && cp "$DATA_DIR/words" "$RESULT_DIR/copy"'},
        TAPE, data_stores=[store], env={"TOKEN": {"from_env": "SOME_TOKEN"}},
    )  # fmt: skip
    old = {"COMBINATION": "old-combination", "SOME_TOKEN": "abc"}
    training_id = submit(dlctl, local_site, folder, env=old)
    wait_for_state(dlctl, training_id, "FAILED")
    assert "wrong combination" in dlctl("show", training_id, "--all", ok=True).stdout
    dlctl("resume", training_id, ok=True, env={"COMBINATION": "new-combination"})
    wait_for_state(dlctl, training_id, "COMPLETED")
    assert (shelf / "out/copy").read_text() == "forty two"
    (shelf / "out/copy").unlink()
    (shelf / "lock").write_text("newest-combination")
    refused = dlctl("stores", "save", training_id)
    assert refused.exit_code == 9 and "wrong combination" in refused.stderr
    dlctl("stores", "save", training_id, ok=True, env={"COMBINATION": "newest-combination"})
    assert (shelf / "out/copy").read_text() == "forty two"
    held = [path for path in local_site.root.rglob("*") if path.is_file()
            and b"-combination" in path.read_bytes()]  # fmt: skip
    assert [(p.name, p.stat().st_mode & 0o777) for p in held] == [
        ("data_stores.0.combination", 0o600)]  # fmt: skip
