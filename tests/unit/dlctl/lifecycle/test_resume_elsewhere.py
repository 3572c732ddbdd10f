"""Another number of learners, other resources: the next attempt has its own plan and script."""

import json
from dataclasses import replace

import pytest
from login_side import (
    MANIFEST,
    BadTransport,
    Overtaken,
    Scene,
    fail_newest,
    go_on,
    halt,
    job_dir,
    look,
    make_record,
    planned,
    run_everything,
    send,
)

from dlctl import contract
from dlctl.errors import DlctlError, ManifestError, PlanError, RecordError
from dlctl.lifecycle import check_learner, read_plan
from dlctl.manifest.load import parse_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.outputs.insight import read_training_files
from dlctl.record import RecordStore
from dlctl.request.attempts import read_all, read_newest
from dlctl.request.request import pending, remember, submitted_with

LIMITS = "partitions:\n  cpu: {nodes: 3, cpus_per_node: 4, max_time: 2h}\n  big: {nodes: 9}\n"
WHOLE = MANIFEST + "learners: 2\nmemory: 1GiB\ntraining: {batch_size: 24, seed: 7}\n"


@pytest.fixture
def scene(tmp_path, small_runtime):
    return Scene(tmp_path, WHOLE, more=LIMITS)


def failed(scene):
    send(scene)
    fail_newest(scene)


def assert_fits(scene, attempt, learners):
    """Plan, script and manifest of one attempt say the same, and nothing else was left there."""
    folder = job_dir(scene)
    script = (folder / contract.script_file(attempt)).read_text()
    manifest = parse_manifest((folder / contract.manifest_file(attempt)).read_bytes(), "stored")
    assert planned(scene, attempt).resources.learners == manifest.learners == learners
    assert f"--ntasks={learners}\n" in script
    assert not list((folder / contract.attempt_dir(attempt)).glob(".sent.*"))


def test_the_next_attempt_has_other_resources_and_trains_the_same(scene):
    failed(scene)
    first = contents(job_dir(scene))
    record = go_on(scene, learners=5, memory="3GiB", time="1h", cpus=2, partition="cpu")
    assert record.attempt == 2
    old, new = planned(scene, 1), planned(scene, 2)
    assert_fits(scene, 2, 5)
    resources = new.resources
    assert (resources.nodes, resources.learners_per_node, resources.time_s) == (3, [2, 2, 1], 3600)
    assert (resources.cpus_per_learner, resources.memory_bytes_per_node) == (2, 6 << 30)
    assert (new.batch.partition, new.checkpoint.mtbf_s) == ("cpu", 30 * 86400 / 3)
    assert new.launch.argv[2:4] == ["--nodes=3", "--ntasks=5"]
    for name in ("training_id", "job_dir", "code_digest", "created_at", "framework", "training",
                 "data_stores", "env", "secret_env", "requirements"):  # fmt: skip
        assert getattr(new, name) == getattr(old, name), name
    now = contents(job_dir(scene))
    assert {path: now[path] for path in first} == first
    run_everything(scene)
    assert scene.ran() == [f"{record.training_id} 2"]


def test_what_is_not_asked_for_stays_as_the_attempt_before_had_it(scene):
    failed(scene)
    go_on(scene, learners=3)
    fail_newest(scene)
    go_on(scene)
    for file in (contract.manifest_file, contract.plan_file, contract.script_file):
        assert (job_dir(scene) / file(3)).read_bytes() == (job_dir(scene) / file(2)).read_bytes()
    fail_newest(scene)
    go_on(scene, memory="2GiB")
    assert_fits(scene, 4, 3)
    assert planned(scene, 4).resources.memory_bytes_per_learner == 2 << 30
    assert planned(scene, 1).resources.learners == 2
    assert_told_per_attempt(scene)


def test_a_plain_resumption_takes_the_sites_file_as_it_is_now(scene):
    """A hint says to change the file: `dlctl resume` alone went on with what it had said before."""
    failed(scene)
    asked = scene.site.scheduler.model_copy(update={"extra": ["--nice=100"]})
    scene.site = scene.site.model_copy(update={"scheduler": asked})
    scene.session = scene.connect(scene.session.transport)
    go_on(scene)
    script = (job_dir(scene) / contract.script_file(2)).read_text()
    assert "#SBATCH --nice=100\n" in script


def test_a_resumption_may_ask_for_nodes_and_keeps_them_until_it_asks_for_others(scene):
    failed(scene)
    shapes = []
    for asked in ({"nodes": 2}, {"cpus": 2}, {"nodes": 3, "learners_per_node": 2}, {"nodes": 1}):
        record = go_on(scene, **asked)
        shapes.append(planned(scene, record.attempt).resources.learners_per_node)
        fail_newest(scene)
    assert shapes == [[1, 1], [1, 1], [2, 2, 2], [2]]


def assert_told_per_attempt(scene):
    record = look(scene)
    told = read_training_files(scene.session, record).attempts
    learners = [(each.attempt, each.resources.learners) for each in told]
    assert learners == [(1, 2), (2, 3), (3, 3), (4, 3)]
    assert read_plan(scene.session, record) == planned(scene, 4)
    assert b"--ntasks=3" in read_newest(scene.session.transport, record).script
    check_learner(scene.session, record, 2)
    with pytest.raises(RecordError, match="no learner 3"):
        check_learner(scene.session, record, 3)


@pytest.mark.parametrize(("asked", "error", "said"), [
    ({"learners": 500, "cpus": 4, "partition": "cpu"}, PlanError, "500 learners need 500 nodes"),
    ({"partition": "bgi"}, PlanError, "no partition 'bgi'; did you mean 'big'"),
    ({"memory": "lots"}, ManifestError, "--memory: 'lots' is not a size"),
    ({"nodes": 3}, ManifestError, "--nodes: 2 learners can't be spread evenly over 3"),
])  # fmt: skip
def test_a_request_that_fits_nothing_is_refused_before_anything_changes(scene, asked, error, said):
    failed(scene)
    before, known = contents(scene.root), scene.store.all()[0]
    with pytest.raises(error, match=said):
        go_on(scene, **asked)
    after = scene.store.all()[0]
    assert (contents(scene.root), replace(after, seen_at=known.seen_at)) == (before, known)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 9))
def test_wherever_it_is_cut_off_one_job_runs_with_what_was_asked(scene, call, when):
    failed(scene)
    cut = BadTransport(call, when)
    try:
        go_on(scene, cut, learners=3)
    except DlctlError:
        known = look(scene)
        if known.state is contract.State.FAILED:  # nothing was done yet: asked once more
            assert (known.attempt, scene.scheduler.jobs()[1][1]) == (1, "NODE_FAIL")
            go_on(scene, learners=3)
        elif known.state is contract.State.QUEUED:
            assert f"dlctl resume {known.training_id}" in known.hint
            go_on(scene)  # without saying it again
    assert cut.calls >= call
    assert_fits(scene, 2, 3)
    run_everything(scene)
    assert look(scene).state is contract.State.COMPLETED
    assert len(scene.ran()) == 1


def test_a_site_that_died_between_receipt_and_files_never_runs_that_attempt(scene):
    failed(scene)
    with pytest.raises(DlctlError):
        go_on(scene, BadTransport(7, "before"), learners=3)
    assert (known := look(scene)).attempt == 2
    begin = job_dir(scene) / contract.submit_begin(2)
    begin.write_text("token\n")
    record = go_on(scene)
    assert (known.attempt, record.attempt) == (2, 3)
    assert_fits(scene, 3, 3)
    assert [files.attempt for files in read_all(scene.session.transport, record)] == [1, 3]


def test_a_waiting_job_is_halted_and_goes_on_with_fewer(scene):
    record = halt(scene.session, send(scene), scene.store)
    assert (record.state, record.reason) == (contract.State.HALTED, "halted before it started")
    assert scene.scheduler.jobs()[1][1] == "CANCELLED"
    assert go_on(scene, learners=1).attempt == 2
    assert planned(scene, 2).launch.kind == "direct"
    assert_fits(scene, 2, 1)


def test_a_plan_that_is_not_understood_is_one_sentence(scene):
    record = send(scene)
    (job_dir(scene) / contract.PLAN).write_text("{}")
    with pytest.raises(RecordError, match=r"plan\.json can't be understood"):
        read_plan(scene.session, record)


def test_the_record_remembers_what_was_asked_until_an_attempt_has_it():
    submitted = json.dumps({"learners": 2, "set": ["a=b"]})
    record = make_record(overrides=submitted, attempt=3)
    assert remember(record, Overrides()) == record
    asked = remember(record, Overrides(learners=4, partition="big"))
    assert pending(asked, 2) == Overrides(learners=4, partition="big")
    assert pending(asked, 3) == Overrides()
    assert submitted_with(asked) == Overrides(learners=2, set=("a=b",))


@pytest.fixture
def served(scene):
    """A training with a parameter server on two nodes."""
    text = WHOLE.replace("learners: 2", "learners: 5") + "parameter_server: {shards: 3}\n"
    (scene.work / "manifest.yml").write_text(text)
    return scene


def test_a_parameter_server_is_planned_anew_for_other_learners(served):
    failed(served)
    assert planned(served, 1).parameter_server.shard_nodes == [0, 1, 0]
    go_on(served, learners=2)
    again = planned(served, 2)
    assert again.launch.step_per_learner
    assert again.parameter_server.shard_nodes == [0, 0, 0]
    assert again.parameter_server.min_learners == 1
    fail_newest(served)
    go_on(served, learners=1)
    alone = planned(served, 3)
    assert (alone.launch.kind, alone.parameter_server) == ("direct", None)
    assert alone.alone_on_server.solver == "elastic_averaging"
    assert "One learner needs no parameter server" in alone.not_in_this_version[0]
    assert "--no-kill" not in (job_dir(served) / contract.script_file(3)).read_text()
    fail_newest(served)
    go_on(served, learners=4)
    assert planned(served, 4).not_in_this_version == []
    assert planned(served, 4).alone_on_server is None
    assert "--no-kill" in (job_dir(served) / contract.script_file(4)).read_text()


def test_details_have_the_servers_and_where_the_shards_are_now(served):
    record = send(served)
    told = read_training_files(served.session, record)
    assert (told.servers, told.homes) == ([], None)
    for node in (0, 1):
        status = contract.Status("server", node, 1, contract.State.TRAINING, host=f"n{node}")
        path = job_dir(served) / contract.status_file(1, "server", node)
        contract.write_whole(path, contract.to_json(status))
    lost = contract.Status("server", 1, 1, contract.State.FAILED, "was lost with node n1", "n1")
    rulings = contract.to_json(contract.Rulings([lost]))
    contract.write_whole(job_dir(served) / contract.rulings_file(1), rulings)
    homes = contract.Homes(2, [0, 0, 0], [1])
    contract.write_whole(job_dir(served) / contract.homes_file(1), contract.to_json(homes))
    told = read_training_files(served.session, record)
    assert [(s.host, s.state) for s in told.servers] == [("n0", "TRAINING"), ("n1", "FAILED")]
    assert told.homes.lost_nodes == [1]


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("asked", [{"learners": 4}, {"new_code": True}])
@pytest.mark.parametrize("moment", ["tar -xmof", "submit.begin"])
def test_two_who_resume_at_once_never_mix_their_plans_scripts_and_code(
    scene, tmp_path, moment, asked
):
    failed(scene)
    elsewhere = RecordStore(tmp_path / "another home.db")
    elsewhere.add(scene.store.all()[0])
    (scene.work / "train.py").write_text("print('mended')\n")
    beside = Overtaken(lambda: go_on(scene, store=elsewhere, learners=3), moment, "mkdir")
    with pytest.raises(RecordError, match="was first: attempt 2 runs with its resources"):
        go_on(scene, beside, **asked)
    assert look(scene).attempt == 2
    assert_fits(scene, 2, 3)
    assert (job_dir(scene) / "code/train.py").read_text() == "print('hi')\n"
    run_everything(scene)
    assert len(scene.ran()) == 1


@pytest.mark.parametrize(("call", "cut"), [
    (2, BadTransport(5, "before")), (2, BadTransport(5, "after")), (3, None),
])  # fmt: skip
def test_a_submission_that_was_not_heard_may_ask_for_something_else(scene, call, cut):
    with pytest.raises(DlctlError):
        send(scene, BadTransport(call, "before"))
    if cut:
        with pytest.raises(DlctlError):
            go_on(scene, cut, learners=3)
        go_on(scene)
    else:
        go_on(scene, learners=3)
    assert_fits(scene, look(scene).attempt, 3)
    run_everything(scene)
    assert len(scene.ran()) == 1
