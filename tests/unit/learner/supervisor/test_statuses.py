"""The supervisor's rulings on processes, and what these wrote themselves."""

from dataclasses import replace

import pytest

from dlctl import contract
from dlctl.contract import Rulings, State, Status
from learner.supervisor import statuses as module
from learner.supervisor.statuses import Statuses

FIRST = Status("learner", 0, 1, State.TRAINING, started_at=1.0)
LOST = replace(FIRST, state=State.FAILED, reason="was lost with node n2")


@pytest.fixture
def write(tmp_path):
    path = tmp_path / contract.status_file(1, "learner", 0)
    path.parent.mkdir(parents=True)

    def write(status):
        contract.write_whole(path, contract.to_json(status))
        return path

    return write


def test_a_ruling_on_a_full_disk_is_written_later(tmp_path, write, monkeypatch):
    write(FIRST)
    known = Statuses(tmp_path, 1)

    def full(path, text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_whole", full)
        known.rule(LOST)
    assert known.read("learner", 0) == LOST, "the supervisor knows it all the same"
    path = tmp_path / contract.rulings_file(1)
    assert not path.exists()
    known.retry()
    assert contract.read_record(Rulings, path).statuses == [LOST]
    path.unlink()
    known.retry()
    assert not path.exists(), "written once"


def test_a_status_that_can_not_be_read_for_a_moment_stays_known(tmp_path, write):
    path = write(FIRST)
    known = Statuses(tmp_path, 1)
    assert known.read("learner", 0) == FIRST
    path.write_text("{")
    assert known.read("learner", 0) == FIRST
    path.unlink()
    assert known.read("learner", 0) == FIRST


def test_a_last_word_that_comes_late_counts_more_than_what_was_presumed(tmp_path, write):
    write(FIRST)
    known = Statuses(tmp_path, 1)
    known.close(1, failed_rank=None)
    assert known.read("learner", 0).reason == "ended with the others"
    saved = replace(FIRST, state=State.HALTED, exit_code=85)
    write(saved)
    assert known.read("learner", 0) == saved
    known.rule(LOST)
    assert known.read("learner", 0) == LOST


def test_a_status_that_is_final_is_not_closed(tmp_path, write):
    write(replace(FIRST, state=State.COMPLETED))
    known = Statuses(tmp_path, 1)
    known.close(2, failed_rank=1)
    assert not (tmp_path / contract.rulings_file(1)).exists()


def test_a_process_that_is_restarted_for_weeks_keeps_few_rulings(tmp_path, write):
    write(FIRST)
    known = Statuses(tmp_path, 1)
    other = replace(LOST, rank=1)
    known.rule(other)
    for life in range(100):
        known.rule(replace(FIRST, state=State.DEPLOYING, started_at=float(life)))
    kept = contract.read_record(Rulings, tmp_path / contract.rulings_file(1)).statuses
    assert other in kept
    assert [each.started_at for each in kept if each.rank == 0] == [
        float(n) for n in range(92, 100)
    ]
