"""`parameter_server` in a manifest: what each solver allows, and what contradicts what."""

import re

import pytest
from login_side import MANIFEST, make_manifest, make_site, plan_of

from dlctl.errors import ManifestError, PlanError
from dlctl.manifest.checks import not_in_this_version
from dlctl.manifest.parameter_server import MOST_IN_ROUNDS
from dlctl.plan import parameter_server
from psrv.shard.format import SLOTS
from psrv.shard.membership import RANKS

SITE = make_site(more="partitions: {two: {cpus_per_node: 2, gpus_per_node: 2}}")


def text_of(settings, more=""):
    return f"{MANIFEST}learners: 4\nparameter_server: {{{settings}}}\n{more}"


def problems(settings, more="", **overrides):
    with pytest.raises(ManifestError) as refused:
        make_manifest(text_of(settings, more), **overrides)
    return refused.value.problems


def server_of(settings, learners=4, **overrides):
    return plan_of(text_of(settings), site=SITE, learners=learners, **overrides).parameter_server


def test_nothing_said_is_elastic_averaging_with_half_of_the_learners_enough():
    server = server_of("")
    assert (server.solver, server.push_every, server.pull_every) == ("elastic_averaging", 1, 1)
    assert (server.staleness, server.min_learners) == (None, 2)
    assert server.moving_rate == 0.9 / 4
    assert (server.timeout_s, server.snapshot_every_s) == (120, 60)
    assert server.shard_nodes == [0, 1]


@pytest.mark.parametrize(("settings", "staleness", "pull_every"), [
    ("solver: parallel_sgd", 0, 1),
    ("solver: parallel_sgd, staleness: 3, aggregate: every_push", 3, 1),
    ("solver: parallel_sgd, aggregate: all", 0, 1),
    ("solver: downpour_sgd, push_every: 5, pull_every: 10, adagrad: true", None, 10),
    ("solver: downpour_sgd, staleness: 2, momentum: 0.9, aggregate: every_push", 2, 1),
    ("solver: elastic_averaging, push_every: 5, pull_every: 5, moving_rate: 0.3", None, 5),
    ("solver: model_averaging, push_every: 20, aggregate: all", 0, 20),
    ("solver: diloco, push_every: 100, adagrad: false", 0, 100),
    ("solver: own, push_every: 2, pull_every: 4, staleness: 1", 1, 4),
    ("solver: 'downpour_sgd', staleness: '2', push_every: '3'", 2, 3),
])  # fmt: skip
def test_settings_that_match_the_solver_are_accepted(settings, staleness, pull_every):
    server = server_of(settings)
    assert (server.staleness, server.pull_every) == (staleness, pull_every)


def test_a_solver_has_the_rates_of_those_who_made_it():
    diloco = server_of("solver: diloco")
    assert (diloco.learning_rate, diloco.momentum) == (0.7, 0.9)
    assert server_of("solver: diloco, momentum: 0").momentum == 0
    downpour = server_of("solver: downpour_sgd")
    assert (downpour.learning_rate, downpour.momentum, downpour.moving_rate) == (None, None, None)


@pytest.mark.parametrize(("settings", "sentence"), [
    ("solver: elastic_averaging, staleness: 0",
     "staleness: with 0 all learners would wait for one another, which elastic_averaging does not; "
     "at least 1 is allowed, or the solver parallel_sgd"),
    ("solver: own, staleness: 0", "staleness: with 0 all learners would wait"),
    ("solver: model_averaging, staleness: 1",
     "staleness: model_averaging does not use it; it uses none of these settings"),
    ("solver: diloco, moving_rate: 0.1",
     "moving_rate: diloco does not use it; of these settings it uses learning_rate, momentum"),
    ("momentum: 0.9", "momentum: elastic_averaging does not use it; of these settings it uses "
     "moving_rate, staleness"),
    ("momentum: 0", "momentum: elastic_averaging does not use it"),
    ("solver: parallel_sgd, adagrad: true", "adagrad: parallel_sgd does not use it"),
    ("solver: downpour_sgd, adagrad: true, momentum: 0.5", "momentum: adagrad has none"),
    ("solver: elastic_averaging, aggregate: all",
     "aggregate: 'all' contradicts the solver: elastic_averaging draws learner and center"),
    ("solver: model_averaging, aggregate: every_push",
     "aggregate: 'every_push' contradicts the solver: model_averaging waits for all learners"),
    ("solver: parallel_sgd, aggregate: every_push", "'every_push' contradicts the solver"),
    ("solver: own, aggregate: all", "own aggregates as its class says"),
    ("push_every: 5, pull_every: 10",
     "pull_every: elastic_averaging takes the answer with each push; 5, as push_every"),
    ("solver: downpour_sgd, push_every: 5, pull_every: 7",
     "pull_every: 7 is not a multiple of push_every, 5"),
    ("solver: downpour_sgd, push_every: 5, pull_every: 3", "pull_every: 3 is not a multiple"),
    ("solver: easgd", "'easgd' is unknown"),
    ("solver: dilocos", "did you mean 'diloco'?"),
    ("stalenes: 1", "unknown key; did you mean 'staleness'?"),
    ("timeout: 10", "has no unit"),
    ("momentum: 1.0", "less than 1"),
    ("moving_rate: 0", "more than 0"),
    ("shards: 0", "at least 1"),
    ("min_learners: 0", "at least 1"),
    # The plan is JSON, which has no infinite number.
    *((f"solver: downpour_sgd, learning_rate: {rate}",
       "is not allowed; a finite number is allowed") for rate in (".inf", "inf", "1e400")),
])  # fmt: skip
def test_a_contradiction_is_reported_at_its_key(settings, sentence):
    (problem,) = problems(settings)
    assert re.match(r"manifest\.yml:4:\d+: parameter_server\.[a-z_]+: ", problem)
    assert sentence in problem


def test_own_is_the_solver_of_a_file_with_build():
    text = "name: a\nframework: {name: own, command: 'true'}\nparameter_server: {solver: own}\n"
    with pytest.raises(ManifestError, match="framework.job is needed") as refused:
        make_manifest(text, learners=2)
    assert refused.value.problems[0].startswith("manifest.yml:3:20: parameter_server.solver: own")


def test_all_problems_are_reported_at_once_with_their_places():
    assert make_manifest(text_of("", "training: {exchange: auto, average_every_steps: 1}\n"))
    found = problems(
        "solver: diloco, pull_every: 3, staleness: 1",
        "training: {average_every_steps: 4, exchange: shm}\n",
    )
    assert [problem.split(": ")[1] for problem in found] == [
        "parameter_server.pull_every", "parameter_server.staleness",
        "training.average_every_steps", "training.exchange",
    ]  # fmt: skip
    assert found[2].startswith("manifest.yml:5:12: ")


def test_the_option_that_brought_the_contradiction_is_named():
    (problem,) = problems("", set=("parameter_server.staleness=0",))
    assert problem.startswith("--set: parameter_server.staleness: with 0 all learners")


@pytest.mark.parametrize(("settings", "allowed"), [
    ("solver: parallel_sgd", False), ("solver: model_averaging", False),
    ("solver: diloco", False), ("solver: parallel_sgd, staleness: 1", True), ("", True),
])  # fmt: skip
def test_only_so_many_learners_can_wait_for_one_another(settings, allowed):
    assert make_manifest(text_of(settings), learners=62).learners == 62
    if allowed:
        assert make_manifest(text_of(settings), learners=63).learners == 63
        return
    (problem,) = problems(settings, learners=63)
    assert problem.startswith("--learners: 63 learners can't all wait for one another with")
    assert "at most 62" in problem


def test_one_learner_starts_no_server_and_the_plan_says_so():
    plan = plan_of(text_of("solver: diloco"), learners=1)
    assert (plan.parameter_server, plan.launch.kind) == (None, "direct")
    manifest = make_manifest(text_of(""), learners=1)
    assert not_in_this_version(manifest) == [
        "One learner needs no parameter server: it trains alone, and none is started."
    ]
    assert not_in_this_version(make_manifest(text_of(""))) == []


def test_a_program_of_one_learner_is_told_what_its_own_server_is_to_be():
    settings = "solver: diloco, push_every: 3, learning_rate: 0.5"
    alone = plan_of(text_of(settings), learners=1).alone_on_server
    assert (alone.solver, alone.push_every, alone.learning_rate) == ("diloco", 3, 0.5)
    assert (alone.shard_nodes, alone.argv) == ([0], [])
    assert plan_of(text_of("solver: diloco"), learners=2).alone_on_server is None
    assert plan_of(MANIFEST, learners=1).alone_on_server is None


def test_an_empty_value_means_no_server_and_is_reported():
    empty = make_manifest(MANIFEST + "parameter_server:\n", learners=2)
    assert empty.parameter_server is None
    told = "parameter_server is empty: there is none; {} is one with its defaults."
    assert not_in_this_version(empty) == [*not_in_this_version(make_manifest(MANIFEST)), told]
    assert plan_of(text_of(""), set=("parameter_server=null",)).parameter_server is None


def test_a_home_has_a_slot_for_each_of_its_learners_and_for_each_node():
    assert (parameter_server.SLOTS, MOST_IN_ROUNDS) == (SLOTS, RANKS)
    assert plan_of(text_of(""), learners=63).parameter_server
    with pytest.raises(PlanError, match="64 learners on a node plus 1 nodes are too many"):
        plan_of(text_of(""), learners=64)


@pytest.mark.parametrize(("settings", "learners", "days", "network"), [
    ("", 4, 6, "ib0"), ("", 6, 6, "ib0"), ("min_learners: 3", 4, 3, "ib0"), ("", 2, 6, None),
])  # fmt: skip
def test_only_the_loss_of_the_first_node_ends_it(settings, learners, days, network):
    """Servers of several nodes talk over the site's network."""
    site = make_site(more="network: ib0\nfailures: {node_mtbf: 6d}\n"
                     "partitions: {two: {cpus_per_node: 2}}\n")  # fmt: skip
    plan = plan_of(text_of(settings), site=site, learners=learners)
    assert len(plan.resources.learners_per_node) == learners // 2
    assert plan.checkpoint.mtbf_s == days * 86400
    assert plan.parameter_server.network == network


@pytest.mark.parametrize(("learners", "asked", "enough"), [
    (2, "", 1), (3, "", 2), (5, "", 3), (62, "", 31), (4, "min_learners: 4", 4),
    (2, "min_learners: 8", 2),
])  # fmt: skip
def test_how_many_learners_are_enough(learners, asked, enough):
    assert server_of(asked, learners).min_learners == enough
    notes = " ".join(not_in_this_version(make_manifest(text_of(asked), learners=learners)))
    exceeds = f"exceeds the number of learners: all {learners} are needed."
    assert (exceeds in notes) == ("8" in asked)


def test_the_manifest_that_is_stored_says_the_same():
    manifest = make_manifest(text_of("solver: downpour_sgd, staleness: 2, timeout: 90s"))
    assert make_manifest(manifest.to_yaml()).parameter_server == manifest.parameter_server
