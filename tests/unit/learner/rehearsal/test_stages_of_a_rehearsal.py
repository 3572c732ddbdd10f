"""A rehearsal: what each attempt does, how it disturbs a learner, what it compares and reports."""

import json
import signal
import zlib
from dataclasses import replace

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Lifecycle, Rehearsal, Rehearsed, Stage, State, Status, Verdict, to_json
from dlctl.contract.metrics import MetricsLine
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import FileRecord, Marker, ShareRecord, StoredPiece
from learner.lifecycle.manager import conclude, follow
from learner.rehearsal import drill, report
from learner.rehearsal.report import differing
from learner.rehearsal.stages import following, objection


def checkpoint(root, step, crc=1, seconds=1.0, extra=0):
    """Write what the comparison reads of a checkpoint."""
    folder = root / layout.directory_name(step)
    folder.mkdir(parents=True)
    pieces = [StoredPiece("0:0", "<f4", 4, 0, [crc]), StoredPiece("rank", "|u1", 9, 16, [7])]
    epoch = {"is": "dict", "items": [["loss", 1.0], ["samples_per_s", seconds]]}
    position = {"is": "dict", "items": [["history", [epoch]], ["batch", extra]]}
    state = {"leaves": [{"name": "model/w"}], "tree": position}
    contents = {
        "share-0.json": layout.to_bytes(ShareRecord(0, 0, 0, pieces)),
        "state.json": json.dumps(state).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {name: FileRecord(len(c), zlib.crc32(c)) for name, c in contents.items()}
    marker = Marker(step, 1, files, written_at=seconds)
    (folder / layout.MARKER_FILE).write_bytes(layout.to_bytes(marker))
    return folder


@pytest.mark.parametrize("steps", [3, 4, 5, 20])
def test_the_stages_disturb_in_order_and_within_the_steps(steps):
    first = Rehearsal(steps + 5)  # the training has fewer steps than were asked for
    halts = following(first, steps)
    kills = following(halts, 0)
    last = following(kills, 0)
    assert (halts.stage, kills.stage, last.stage) == (Stage.HALT, Stage.KILL, Stage.FINISH)
    assert 0 < halts.at + 1 < kills.at < steps and last.at is None
    assert {each.steps for each in (halts, kills, last)} == {steps}
    assert following(last, steps) is None


@pytest.mark.parametrize(("stage", "state", "step", "killed", "words"), [
    (Stage.REFERENCE, State.COMPLETED, 20, False, ""),
    (Stage.REFERENCE, State.COMPLETED, 2, False, "needs at least 3 steps, and there are 2"),
    (Stage.REFERENCE, State.FAILED, -1, False, "`reference` ended FAILED"),
    (Stage.HALT, State.HALTED, 6, False, ""),
    (Stage.HALT, State.COMPLETED, 20, False, "`halt` ended COMPLETED, not HALTED"),
    (Stage.KILL, State.FAILED, 12, True, ""),
    (Stage.KILL, State.FAILED, 12, False, "failed before the rehearsal killed it"),
    (Stage.FINISH, State.COMPLETED, 20, False, ""),
])  # fmt: skip
def test_what_goes_another_way_ends_the_rehearsal(stage, state, step, killed, words):
    found = objection(Rehearsal(20, stage), state, step, killed=killed)
    assert words in found and bool(words) == bool(found)


def test_only_learner_0_is_killed_and_tells_before(monkeypatch):
    killed, told = [], []
    monkeypatch.setattr(drill.os, "kill", lambda _, number: killed.append(number))
    for rank, at in ((1, 4), (0, 3), (0, 4)):
        drill.Drill(Rehearsal(9, Stage.KILL, 4), rank, told.append, lambda: False).disturb(at)
    assert (killed, told) == ([signal.SIGKILL], [drill.KILLED])


def test_a_learner_waits_for_the_halt_once():
    told, halted = [], iter([False, False, True])
    mine = drill.Drill(Rehearsal(9, Stage.HALT, 2), 0, told.append, lambda: next(halted))
    for step in range(5):
        mine.disturb(step)
    assert told == [drill.WAITS] and mine.over(9) and not mine.over(8)


def test_the_supervisor_halts_at_learner_0s_step():
    def learner(step):
        return [Status("learner", 0, 2, State.TRAINING, step=step)]

    halts = Rehearsal(20, Stage.HALT, 5)
    assert drill.halt_is_due(halts, learner(5))
    assert not drill.halt_is_due(halts, learner(4)) and not drill.halt_is_due(halts, learner(None))
    assert not drill.halt_is_due(replace(halts, stage=Stage.KILL), learner(9))
    assert not drill.halt_is_due(None, learner(9))


def test_durations_do_not_count_as_a_difference_and_everything_else_does(tmp_path):
    one = checkpoint(tmp_path / "a", 20)
    assert differing(one, checkpoint(tmp_path / "b", 20, seconds=2.0)) == []
    assert differing(one, checkpoint(tmp_path / "c", 20, crc=2)) == ["model/w"]
    assert differing(one, checkpoint(tmp_path / "d", 20, extra=1)) == [
        "position, schedule and settings"
    ]
    assert "step" in differing(one, checkpoint(tmp_path / "e", 19))


def test_a_step_is_measured_in_the_second_half_without_checkpoints():
    lines = [
        MetricsLine(1, time=100.0, values={"step_s": 9.0}),
        MetricsLine(2, time=101.0, values={"step_s": 1.0, "checkpoint_stall_s": 0.5}),
        MetricsLine(2, time=101.0, event="something"),
        MetricsLine(3, time=102.0, values={"step_s": 0.5}),
    ]
    assert report.undisturbed_step_s(lines) == 0.5
    assert report.first_step_at(lines) == 91.0
    assert report.undisturbed_step_s([]) is None


@pytest.fixture
def job(tmp_path):
    """Return the folder and the plan of a rehearsal whose first attempt has just trained."""
    plan = replace(
        make_plan(job_dir=str(tmp_path)), rehearsal=Rehearsal(20),
        lifecycle=Lifecycle(retries=0, starters=["in_allocation"]),
    )  # fmt: skip
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    (tmp_path / contract.CONTROL).mkdir()
    (tmp_path / contract.MANIFEST).write_text("name: t\n")
    (tmp_path / contract.SCRIPT).write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    (tmp_path / contract.trained_file(1)).write_text("{}")
    checkpoint(tmp_path / contract.CHECKPOINTS, 20)
    return tmp_path, plan


def end(folder, plan, attempt, state):
    verdict, next_ = conclude(folder, plan, Verdict(attempt, "7", state, "why"), 20.0)
    assert verdict.action is not None
    assert verdict.action.goes_on == (next_ is not None)
    assert next_ is None or follow(next_, lambda _: None)
    return verdict.action


def test_four_attempts_in_one_job_end_with_a_report(job):
    folder, plan = job
    end(folder, plan, 1, State.COMPLETED)
    assert not list((folder / contract.CHECKPOINTS).iterdir())
    assert not (folder / contract.trained_file(1)).exists(), "else nothing would be trained"
    metrics = folder / contract.metrics_file(3, 0)
    metrics.parent.mkdir()
    metrics.write_bytes(MetricsLine(13, time=1.0, event=drill.KILLED).encode())
    for attempt, state in ((2, State.HALTED), (3, State.FAILED)):
        plan = contract.read_record(contract.Plan, folder / contract.plan_file(attempt))
        end(folder, plan, attempt, state)
    checkpoint(folder / contract.CHECKPOINTS, 20, seconds=2.0)
    plan = contract.read_record(contract.Plan, folder / contract.plan_file(4))
    assert end(folder, plan, 4, State.COMPLETED).kind == "nothing"
    found = contract.read_record(Rehearsed, folder / contract.REHEARSAL)
    assert found is not None and found.equal and (found.steps, found.killed_at) == (20, 13)


def test_a_person_ends_a_rehearsal(job):
    folder, plan = job
    (folder / contract.HALT_REQUEST).touch()
    assert end(folder, plan, 1, State.COMPLETED).kind == "stop"
    assert list((folder / contract.CHECKPOINTS).iterdir())


def test_nobody_else_goes_on_with_a_rehearsal_whose_job_has_ended(job):
    folder, plan = job
    contract.write_whole(folder / contract.PLAN, to_json(plan))
    verdict = Verdict(1, "7", State.COMPLETED, "why")
    verdict, next_ = conclude(folder, plan, verdict, None, in_job=False)
    assert next_ is None and verdict.action is not None and verdict.action.kind == "stop"
