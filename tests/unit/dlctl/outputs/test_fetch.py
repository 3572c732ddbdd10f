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
from dlctl.outputs.fetch import CHECKPOINTS, PARTS, Wanted, fetch
from dlctl.outputs.fetched_folder import FetchedFolder
from dlctl.outputs.metrics.files import read_metrics
from dlctl.transport.local import LocalTransport

HERE = LocalTransport()


def fetch_results(transport, record, to, on_progress=None):
    return fetch(transport, record, to, Wanted(on_progress=on_progress))


def fetch_checkpoints(transport, record, to):
    return fetch(transport, record, to, Wanted((CHECKPOINTS,)))


@pytest.fixture
def job(tmp_path):
    record = make_record(tmp_path / "a 'site'")
    folder = tmp_path / "a 'site'" / "jobs/t-1"
    (folder / "results").mkdir(parents=True)
    (folder / "manifest.yml").write_text("name: t\n")
    (folder / "plan.json").write_text("{}")
    return record, folder


def store_results(folder, files):
    listed = []
    for name, content in files.items():
        path = folder / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        listed.append(ResultFile(name, len(content), hashlib.sha256(content).hexdigest()))
    (folder / "results.json").write_text(contract.to_json(ResultsIndex(listed)))


def write_metrics(folder, name, content):
    (folder / "metrics").mkdir(exist_ok=True)
    (folder / "metrics" / name).write_text(content)


def test_a_line_that_was_cut_off_swallows_no_attempt(job):
    record, folder = job
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    write_metrics(folder, "2-0.jsonl", '{"step": 2, "again": 1}\n')
    write_metrics(folder, "2-1.jsonl", '{"step": 99}\n')
    known = [(e.origin.learner, e.line.plain()) for e in read_metrics(HERE, record)]
    assert known == [(0, {"step": 1}), (0, {"step": 2, "again": 1}), (1, {"step": 99})]


def test_no_metrics_are_none(job):
    assert read_metrics(HERE, job[0]) == []


def test_everything_is_brought(job, tmp_path):
    record, folder = job
    store_results(folder, {"model/weights é.pt": b"w" * 1000, "notes 'a'.txt": b""})
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n')
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/learner-0.log").write_text("hello\nend")
    there = tmp_path / "results/t-1"
    fetched = fetch_results(HERE, make_record(folder.parents[1], state=State.COMPLETED), there)
    assert fetched.complete
    assert set(fetched.files) == {
        "manifest.yml", "plan.json", "model/weights é.pt", "notes 'a'.txt",
        "logs/attempt-1-learner-0.log", "metrics.jsonl",
    }  # fmt: skip
    on_disk = {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
    assert on_disk == {*fetched.files, ".dlctl-fetch"}
    assert (there / "model/weights é.pt").read_bytes() == b"w" * 1000
    assert (there / "logs/attempt-1-learner-0.log").read_text() == "hello\nend\n"


def test_a_result_with_our_file_s_name_is_the_user_s(job, tmp_path):
    record, folder = job
    store_results(folder, {"metrics.jsonl": b"mine\n"})
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n')
    fetch_results(HERE, record, tmp_path / "to")
    assert (tmp_path / "to/metrics.jsonl").read_text() == "mine\n"
    assert (tmp_path / "to/dlctl/metrics.jsonl").read_text() == '{"step": 1}\n'


def test_results_with_all_of_our_names_are_the_user_s(job, tmp_path):
    """A result named .dlctl-fetch blocked the next fetch; others replaced dlctl's files."""
    record, folder = job
    ours = ("manifest.yml", "plan.json", "logs/attempt-1-job.log", ".dlctl-fetch", "dlctl")
    mine = dict.fromkeys(ours, b"mine")
    store_results(folder, mine)
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/slurm.out").write_text("ours\n")
    for _ in range(2):
        fetched = fetch_results(HERE, record, tmp_path / "to")
        assert fetched.kept == []
    for name in mine:
        assert (tmp_path / "to" / name).read_bytes() == b"mine"
    assert (tmp_path / "to/_dlctl/manifest.yml").read_text() == "name: t\n"
    assert (tmp_path / "to/_dlctl/logs/attempt-1-job.log").read_text() == "ours\n"
    assert "_dlctl/plan.json" in fetched.files


def test_a_result_that_takes_the_mark_s_name_later_is_fetched(job, tmp_path):
    record, folder = job
    store_results(folder, {"a": b"1"})
    fetch_results(HERE, record, tmp_path / "to")
    store_results(folder, {"a": b"1", ".dlctl-fetch": b"mine"})
    for _ in range(2):
        fetch_results(HERE, record, tmp_path / "to")
        assert (tmp_path / "to/.dlctl-fetch").read_bytes() == b"mine"


def test_a_local_edit_is_kept(job, tmp_path):
    record, folder = job
    store_results(folder, {"model.txt": b"1", "same.txt": b"1"})
    there = tmp_path / "to"
    fetch_results(HERE, record, there)
    store_results(folder, {"model.txt": b"2", "same.txt": b"1"})
    assert fetch_results(HERE, record, there).kept == []
    assert (there / "model.txt").read_text() == "2"
    for round_, kept in ((3, "model.txt.local"), (4, "model.txt.local-2")):
        (there / "model.txt").write_text(f"my edit {round_}")
        (there / "manifest.yml").write_text(f"my edit {round_}")
        store_results(folder, {"model.txt": b"%d" % round_, "same.txt": b"1"})
        fetched = fetch_results(HERE, record, there)
        assert kept in fetched.kept
        assert (there / "model.txt").read_text() == str(round_)
        assert (there / kept).read_text() == f"my edit {round_}"
    assert (there / "manifest.yml").read_text() == "name: t\n"
    assert (there / "manifest.yml.local").read_text() == "my edit 3"
    assert sorted(p.name for p in there.glob("same*")) == ["same.txt"]


def test_a_file_of_the_user_s_own_is_kept(job, tmp_path):
    """Only files that the mark lists were kept; a result of the same name replaced the others."""
    record, folder = job
    there = tmp_path / "to"
    store_results(folder, {"a": b"1"})
    fetch_results(HERE, record, there)
    (there / "analysis.txt").write_text("my own text")
    (there / "link").symlink_to("analysis.txt")
    store_results(folder, {"a": b"1", "analysis.txt": b"the training's", "link": b"a file"})
    assert fetch_results(HERE, record, there).kept == ["analysis.txt.local", "link.local"]
    assert (there / "analysis.txt").read_text() == "the training's"
    assert (there / "analysis.txt.local").read_text() == "my own text"
    assert (there / "link.local").is_symlink()


def test_a_fetch_that_fails_remembers_what_it_brought(job, tmp_path):
    record, folder = job
    there = tmp_path / "to"
    names = ("aa.csv", "ab.csv", "zz.csv")
    store_results(folder, dict.fromkeys(names, b"v1"))
    (folder / "results/zz.csv").write_bytes(b"x1")
    with pytest.raises(TransferError):
        fetch_results(HERE, record, there)
    with (there / "aa.csv").open("a") as file:
        file.write("EDIT")
    store_results(folder, dict.fromkeys(names, b"v2"))
    assert fetch_results(HERE, record, there).kept == ["aa.csv.local"]
    assert (there / "aa.csv.local").read_text() == "v1EDIT"
    assert (there / "ab.csv").read_text() == (there / "aa.csv").read_text() == "v2"


def test_an_edit_made_while_other_files_arrive_is_kept(job, tmp_path):
    record, folder = job
    there = tmp_path / "to"
    store_results(folder, {"a": b"1", "b": b"1"})

    def edit_first(done_bytes, total_bytes):
        if (there / "a").exists():
            (there / "a").write_text("my edit")

    fetch_results(HERE, record, there, edit_first)
    store_results(folder, {"a": b"2", "b": b"1"})
    assert fetch_results(HERE, record, there).kept == ["a.local"]


@pytest.mark.parametrize("edited", [False, True])
def test_a_file_becomes_a_folder_and_a_folder_a_file(job, tmp_path, edited):
    """Each further fetch ended with "Is a directory" or "File exists"."""
    record, folder = job
    there = tmp_path / "to"
    store_results(folder, {"x/deep/1": b"1", "zz": b"1"})
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/learner-0.log").write_text("line\n")
    fetch_results(HERE, record, there)
    shutil.rmtree(folder / "results")
    store_results(folder, {"x": b"2", "zz/deep/2": b"2", "logs": b"2", ".dlctl-fetch/a": b"2"})
    if edited:
        (there / "x/deep/mine").write_text("mine")
        (there / "zz").write_text("mine")
        (there / "logs/mine").write_text("mine")
    for round_ in range(2):
        kept = sorted(fetch_results(HERE, record, there).kept)
        assert kept == (["logs.local", "x.local", "zz.local"] if edited and not round_ else [])
    for name in ("x", "zz/deep/2", "logs", ".dlctl-fetch/a"):
        assert (there / name).read_text() == "2"
    if edited:
        for name in ("x.local/deep/mine", "zz.local", "logs.local/mine"):
            assert (there / name).read_text() == "mine"
        return
    shutil.rmtree(folder / "results")
    store_results(folder, {"x/deep/1": b"1", "zz": b"1"})
    assert fetch_results(HERE, record, there).kept == []
    assert (there / "logs/attempt-1-learner-0.log").read_text() == "line\n"
    assert (there / "zz").read_text() == "1"


def test_nothing_is_written_through_a_link_in_the_way(job, tmp_path):
    record, folder = job
    there, outside = tmp_path / "to", tmp_path / "outside"
    store_results(folder, {"a": b"1"})
    fetch_results(HERE, record, there)
    outside.mkdir()
    (there / "logs").symlink_to(outside)
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/learner-0.log").write_text("line\n")
    assert fetch_results(HERE, record, there).kept == ["logs.local"]
    assert list(outside.iterdir()) == []
    assert (there / "logs/attempt-1-learner-0.log").read_text() == "line\n"


def test_a_copy_has_no_edits(job, tmp_path):
    """What only has another time is no edit, nor is a log that has grown at the site."""
    record, folder = job
    store_results(folder, {"model.txt": b"1"})
    (folder / "results/same").symlink_to("model.txt")
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n')
    (folder / "attempts/1").mkdir(parents=True)
    log = folder / "attempts/1/learner-0.log"
    log.write_text("one\n")
    fetch_results(HERE, record, tmp_path / "to")
    shutil.copytree(tmp_path / "to", tmp_path / "copy", copy_function=shutil.copyfile)
    for name in ("copy", "to"):
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)
        assert fetch_results(HERE, record, tmp_path / name).kept == []
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    log.write_text("one\ntwo\n")
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n{"step": 2}\n')
    assert fetch_results(HERE, record, tmp_path / "copy").kept == []
    here = tmp_path / "copy/logs/attempt-1-learner-0.log"
    assert here.read_text() == "one\ntwo\n"
    here.write_text("one\nmine\n")
    kept = fetch_results(HERE, record, tmp_path / "copy").kept
    assert kept == ["logs/attempt-1-learner-0.log.local"]


def test_a_result_that_changed_on_the_way_is_refused(job, tmp_path):
    record, folder = job
    store_results(folder, {"model.pt": b"good"})
    (folder / "results/model.pt").write_bytes(b"evil")
    with pytest.raises(TransferError):
        fetch_results(HERE, record, tmp_path / "to")
    assert not (tmp_path / "to/model.pt").exists()


def test_a_result_never_leaves_its_folder(job, tmp_path):
    record, folder = job
    (folder / "secret").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    index = ResultsIndex([ResultFile("../secret", 1, digest)])
    (folder / "results.json").write_text(contract.to_json(index))
    with pytest.raises(TransferError):
        fetch_results(HERE, record, tmp_path / "a/to")
    assert not (tmp_path / "a/secret").exists()


def test_a_damaged_index_is_one_sentence(job, tmp_path):
    record, folder = job
    (folder / "results.json").write_text("{")
    with pytest.raises(ResultsError, match="can't be understood"):
        fetch_results(HERE, record, tmp_path / "to")


def test_a_training_that_runs_gives_what_there_is(job, tmp_path):
    record, folder = job
    (folder / "results/early.txt").write_text("so far")
    fetched = fetch_results(
        HERE, make_record(folder.parents[1], state=State.TRAINING), tmp_path / "to"
    )  # noqa: E501
    assert "early.txt" in fetched.files
    assert not fetched.complete


def test_nothing_made_yet_is_one_sentence(job, tmp_path):
    with pytest.raises(ResultsError, match="nothing to fetch yet"):
        fetch_results(HERE, job[0], tmp_path / "to")


def test_checkpoints_are_brought(job, tmp_path):
    record, folder = job
    with pytest.raises(ResultsError, match="has no checkpoint") as told:
        fetch_checkpoints(HERE, record, tmp_path / "to")
    assert "CHECKPOINT_DIR" in str(told.value.hint)  # checkpoint.every is of the built-in loop only
    (folder / "checkpoints/step-000000000120").mkdir(parents=True)
    (folder / "checkpoints/step-000000000120/model.h5").write_bytes(b"m")
    (folder / "checkpoints/.part-1").mkdir()
    fetched = fetch_checkpoints(HERE, record, tmp_path / "to")
    assert fetched.files == ["checkpoints/step-000000000120/model.h5"]


def test_a_folder_that_is_not_ours_is_never_written_to(tmp_path):
    """`fetch --to .` replaced the user's own manifest.yml."""
    record = make_record(training_id="mine-1")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "manifest.yml").write_text("my own")
    with pytest.raises(ResultsError, match="not empty"):
        FetchedFolder(mine, record)
    fresh = tmp_path / "fresh"
    with FetchedFolder(fresh, record):
        (fresh / "model.pt").write_text("x")
    FetchedFolder(fresh, record)
    with pytest.raises(ResultsError, match="not from an earlier fetch of other-2"):
        FetchedFolder(fresh, make_record(training_id="other-2"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="can't be used as a folder"):
        FetchedFolder(tmp_path / "file", record)


def test_what_is_left_out_is_named_even_without_an_index(job, tmp_path, capsys):
    record, folder = job
    results = folder / "results"
    results.mkdir(exist_ok=True)
    (results / "model.pt").write_text("w")
    (results / ".part").write_text("half")
    os.mkfifo(results / "pipe\ntraining-1: nothing was left out")
    fetched = fetch_results(HERE, record, tmp_path / "to")
    assert "model.pt" in fetched.files
    assert sorted(fetched.left_out) == [
        ".part (is hidden, and may not be finished)",
        "pipe\ntraining-1: nothing was left out (is no regular file)",
    ]
    _tell_fetched(record, fetched)
    told = capsys.readouterr().err
    assert "pipe\\ntraining-1" in told
    assert not any(line.startswith("training-1") for line in told.splitlines())


def test_files_left_out_on_the_site_are_reported(job, tmp_path):
    record, folder = job
    store_results(folder, {"model.pt": b"w"})
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    index = json.loads((folder / "results.json").read_text())
    index["left_out"] = ["a pipe"]
    (folder / "results.json").write_text(json.dumps(index))
    assert fetch_results(HERE, record, tmp_path / "to").left_out == ["a pipe"]
    store_results(folder, {odd: b"any bytes"})
    assert odd in fetch_results(HERE, record, tmp_path / "to").files
    assert (tmp_path / "to" / odd).read_bytes() == b"any bytes"


def test_output_that_did_not_come_whole_is_none_that_was_fetched(job, tmp_path, monkeypatch):
    def half(_transport, _base, _paths, target, _on_progress, *, on_left_out, **_):
        on_left_out("closed.pt", "can't be read")
        return [target.path / "output/model.pt"]

    record, _ = job
    monkeypatch.setattr("dlctl.outputs.fetch.download", half)
    fetched = fetch(HERE, record, tmp_path / "to", Wanted(("output", "logs")))
    assert fetched.left_out == ["closed.pt (can't be read)"]
    assert fetched.parts == ["logs"]


def test_a_folder_that_cannot_be_read_was_not_fetched(job, tmp_path):
    """`delete` said that all was fetched."""
    record, folder = job
    for name in ("code/closed", "checkpoints/mine"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "model.pt").write_text("w")
    (folder / "checkpoints/best.pt").write_text("w")
    with unprivileged(folder) as copy:
        (copy / "code/closed").chmod(0)
        (copy / "checkpoints/mine").chmod(0)
        record, wanted = replace(record, job_dir=str(copy)), Wanted(("output", "checkpoints"))
        fetched = fetch(HERE, record, copy.parent / "to", wanted)
    assert sorted(fetched.left_out) == [
        "checkpoints/mine/ (can't be read)", "code/closed/ (can't be read)",
        "mine/ (can't be read)",
    ]  # fmt: skip
    assert fetched.files == ["checkpoints/best.pt"]
    assert fetched.parts == []


def test_parts_come_by_themselves_and_all_together(job, tmp_path):
    record, folder = job
    store_results(folder, {"model.pt": b"w"})
    write_metrics(folder, "1-0.jsonl", '{"step": 1}\n')
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/learner-0.log").write_text("hello\n")
    (folder / "checkpoints/step-000000000120").mkdir(parents=True)
    (folder / "checkpoints/step-000000000120/complete.json").write_text('{"files": {}}')
    code = {"train.py": b"print()\n", "lib/odd é.py": b"1\n"}
    for name, content in code.items():
        (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "code" / name).write_bytes(content)
    (folder / "code/made-by-the-program").write_text("")
    sent = [contract.SentFile("0" * 64, len(c), "f", name) for name, c in code.items()]
    (folder / "code/.dlctl-index").write_bytes(contract.index_text(sent))
    expected = {
        "logs": {"logs/attempt-1-learner-0.log"}, "metrics": {"metrics.jsonl"},
        "code": {"code/train.py", "code/lib/odd é.py"},
        "output": {"output/made-by-the-program"},
        "checkpoints": {"checkpoints/step-000000000120/complete.json"},
    }  # fmt: skip
    for part, names in expected.items():
        assert set(fetch(HERE, record, tmp_path / part, Wanted((part,))).files) == names
    every = fetch(HERE, record, tmp_path / "all", Wanted(PARTS))
    always = {"model.pt", "manifest.yml", "plan.json"}
    assert set(every.files) == set().union(always, *expected.values())
    few = fetch(HERE, record, tmp_path / "few", Wanted(PARTS, ("*.py", "checkpoints")))
    assert set(few.files) == expected["code"] | expected["checkpoints"]
    with pytest.raises(ResultsError, match=r"has no such file: \*.onnx") as none:
        fetch(HERE, record, tmp_path / "none", Wanted(PARTS, ("*.onnx",)))
    assert none.value.hint.startswith("--include takes")


def test_of_a_training_that_runs_the_newest_whole_checkpoint_comes(job, tmp_path):
    record, folder = job
    for step, marker in ((10, '{"files": {}}'), (20, '{"files": {}}'), (30, None)):
        path = folder / f"checkpoints/step-{step:012d}"
        path.mkdir(parents=True)
        (path / "share-0.h5").write_text(str(step))
        if marker:
            (path / "complete.json").write_text(marker)
    running = make_record(folder.parents[1], state=State.TRAINING)
    files = fetch_checkpoints(HERE, running, tmp_path / "to").files
    assert {name.split("/")[1] for name in files} == {"step-000000000020"}
    ended = make_record(folder.parents[1], state=State.COMPLETED)
    files = fetch_checkpoints(HERE, ended, tmp_path / "to").files
    assert {name.split("/")[1] for name in files} == {"step-000000000010", "step-000000000020"}


def test_checkpoints_of_any_name_are_brought(job, tmp_path):
    """A line break stopped the fetch of all parts; others that Python knows, with a traceback."""
    record, folder = job
    names = {"a\nb", "c\u2028d", "e\x0bf", "g\rh", "\udcff.pt", "-n"}
    (folder / "checkpoints").mkdir()
    for name in names:
        (folder / "checkpoints" / name).write_text("weights")
    fetched = fetch_checkpoints(HERE, record, tmp_path / "to")
    assert set(fetched.files) == {f"checkpoints/{name}" for name in names}


def test_what_a_program_saves_beside_its_checkpoints_comes_too(job, tmp_path):
    """best.pt beside ckpt-*: it was not fetched, and `delete` said that the checkpoints were."""
    _, folder = job
    (folder / contract.PLAN).write_text('{"checkpoint": {"files": "ckpt-*"}}')
    (folder / "checkpoints").mkdir()
    for name in ("ckpt-1", "ckpt-2", "ckpt-3.tmp", "best.pt"):
        (folder / "checkpoints" / name).write_text(name)
    running = make_record(folder.parents[1], state=State.TRAINING)
    assert fetch_checkpoints(HERE, running, tmp_path / "to").files == ["checkpoints/ckpt-2"]
    ended = make_record(folder.parents[1], state=State.COMPLETED)
    files = {f"checkpoints/{name}" for name in ("ckpt-1", "ckpt-2", "best.pt")}
    assert files <= set(fetch_checkpoints(HERE, ended, tmp_path / "to").files)


def test_what_nobody_touched_is_neither_sent_nor_read_again(job, tmp_path, monkeypatch):
    record, folder = job
    store_results(folder, {"model.pt": b"w" * 5_000_000})
    there = tmp_path / "to"
    fetch_results(HERE, record, there)
    monkeypatch.setattr("dlctl.files.download.sha256_of", None)
    fetch_results(HERE, record, there)
    monkeypatch.undo()
    (there / "model.pt").write_bytes(b"x" * 5_000_000)
    assert fetch_results(HERE, record, there).kept == ["model.pt.local"]
    assert (there / "model.pt").read_bytes() == b"w" * 5_000_000


def test_results_take_few_calls(job, tmp_path, monkeypatch):
    """Each costs two round trips over a long link."""
    calls, start = [], LocalTransport.start
    monkeypatch.setattr(LocalTransport, "start",
                        lambda *args, **more: calls.append(1) or start(*args, **more))  # fmt: skip
    record, folder = job
    store_results(folder, {"model.pt": b"w" * 1000, "deep/notes": b"1"})
    fetch_results(HERE, record, tmp_path / "got")
    assert len(calls) == 3  # look at the results, bring them, look at the logs and the metrics
    (folder / "results.json").unlink()
    del calls[:]
    fetch_results(HERE, record, tmp_path / "again")
    assert len(calls) <= 4  # without sums it looks whether a file has changed meanwhile


def test_a_fetch_of_a_training_that_is_deleted_meanwhile_says_that(job, tmp_path):
    """At each of its calls."""
    record, folder = job
    said, transport = set(), Vanishing(folder, 0)
    for call in itertools.count(1):
        store_results(folder, {"model.pt": b"w" * 1000, "large.bin": b"l" * (3 << 20)})
        transport = Vanishing(folder, call)
        try:
            fetch(transport, record, tmp_path / str(call), Wanted(PARTS))
        except DlctlError as error:
            said.add(error.message)
        if transport.left > 0:
            break
    assert call > 5
    assert said == {
        f"t-1 was deleted meanwhile: {transport.name} has no {record.job_dir} any more"
    }  # fmt: skip


def test_without_metrics_of_learners_those_of_the_nodes_are_named(job, tmp_path):
    with pytest.raises(ResultsError, match="has no metrics of its learners") as told:
        fetch(HERE, job[0], tmp_path / "to", Wanted(("metrics",)))
    assert "dlctl metrics" in str(told.value.hint)
