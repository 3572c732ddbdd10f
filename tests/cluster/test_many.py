"""One command for several trainings, on both schedulers."""

from __future__ import annotations

from trainings import submit, wait_for_state, write_training


def test_several_are_cancelled_fetched_and_deleted_by_one_command(
    dlctl, site, tmp_path, wait_until
):
    quick = write_training(tmp_path / "quick", {"command": "echo 1 >$RESULT_DIR/one"}, name="quick")
    slow = write_training(tmp_path / "slow", {"command": "exec sleep 600"}, name="slow")
    ended = [submit(dlctl, site, quick) for _ in range(2)]
    running = [submit(dlctl, site, slow) for _ in range(2)]
    for training_id in ended:
        wait_for_state(dlctl, wait_until, training_id, "COMPLETED")
    done = dlctl("fetch", *ended, "--to", tmp_path / "got", "--json", ok=True).json
    assert len(done) == 2
    assert {path.parent.name for path in (tmp_path / "got").glob("*/results")} <= set(ended)
    assert len(list((tmp_path / "got").rglob("one"))) == 2
    rows = dlctl("list", "--name", "slow*", "--json", ok=True).json
    assert {row["training_id"] for row in rows} == set(running)
    cancelled = dlctl("cancel", "--name", "slow", "--json", ok=True).json
    assert {row["training_id"] for row in cancelled} == set(running)
    for training_id in running:
        wait_for_state(dlctl, wait_until, training_id, "CANCELLED")
    assert dlctl("cancel", "--name", "slow", "--json", ok=True).json == []
    assert "no training fits" in dlctl("halt", "--name", "nobody", ok=True).stderr
    dlctl("delete", "--state", "completed", "--yes", ok=True)
    left = dlctl("list", "--json", ok=True).json
    assert {row["training_id"] for row in left} == set(running)
