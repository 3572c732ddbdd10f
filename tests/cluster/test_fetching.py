"""`dlctl fetch` of a real training: killed in mid-file and run again, and two at once."""

from __future__ import annotations

import signal

import pytest
from trainings import complete, write_training
from waiting import wait_until

SIZE_BYTES = 200_000_000
PROGRAM = f"""\
head -c {SIZE_BYTES} /dev/urandom >$RESULT_DIR/model.bin; echo 1 >$RESULT_DIR/one
mkdir $CHECKPOINT_DIR/step-7; echo w >$CHECKPOINT_DIR/step-7/weights; echo saved"""


@pytest.mark.cluster
def test_a_killed_fetch_goes_on_in_mid_file(dlctl, cluster_site, tmp_path):
    """It takes seconds, because the file must be large enough to be killed in the middle."""
    folder = write_training(tmp_path / "job", {"command": PROGRAM})
    training_id = complete(dlctl, cluster_site, folder)
    to = tmp_path / "got"

    def arrived_bytes() -> int:
        return max((path.stat().st_size for path in to.glob(".dlctl-partial/*")), default=0)

    with dlctl.start("fetch", training_id, "--to", to) as first:
        wait_until(lambda: arrived_bytes() > SIZE_BYTES // 4, 60, what="a part of the file")
        first.send_signal(signal.SIGKILL)
    assert not (to / "model.bin").exists()
    kept = arrived_bytes()
    assert kept > SIZE_BYTES // 4
    inode = next(p for p in to.glob(".dlctl-partial/*") if p.suffix != ".note").stat().st_ino
    with (
        dlctl.start("fetch", "all", training_id, "--to", to) as second,
        dlctl.start("fetch", "all", training_id, "--to", to) as third,
    ):
        assert second.wait(120) == third.wait(120) == 0
    there = cluster_site.job_dir(training_id)
    assert (to / "model.bin").stat().st_ino == inode
    assert (to / "model.bin").read_bytes() == (there / "results/model.bin").read_bytes()
    assert (to / "checkpoints/step-7/weights").read_text() == "w\n"
    assert list(to.rglob("*.local*")) == []
    assert not (to / ".dlctl-partial").exists()
    again = dlctl("fetch", "all", training_id, "--to", to, "--json", ok=True).json
    assert {"model.bin", "one", "metrics.jsonl"} & set(again["files"]) >= {"model.bin", "one"}
    assert again["kept"] == again["left_out"] == []
