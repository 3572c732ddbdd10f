"""The job directory's records: whole, versioned, understood by older and newer readers."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from login_side import plan_of

from dlctl import contract
from dlctl.contract import ContractError, Evidence, State, Status, Verdict, metrics
from dlctl.contract.metrics import make_line, parse_line
from learner.checkpoint_files.disk import Disk
from learner.job.metrics import MetricsFile
from learner.storage.index import write_index

RECORDS = [
    plan_of(learners=3, memory="2GiB", time="1h"),
    Status("learner", 1, 2, State.TRAINING, metrics={"loss": 0.5}, last_lines=["é \u2028"]),
    Verdict(1, "7", State.FAILED, "why", evidence=Evidence("learner", 0, "n1", None, 9, ["end"])),
    contract.Rulings([Status("server", 0, 2, State.FAILED, reason="was lost with node n1")]),
    contract.Preflight(0, "n1", "3.11", 2, None, None, problems=["p"]),
    contract.Directive("halt", "asked", 1.0, 2.0),
    contract.ResultsIndex([contract.ResultFile("a/b", 3, "abc")]),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back_as_it_was(record):
    text = contract.to_json(record)
    assert text.endswith("}\n")
    assert json.loads(text)["schema_version"] == contract.SCHEMA_VERSION
    assert contract.from_json(type(record), text) == record
    assert contract.from_json(type(record), text.encode()) == record
    newer = json.loads(text) | {"of_the_future": [1]}
    assert contract.from_json(type(record), json.dumps(newer)) == record


@pytest.mark.parametrize(("text", "seen"), [
    ("", "not JSON"), ("{", "not JSON"), (b"\xff\xfe\xfd", "not JSON"), ("[" * 100_000, "not JSON"),
    ("[]", "is no object"), ("null", "is no object"), ("{}", "Verdict.attempt is missing"),
    ('{"attempt": "1"}', "Verdict.attempt: '1' is not of the type"),
    ('{"attempt": true}', "Verdict.attempt: True is not of the type"),
    ('{"attempt": 1, "job_id": "7", "state": "DANCING"}', "'DANCING' is no State"),
    ('{"attempt": 1, "job_id": "7", "state": []}', "is no State"),
    ('{"attempt": 1, "job_id": "7", "state": "FAILED", "reason": "", "evidence": 3}',
     "Verdict.evidence: 3 is no object"),
])  # fmt: skip
def test_an_invalid_record_is_a_contract_error(text, seen):
    with pytest.raises(ContractError, match=seen):
        contract.from_json(Verdict, text)


@given(st.text(), st.floats(allow_nan=False), st.dictionaries(st.text(), st.floats(0, 1)))
def test_any_text_survives(text, number, metrics):
    status = Status("learner", 0, 1, State.TRAINING, text, heartbeat_at=number, metrics=metrics)
    assert contract.from_json(Status, contract.to_json(status).encode()) == status


def test_a_file_name_that_is_no_utf8_survives(tmp_path):
    index = contract.ResultsIndex([contract.ResultFile(os.fsdecode(b"caf\xe9"), 1, "")])
    contract.write_whole(tmp_path / "i", contract.to_json(index))
    assert contract.read_record(contract.ResultsIndex, tmp_path / "i") == index
    assert contract.read_record(Verdict, tmp_path / "verdict.json") is None, "it is not there"


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new folder" / "f"
    contract.write_whole(path, "one", mode=0o600)
    before = path.open()
    contract.write_whole(path, b"two")
    with before:
        assert before.read() == "one"
    assert path.read_text() == "two"
    assert (path.stat().st_mode & 0o777) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["f"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "f"
    contract.write_whole(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        contract.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_job_directory_that_somebody_has_removed_is_not_made_again(tmp_path):
    job_dir = tmp_path / "jobs/t-1"
    job_dir.parent.mkdir()
    for name in (contract.position_file(1), f"{contract.RESULTS}/model.pt"):
        with pytest.raises(FileNotFoundError):
            contract.write_whole(job_dir / name, "x")
    with pytest.raises(FileNotFoundError):
        write_index(job_dir)
    with pytest.raises(FileNotFoundError):
        Disk().make_directory(job_dir / contract.CHECKPOINTS / ".tmp-step")
    MetricsFile(job_dir / contract.metrics_file(1, 0)).append(1, 1, {})
    assert not job_dir.exists()


@pytest.mark.unmeasured
def test_the_contract_imports_the_standard_library_only():
    code = "import sys, dlctl.contract; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    loaded = set(done.stdout.split()) - set(sys.stdlib_module_names)
    allowed = {"dlctl", "__main__", "__mp_main__", "sitecustomize", "usercustomize"}
    assert {name for name in loaded - allowed if not name.startswith("_")} == set(), done.stderr


# A line of metrics ------------------------------------------------------------------------------


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name not in metrics.RESERVED),
        st.floats(),
        max_size=4,
    ),
)
def test_a_line_of_metrics_comes_back_as_it_was_written(step, epoch, values):
    line = make_line(step, epoch, 12.5, values)
    assert parse_line(line.encode().decode()) == line


def test_a_time_that_no_float_can_hold_is_none():
    line = parse_line('{"step": 1, "time": 1' + "0" * 400 + ', "loss": 2.0}')
    assert line is not None and (line.time, line.values) == (None, {"loss": 2.0})
    assert line.encode().count(b"\n") == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"loss": 1}', '{"step": true}', '{"step": 1.5}', '{"step": 1, "lo'],
)
def test_an_invalid_line_of_metrics_is_none(text):
    assert parse_line(text) is None


def life(state=State.TRAINING, started_at=1.0):
    return Status("learner", 1, 1, state, started_at=started_at)


RESTARTING, SECOND_RESTART = life(State.DEPLOYING), life(State.DEPLOYING, 2.0)
LOST, ENDED = life(State.FAILED), life(State.CANCELLED)


@pytest.mark.parametrize(
    ("own", "ruled", "presumed", "shown"),
    [
        (None, [LOST], [], LOST),  # it never began
        (life(), [LOST], [], LOST),
        # A process on a partitioned node may write for as long as it lives.
        (life(State.COMPLETED, 3.0), [LOST], [], LOST),
        (life(), [RESTARTING], [], RESTARTING),
        (life(started_at=2.0), [RESTARTING], [], None),
        # The first life, which had only vanished, writes after the second one has ended.
        (life(State.FAILED), [RESTARTING, SECOND_RESTART], [], SECOND_RESTART),
        (life(started_at=3.0), [RESTARTING, SECOND_RESTART], [], None),
        (None, [], [ENDED], ENDED),
        (life(), [], [ENDED], ENDED),
        (life(State.HALTED), [], [ENDED], None),  # its own last word came late
        (life(State.FAILED), [RESTARTING], [ENDED], ENDED),  # the last word of a life before
    ],
)
def test_rulings_stand_until_a_new_life_and_presumptions_until_a_last_word(
    own, ruled, presumed, shown
):
    rulings = contract.Rulings(ruled, presumed)
    assert rulings.on("learner", 1, own) is (own if shown is None else shown)
    assert rulings.on("learner", 0, own) is own
    assert rulings.on("server", 1, own) is own
