"""`dlctl export` asks a site for the right weights, and puts the model in its place."""

import hashlib

import pytest
from login_side import MANIFEST, make_record, plan_of

from dlctl import lifecycle
from dlctl.contract import State
from dlctl.errors import RecordError, ResultsError, TransferError
from dlctl.lifecycle.session import Session
from dlctl.outputs import export
from dlctl.outputs.export import ExportRequest, bring, export_model
from dlctl.transport.local import LocalTransport

SESSION = Session(None, LocalTransport(), None)


@pytest.fixture
def asked(monkeypatch):
    """The calls at the site, which answers at once."""
    calls = []

    def run_module(session, plan, module, arguments, **how):
        calls.append((module, list(arguments), how))
        return {"path": "results/model.onnx", "sha256": "0"}

    monkeypatch.setattr(export, "run_module", run_module)
    monkeypatch.setattr(lifecycle, "refresh", lambda session, records, store: records)
    monkeypatch.setattr(lifecycle, "read_plan", lambda session, record: plan_of(MANIFEST))
    return calls


@pytest.mark.parametrize(
    ("state", "checkpoint", "arguments"),
    [
        (State.COMPLETED, None, []),
        (State.COMPLETED, "12", ["--checkpoint", "12"]),
        (State.HALTED, None, ["--checkpoint", "newest"]),
        (State.FAILED, None, ["--checkpoint", "newest"]),
        (State.TRAINING, "newest", ["--checkpoint", "newest"]),
    ],
)
def test_the_weights_that_there_are(asked, state, checkpoint, arguments):
    record = make_record(state=state)
    export_model(SESSION, record, None, ExportRequest("onnx", checkpoint, on_node=True))
    [(module, given, how)] = asked
    assert module == "learner.export"
    assert given == [record.job_dir, "--format", "onnx", *arguments]
    assert how["on_node"] and how["timeout_s"] > 3600
    export_model(SESSION, record, None, ExportRequest("onnx", checkpoint, fixed_batch=True))
    assert asked.pop()[1] == [*given, "--fixed-batch"]
    with pytest.raises(RecordError, match="is TRAINING: it has no trained model yet"):
        export_model(SESSION, make_record(state=State.TRAINING), None, ExportRequest("onnx"))
    assert len(asked) == 1


@pytest.fixture
def made(tmp_path):
    """A record whose site holds an exported file, and the site's answer."""
    record = make_record(tmp_path / "site")
    folder = tmp_path / "site/jobs/t-1/results"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"a model")
    digest = hashlib.sha256(b"a model").hexdigest()
    return record, {"path": "results/model.onnx", "sha256": digest}


def test_a_file_lies_where_it_was_asked_for(made, tmp_path, monkeypatch):
    record, answer = made
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert bring(SESSION, record, answer, None) == tmp_path / "here/results/t-1/model.onnx"
    assert bring(SESSION, record, answer, tmp_path / "a/b.onnx").read_bytes() == b"a model"
    assert bring(SESSION, record, answer, tmp_path / "a/b.onnx").name == "b.onnx"
    assert bring(SESSION, record, answer, tmp_path / "a") == tmp_path / "a/model.onnx"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b.onnx", "model.onnx"]


def test_foreign_and_damaged_files_are_not_kept(made, tmp_path, monkeypatch):
    record, answer = made
    (tmp_path / "results/t-1").mkdir(parents=True)
    (tmp_path / "results/t-1/mine").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match="not from an earlier fetch"):
        bring(SESSION, record, answer, None)
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="can't be written"):
        bring(SESSION, record, answer, tmp_path / "file/x")
    with pytest.raises(TransferError):
        bring(SESSION, record, answer | {"sha256": "0" * 64}, tmp_path / "out/x")
    assert not list((tmp_path / "out").iterdir())
