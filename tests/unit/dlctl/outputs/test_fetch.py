"""Results: one curve over all attempts, every file verified, nothing of the user's overwritten."""

import hashlib
import itertools
import json
import os
import shutil
from dataclasses import replace

import pytest
from login_side import Vanishing, make_record
from unprivileged import unprivileged

from dlctl import contract
from dlctl.cli.fetch import _tell_fetched
from dlctl.contract import ResultFile, ResultsIndex, State
from dlctl.errors import DlctlError, ResultsError, TransferError
from dlctl.outputs.fetch import PARTS, Wanted, fetch
from dlctl.outputs.fetched_folder import FetchedFolder
from dlctl.outputs.metrics.files import read_metrics
from dlctl.transport.local import LocalTransport

HERE = LocalTransport()


class Job:
    """A training at a site, and the folder to which its files are fetched."""

    def __init__(self, folder):
        self.record = make_record(folder / "a 'site'")
        self.folder = folder / "a 'site'" / "jobs/t-1"
        self.to = folder / "to"
        self.write("manifest.yml", "name: t\n")
        self.write("plan.json", "{}")
        (self.folder / "results").mkdir()

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def log(self, text):
        self.write("attempts/1/learner-0.log", text)

    def measure(self, text, name="1-0.jsonl"):
        self.write(f"metrics/{name}", text)

    def store(self, **files):
        """Replace the results by these, and their index."""
        shutil.rmtree(self.folder / "results")
        for name, content in files.items():
            self.write(f"results/{name}", content)
        self.index(ResultFile(name, len(content), hashlib.sha256(content).hexdigest())
                   for name, content in files.items())  # fmt: skip

    def index(self, files):
        self.write("results.json", contract.to_json(ResultsIndex([*files])))

    def fetch(self, *parts, to=None, state=None, **wanted):
        record = replace(self.record, state=state or self.record.state)
        return fetch(HERE, record, to or self.to, Wanted(parts or Wanted().parts, **wanted))

    def got(self, name):
        return (self.to / name).read_text()


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_a_line_that_was_cut_off_swallows_no_attempt(job):
    assert read_metrics(HERE, job.record) == []
    job.measure('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    job.measure('{"step": 2, "again": 1}\n', "2-0.jsonl")
    job.measure('{"step": 99}\n', "2-1.jsonl")
    known = [(e.origin.learner, e.line.plain()) for e in read_metrics(HERE, job.record)]
    assert known == [(0, {"step": 1}), (0, {"step": 2, "again": 1}), (1, {"step": 99})]


def test_everything_is_brought(job):
    job.store(**{"model/weights é.pt": b"w" * 1000, "notes 'a'.txt": b""})
    job.measure('{"step": 1}\n')
    job.log("hello\nend")
    fetched = job.fetch(state=State.COMPLETED)
    assert fetched.complete
    assert set(fetched.files) == {
        "manifest.yml", "plan.json", "model/weights é.pt", "notes 'a'.txt",
        "logs/attempt-1-learner-0.log", "metrics.jsonl",
    }  # fmt: skip
    on_disk = {str(p.relative_to(job.to)) for p in job.to.rglob("*") if p.is_file()}
    assert on_disk == {*fetched.files, ".dlctl-fetch"}
    assert job.got("model/weights é.pt") == "w" * 1000
    assert job.got("logs/attempt-1-learner-0.log") == "hello\nend\n"


def test_results_with_all_of_our_names_are_the_user_s(job):
    """A result named .dlctl-fetch blocked the next fetch; others replaced dlctl's files."""
    job.store(**{"metrics.jsonl": b"mine\n"})
    job.measure('{"step": 1}\n')
    job.fetch()
    assert (job.got("metrics.jsonl"), job.got("dlctl/metrics.jsonl")) == ("mine\n", '{"step": 1}\n')
    ours = ("manifest.yml", "plan.json", "logs/attempt-1-job.log", ".dlctl-fetch", "dlctl")
    job.store(**dict.fromkeys(ours, b"mine"))
    job.write("attempts/1/slurm.out", "ours\n")
    job.to = job.to / "2"
    for _ in range(2):
        fetched = job.fetch()
        assert fetched.kept == []
    assert {job.got(name) for name in ours} == {"mine"}
    assert job.got("_dlctl/manifest.yml") == "name: t\n"
    assert job.got("_dlctl/logs/attempt-1-job.log") == "ours\n"
    assert "_dlctl/plan.json" in fetched.files


def test_a_result_that_takes_the_mark_s_name_later_is_fetched(job):
    job.store(a=b"1")
    job.fetch()
    job.store(**{"a": b"1", ".dlctl-fetch": b"mine"})
    for _ in range(2):
        job.fetch()
        assert job.got(".dlctl-fetch") == "mine"


def test_a_local_edit_is_kept(job):
    job.store(**{"model.txt": b"1", "same.txt": b"1"})
    job.fetch()
    job.store(**{"model.txt": b"2", "same.txt": b"1"})
    assert job.fetch().kept == []
    assert job.got("model.txt") == "2"
    for round_, kept in ((3, "model.txt.local"), (4, "model.txt.local-2")):
        for name in ("model.txt", "manifest.yml"):
            (job.to / name).write_text(f"my edit {round_}")
        job.store(**{"model.txt": b"%d" % round_, "same.txt": b"1"})
        assert kept in job.fetch().kept
        assert (job.got("model.txt"), job.got(kept)) == (str(round_), f"my edit {round_}")
    assert job.got("manifest.yml") == "name: t\n"
    assert job.got("manifest.yml.local") == "my edit 3"
    assert [p.name for p in job.to.glob("same*")] == ["same.txt"]


def test_a_file_of_the_user_s_own_is_kept(job):
    """Only files that the mark lists were kept; a result of the same name replaced the others."""
    job.store(a=b"1")
    job.fetch()
    (job.to / "analysis.txt").write_text("my own text")
    (job.to / "link").symlink_to("analysis.txt")
    job.store(**{"a": b"1", "analysis.txt": b"the training's", "link": b"a file"})
    assert job.fetch().kept == ["analysis.txt.local", "link.local"]
    assert job.got("analysis.txt") == "the training's"
    assert job.got("analysis.txt.local") == "my own text"
    assert (job.to / "link.local").is_symlink()


def test_files_beside_a_mark_that_lists_none_are_kept(job):
    """dlctl 0.1 wrote such marks."""
    job.store(a=b"newer", b=b"same")
    job.to.mkdir()
    for name, text in ((".dlctl-fetch", "t-1\n"), ("a", "older, or edited"), ("b", "same")):
        (job.to / name).write_text(text)
    assert job.fetch().kept == ["a.local"]
    assert job.got("a.local") == "older, or edited"


def test_a_fetch_that_fails_remembers_what_it_brought(job):
    names = ("aa.csv", "ab.csv", "zz.csv")
    job.store(**dict.fromkeys(names, b"v1"))
    job.write("results/zz.csv", "x1")
    with pytest.raises(TransferError):
        job.fetch()
    with (job.to / "aa.csv").open("a") as file:
        file.write("EDIT")
    job.store(**dict.fromkeys(names, b"v2"))
    assert job.fetch().kept == ["aa.csv.local"]
    assert job.got("aa.csv.local") == "v1EDIT"
    assert job.got("ab.csv") == job.got("aa.csv") == "v2"


def test_an_edit_made_while_other_files_arrive_is_kept(job):
    def edit_first(done_bytes, total_bytes):
        if (job.to / "a").exists():
            (job.to / "a").write_text("my edit")

    job.store(a=b"1", b=b"1")
    job.fetch(on_progress=edit_first)
    job.store(a=b"2", b=b"1")
    assert job.fetch().kept == ["a.local"]


@pytest.mark.parametrize("edited", [False, True])
def test_a_file_becomes_a_folder_and_a_folder_a_file(job, edited):
    """Each further fetch ended with "Is a directory" or "File exists"."""
    before = {"x/deep/1": b"1", "zz": b"1"}
    job.store(**before)
    job.log("line\n")
    job.fetch()
    job.store(**{"x": b"2", "zz/deep/2": b"2", "logs": b"2", ".dlctl-fetch/a": b"2"})
    mine = ("x/deep/mine", "zz", "logs/mine") if edited else ()
    for name in mine:
        (job.to / name).write_text("mine")
    for round_ in range(2):
        kept = sorted(job.fetch().kept)
        assert kept == (["logs.local", "x.local", "zz.local"] if edited and not round_ else [])
    for name in ("x", "zz/deep/2", "logs", ".dlctl-fetch/a"):
        assert job.got(name) == "2"
    if edited:
        for name in ("x.local/deep/mine", "zz.local", "logs.local/mine"):
            assert job.got(name) == "mine"
        return
    job.store(**before)
    assert job.fetch().kept == []
    assert (job.got("logs/attempt-1-learner-0.log"), job.got("zz")) == ("line\n", "1")


def test_nothing_is_written_through_a_link_in_the_way(job, tmp_path):
    outside = tmp_path / "outside"
    job.store(a=b"1")
    job.fetch()
    outside.mkdir()
    (job.to / "logs").symlink_to(outside)
    job.log("line\n")
    assert job.fetch().kept == ["logs.local"]
    assert list(outside.iterdir()) == []
    assert job.got("logs/attempt-1-learner-0.log") == "line\n"


def test_a_copy_has_no_edits(job, tmp_path):
    """Another time alone is no edit, nor is a log that has grown at the site."""

    def forget_times(folder):
        for path in folder.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)

    job.store(**{"model.txt": b"1"})
    (job.folder / "results/same").symlink_to("model.txt")
    job.measure('{"step": 1}\n')
    job.log("one\n")
    job.fetch()
    copy = tmp_path / "copy"
    shutil.copytree(job.to, copy, copy_function=shutil.copyfile)
    for folder in (copy, job.to):
        forget_times(folder)
        assert job.fetch(to=folder).kept == []
    forget_times(copy)
    job.log("one\ntwo\n")
    job.measure('{"step": 1}\n{"step": 2}\n')
    assert job.fetch(to=copy).kept == []
    here = copy / "logs/attempt-1-learner-0.log"
    assert here.read_text() == "one\ntwo\n"
    here.write_text("one\nmine\n")
    assert job.fetch(to=copy).kept == ["logs/attempt-1-learner-0.log.local"]


def test_a_result_that_changed_on_the_way_or_lies_elsewhere_is_refused(job):
    job.store(**{"model.pt": b"good"})
    job.write("results/model.pt", "evil")
    with pytest.raises(TransferError):
        job.fetch()
    assert not (job.to / "model.pt").exists()
    job.write("secret", "x")
    job.index([ResultFile("../secret", 1, hashlib.sha256(b"x").hexdigest())])
    job.to = job.to / "deep"
    with pytest.raises(TransferError):
        job.fetch()
    assert not (job.to.parent / "secret").exists()


def test_what_is_not_there_is_one_sentence(job):
    with pytest.raises(ResultsError, match="has no checkpoint"):
        job.fetch("checkpoints")
    assert not job.to.exists(), "an empty folder stayed"
    with pytest.raises(ResultsError, match="nothing to fetch yet"):
        job.fetch()
    with pytest.raises(ResultsError, match="has no metrics of its learners") as told:
        job.fetch("metrics")
    assert "dlctl metrics" in told.value.hint
    with pytest.raises(ResultsError, match="has no checkpoint") as told:
        job.fetch("checkpoints")
    assert "CHECKPOINT_DIR" in told.value.hint  # checkpoint.every is of the built-in loop only
    job.write("results.json", "{")
    with pytest.raises(ResultsError, match="can't be understood"):
        job.fetch()


def test_a_training_that_runs_gives_what_there_is(job):
    job.write("results/early.txt", "so far")
    fetched = job.fetch(state=State.TRAINING)
    assert "early.txt" in fetched.files
    assert not fetched.complete


def test_a_folder_that_is_not_ours_is_never_written_to(tmp_path):
    """`fetch --to .` replaced the user's own manifest.yml."""
    record = make_record(training_id="mine-1")
    mine, fresh, file = (tmp_path / name for name in ("mine", "fresh", "file"))
    mine.mkdir()
    for path in (mine / "manifest.yml", file):
        path.write_text("my own")
    with FetchedFolder(fresh, record):
        (fresh / "model.pt").write_text("x")
    FetchedFolder(fresh, record)
    for folder, training_id, why in (
        (mine, "mine-1", "not empty"), (file, "mine-1", "can't be used as a folder"),
        (fresh, "other-2", "not from an earlier fetch of other-2"),
    ):  # fmt: skip
        with pytest.raises(ResultsError, match=why):
            FetchedFolder(folder, make_record(training_id=training_id))


def test_what_is_left_out_is_named_even_without_an_index(job, capsys):
    job.write("results/model.pt", "w")
    job.write("results/.part", "half")
    os.mkfifo(job.folder / "results/pipe\ntraining-1: nothing was left out")
    fetched = job.fetch()
    assert "model.pt" in fetched.files
    assert sorted(fetched.left_out) == [
        ".part (is hidden, and may not be finished)",
        "pipe\ntraining-1: nothing was left out (is no regular file)",
    ]
    _tell_fetched(job.record, fetched)
    told = capsys.readouterr().err
    assert "pipe\\ntraining-1" in told
    assert not any(line.startswith("training-1") for line in told.splitlines())


def test_files_left_out_on_the_site_are_reported(job):
    job.store(**{"model.pt": b"w"})
    index = json.loads((job.folder / "results.json").read_text())
    job.write("results.json", json.dumps(index | {"left_out": ["a pipe"]}))
    assert job.fetch().left_out == ["a pipe"]
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    job.store(**{odd: b"any bytes"})
    assert odd in job.fetch().files
    assert job.got(odd) == "any bytes"


def test_output_that_did_not_come_whole_is_none_that_was_fetched(job, monkeypatch):
    def half(_transport, _base, _paths, target, _on_progress, *, on_left_out, **_):
        on_left_out("closed.pt", "can't be read")
        return [target.path / "output/model.pt"]

    monkeypatch.setattr("dlctl.outputs.fetch.download", half)
    fetched = job.fetch("output", "logs")
    assert fetched.left_out == ["closed.pt (can't be read)"]
    assert fetched.parts == ["logs"]


def test_a_folder_that_cannot_be_read_was_not_fetched(job):
    """`delete` said that all was fetched."""
    for name in ("code/closed/model.pt", "checkpoints/mine/model.pt", "checkpoints/best.pt"):
        job.write(name, "w")
    with unprivileged(job.folder) as copy:
        (copy / "code/closed").chmod(0)
        (copy / "checkpoints/mine").chmod(0)
        job.record = replace(job.record, job_dir=str(copy))
        fetched = job.fetch("output", "checkpoints", to=copy.parent / "to")
    assert sorted(fetched.left_out) == [
        "checkpoints/mine/ (can't be read)", "code/closed/ (can't be read)",
        "mine/ (can't be read)",
    ]  # fmt: skip
    assert fetched.files == ["checkpoints/best.pt"]
    assert fetched.parts == []


def test_parts_come_by_themselves_and_all_together(job, tmp_path):
    job.store(**{"model.pt": b"w"})
    job.measure('{"step": 1}\n')
    job.log("hello\n")
    job.write("checkpoints/step-000000000120/complete.json", '{"files": {}}')
    code = {"train.py": "print()\n", "lib/odd é.py": "1\n"}
    for name, content in (*code.items(), ("made-by-the-program", "")):
        job.write(f"code/{name}", content)
    sent = [contract.SentFile("0" * 64, len(c), "f", name) for name, c in code.items()]
    job.write("code/.dlctl-index", contract.index_text(sent))
    expected = {
        "logs": {"logs/attempt-1-learner-0.log"}, "metrics": {"metrics.jsonl"},
        "code": {"code/train.py", "code/lib/odd é.py"},
        "output": {"output/made-by-the-program"},
        "checkpoints": {"checkpoints/step-000000000120/complete.json"},
    }  # fmt: skip
    for part, names in expected.items():
        assert set(job.fetch(part, to=tmp_path / part).files) == names
    always = {"model.pt", "manifest.yml", "plan.json"}
    assert {*job.fetch(*PARTS).files} == set().union(always, *expected.values())
    few = job.fetch(*PARTS, to=tmp_path / "few", include=("*.py", "checkpoints"))
    assert set(few.files) == expected["code"] | expected["checkpoints"]
    with pytest.raises(ResultsError, match=r"has no such file: \*.onnx") as none:
        job.fetch(*PARTS, to=tmp_path / "none", include=("*.onnx",))
    assert none.value.hint.startswith("--include takes")


def test_of_a_training_that_runs_the_newest_whole_checkpoint_comes(job):
    for step in (10, 20, 30):
        job.write(f"checkpoints/step-{step:012d}/share-0.h5", str(step))
        if step < 30:
            job.write(f"checkpoints/step-{step:012d}/complete.json", '{"files": {}}')
    for state, steps in ((State.TRAINING, {20}), (State.COMPLETED, {10, 20})):
        files = job.fetch("checkpoints", state=state).files
        assert {name.split("/")[1] for name in files} == {f"step-{step:012d}" for step in steps}


def test_checkpoints_of_any_name_are_brought(job):
    """A line break stopped the fetch of all parts; others that Python knows, with a traceback."""
    names = {"a\nb", "c\u2028d", "e\x0bf", "g\rh", "\udcff.pt", "-n"}
    for name in names:
        job.write(f"checkpoints/{name}", "weights")
    (job.folder / "checkpoints/.part-1").mkdir()
    assert set(job.fetch("checkpoints").files) == {f"checkpoints/{name}" for name in names}


def test_what_a_program_saves_beside_its_checkpoints_comes_too(job):
    """best.pt beside ckpt-*: it was not fetched, and `delete` said that the checkpoints were."""
    job.write(contract.PLAN, '{"checkpoint": {"files": "ckpt-*"}}')
    for name in ("ckpt-1", "ckpt-2", "ckpt-3.tmp", "best.pt"):
        job.write(f"checkpoints/{name}", name)
    running = job.fetch("checkpoints", state=State.TRAINING)
    assert running.files == ["checkpoints/ckpt-2"]
    files = {f"checkpoints/{name}" for name in ("ckpt-1", "ckpt-2", "best.pt")}
    assert files <= set(job.fetch("checkpoints", state=State.COMPLETED).files)


def test_what_nobody_touched_is_neither_sent_nor_read_again(job, monkeypatch):
    job.store(**{"model.pt": b"w" * 5_000_000})
    job.fetch()
    monkeypatch.setattr("dlctl.files.download.sha256_of", None)
    job.fetch()
    monkeypatch.undo()
    (job.to / "model.pt").write_bytes(b"x" * 5_000_000)
    assert job.fetch().kept == ["model.pt.local"]
    assert job.got("model.pt") == "w" * 5_000_000


def test_results_take_few_calls(job, tmp_path, monkeypatch):
    """Each costs two round trips over a long link."""
    calls, start = [], LocalTransport.start
    monkeypatch.setattr(LocalTransport, "start",
                        lambda *args, **more: calls.append(1) or start(*args, **more))  # fmt: skip
    job.store(**{"model.pt": b"w" * 1000, "deep/notes": b"1"})
    job.fetch()
    assert len(calls) == 3  # look at the results, bring them, look at the logs and the metrics
    (job.folder / "results.json").unlink()
    del calls[:]
    job.fetch(to=tmp_path / "again")
    assert len(calls) <= 4  # without sums it looks whether a file has changed meanwhile


def test_a_fetch_of_a_training_that_is_deleted_meanwhile_says_that(job, tmp_path):
    """At each of its calls."""
    said = set()
    for call in itertools.count(1):
        job.write("results/old", "")
        job.store(**{"model.pt": b"w" * 1000, "large.bin": b"l" * (3 << 20)})
        transport = Vanishing(job.folder, call)
        try:
            fetch(transport, job.record, tmp_path / str(call), Wanted(PARTS))
        except DlctlError as error:
            said.add(error.message)
        if transport.left > 0:
            break
    assert call > 5
    assert said == {
        f"t-1 was deleted meanwhile: {transport.name} has no {job.record.job_dir} any more"
    }  # fmt: skip
