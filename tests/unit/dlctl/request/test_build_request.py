"""From the user's folder to what is sent: credentials, the manifest, the job file."""

import os

import pytest
from login_side import make_record, make_site

from dlctl.errors import ManifestError, PlanError
from dlctl.manifest.load import load_manifest, parse_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.request.attempts import decide_again, of_request
from dlctl.request.build import look_over, new_training_id, prepare, prepare_again
from dlctl.request.request import this_machine

SECRET = "hunter2-hunter2-hunter2"


def prepared(folder, env="{}", name="manifest.yml", extra=""):
    (folder / "train.py").write_text("x = 1\n")
    (folder / name).write_text(
        f"name: a\nframework: {{name: pytorch, job: train.py}}\nenv: {env}\n{extra}"
    )
    return prepare(folder / name, Overrides(), make_site())


def paths(request):
    return [file.path for file in request.code.files]


def test_a_literal_credential_is_sent_as_a_secret_only(tmp_path):
    request = prepared(tmp_path, f"{{API_TOKEN: {SECRET}, LR: '0.1'}}")
    assert request.secrets == {"API_TOKEN": SECRET}
    assert paths(request) == ["train.py"]
    assert "from_secret: API_TOKEN" in request.manifest
    for text in (request.manifest, request.script, repr(request.plan)):
        assert SECRET not in text


@pytest.mark.parametrize(("env", "warning"), [
    ("{PIN_TOKEN: d}", "env.PIN_TOKEN is shorter than 4 characters, and not masked where dlctl"),
    ("{A_TOKEN: abc, B: {from_env: MY_KEY}}", "env.A_TOKEN, env.B are shorter than 4 characters"),
    ("{A_TOKEN: abcd, LR: '1'}", ""),
])  # fmt: skip
def test_a_credential_that_is_too_short_to_be_masked_is_named(tmp_path, monkeypatch, env, warning):
    monkeypatch.setenv("MY_KEY", "12")
    request = prepared(tmp_path, env)
    known = load_manifest(tmp_path / "manifest.yml")
    for notes in (request.plan.not_in_this_version, look_over(known, tmp_path)):
        found = [note for note in notes if "mask" in note]
        assert len(found) == bool(warning)
        assert "".join(found).startswith(warning)


@pytest.mark.parametrize("is_symbolic", [True, False])
def test_no_other_name_of_the_manifest_is_sent(tmp_path, is_symbolic):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder, elsewhere):
        path.mkdir()
    prepared(folder, f"{{API_TOKEN: {SECRET}}}", "real.yml")
    names = [folder / "real.yml", folder / "manifest.yml", elsewhere / "my.yml"]
    for name in names[1:]:
        if is_symbolic:
            name.symlink_to(os.path.relpath(names[0], name.parent))
        else:
            os.link(names[0], name)
    for name in names if is_symbolic else names[:2]:
        assert paths(prepare(name, Overrides(), make_site())) == ["train.py"]


def test_a_home_folder_is_sent_without_dlctls_own_folders(tmp_path, monkeypatch):
    """Each training had what the ones before it had sent, and grew without end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".local/state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ".local/share"))
    own = [".local/state/dlctl/record.db", ".local/share/dlctl/jobs/a/code/x", "mine/jobs/b/y"]
    for name in (*own, ".local/share/other/z", "lib/dlctl/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    prepared(tmp_path)
    site = make_site(transport={"kind": "local"}, root=str(tmp_path / "mine"))
    sent = prepare(tmp_path / "manifest.yml", Overrides(), site)
    assert paths(sent) == [".local/share/other/z", "lib/dlctl/w", "train.py"]


def test_a_variable_of_the_shell(tmp_path, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ManifestError, match="MY_KEY is not set") as refused:
        prepared(tmp_path, "{KEY: {from_env: MY_KEY}}")
    assert "export MY_KEY" in refused.value.hint
    monkeypatch.setenv("MY_KEY", SECRET)
    assert prepared(tmp_path, "{KEY: {from_env: MY_KEY}}").secrets == {"KEY": SECRET}


def test_a_file_of_one_s_own(tmp_path, monkeypatch):
    with pytest.raises(ManifestError, match=r"env.KEY: the file .*/absent can't be read"):
        prepared(tmp_path, "{KEY: {from_file: /absent}}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key.txt").write_text(SECRET + "\n")
    (tmp_path / "work").mkdir()
    for name in ("~/key.txt", "../key.txt"):  # relative to the manifest, wherever one stands
        assert prepared(tmp_path / "work", f"{{KEY: {{from_file: {name}}}}}").secrets == {
            "KEY": SECRET
        }


def test_from_secret_written_by_hand_is_one_sentence(tmp_path):
    with pytest.raises(ManifestError, match="from_secret stands where dlctl has") as refused:
        prepared(tmp_path, "{KEY: {from_secret: KEY}}")
    assert "from_env" in refused.value.hint


@pytest.mark.parametrize("job", ["./train.py", "sub/../train.py"])
def test_the_job_file_may_be_named_in_other_ways(tmp_path, job):
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("")
    (tmp_path / "m.yml").write_text(f"name: a\nframework: {{name: pytorch, job: {job}}}\n")
    assert prepare(tmp_path / "m.yml", Overrides(), make_site()).plan.framework.job == job


def test_a_folder_that_was_moved_is_not_taken_for_one_to_create(tmp_path):
    record = make_record(manifest_path=str(tmp_path / "moved/manifest.yml"))
    with pytest.raises(ManifestError, match="was submitted from there") as missing:
        prepare_again(record, make_site())
    assert "put the folder back" in missing.value.hint


def test_files_that_are_absent_or_excluded_are_an_error(tmp_path):
    manifest = tmp_path / "m.yml"
    manifest.write_text("name: a\nframework: {name: pytorch, job: train.py}\n")
    with pytest.raises(ManifestError, match="train.py does not exist"):
        prepare(manifest, Overrides(), make_site())
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("*.py\n")
    with pytest.raises(ManifestError, match="is excluded by .gitignore"):
        prepare(manifest, Overrides(), make_site())
    (tmp_path / ".gitignore").unlink()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/model.pt").touch()
    weights = Overrides(set=("framework.arguments.weights=results/model.pt",))
    with pytest.raises(ManifestError, match="weights: results/model.pt is excluded"):
        prepare(manifest, weights, make_site())


def test_a_request_that_lacks_a_convenience_says_so(tmp_path):
    request = prepared(tmp_path, extra="storage: 1GiB\n")
    assert len(request.plan.not_in_this_version) == 1


def test_the_local_queue_is_limited_by_this_machine(tmp_path):
    site = make_site(scheduler="{kind: local}", launcher="{kind: mpirun}")
    machine = this_machine(site)
    assert machine.cpus_per_node == len(os.sched_getaffinity(0))
    assert machine.memory_bytes_per_node > 2**27
    prepared(tmp_path)
    with pytest.raises(PlanError, match="this machine: a learner needs 100000 CPUs, a node has"):
        prepare(tmp_path / "manifest.yml", Overrides(cpus=100000), site)
    assert this_machine(make_site()) is None  # Slurm knows better


@pytest.mark.parametrize(("name", "slug"), [
    ("Digits & more!", "digits-more"), ("日本", "training"), ("x" * 90, "x" * 24),
])  # fmt: skip
def test_an_id_begins_with_the_name(name, slug):
    ids = {new_training_id(name) for _ in range(50)}
    assert len(ids) == 50
    assert all(i.rpartition("-")[0] == slug and len(i.rpartition("-")[2]) == 8 for i in ids)


def test_the_same_folder_gives_the_same_content(tmp_path):
    first, second = prepared(tmp_path), prepared(tmp_path)
    assert first.code.digest == second.code.digest
    assert first.plan.runtime_dir == second.plan.runtime_dir
    names = {entry.path for entry in first.runtime}
    assert {
        "learner/supervisor/attempt.py",
        "psrv/__init__.py",
        "dlctl/contract/__init__.py",
    } <= names
    assert not any(name.startswith("dlctl/cli") for name in names)


def test_the_stored_manifest_has_the_lines_of_its_requirements_files(tmp_path):
    (tmp_path / "r.txt").write_text("boto3  # for the data\nrich\n")
    request = prepared(tmp_path, extra="requirements: r.txt\n")
    assert request.plan.requirements == ["boto3", "rich"]
    stored = parse_manifest(request.manifest.encode(), "stored.yml")
    assert stored.requirements == ["boto3", "rich"]


@pytest.mark.parametrize(("time", "total_s", "job_s", "links"), [
    (None, 14400, 14400, 1), ("8h", 28800, 14400, 3), ("1h", 14400, 3600, 5),
])  # fmt: skip
def test_a_resumption_gives_the_whole_training_more_time(tmp_path, time, total_s, job_s, links):
    """The job got it, the training did not: each job was its last, whose hint asked for less."""
    site = make_site(more="partitions: {main: {max_time: 4h, default: true}}")
    prepared(tmp_path, extra="time: 4h\n")
    first = of_request(prepare(tmp_path / "manifest.yml", Overrides(), site))
    plan = decide_again(first, Overrides(time=time), site).plan
    assert (plan.lifecycle.total_time_s, plan.resources.time_s) == (total_s, job_s)
    assert plan.lifecycle.links == links
