"""Sections: `notify`, `stop`, `evaluation_metrics`, `parameter_server`: refused, and planned."""

import json
import re

import pytest
from login_side import MANIFEST, make_manifest, make_site, plan_of

from dlctl import contract
from dlctl.contract.measured.parsers import SPELLINGS, ParserType
from dlctl.errors import ManifestError, PlanError
from dlctl.manifest.checks import check_files, not_in_this_version
from dlctl.manifest.parameter_server import MOST_IN_ROUNDS
from dlctl.plan import parameter_server
from dlctl.plan.sections import metrics_plan
from dlctl.request.credentials import refuse_webhook
from dlctl.scheduler.sbatch import sbatch_options
from psrv.shard.format import SLOTS
from psrv.shard.membership import RANKS

TEXT = "name: x\nframework: {name: pytorch, job: train.py}\n"


def test_a_webhook_is_kept_as_a_secret():
    text = TEXT + "notify: {webhook: https://hooks.example.org/T0/B1, on: [failed]}\n"
    manifest, secrets = make_manifest(text).extract_secrets()
    assert secrets == {"notify.webhook": "https://hooks.example.org/T0/B1"}
    assert "hooks.example.org" not in manifest.to_yaml()
    plan = plan_of(text)
    assert plan.notify.webhook == f"file:{plan.root}/secrets/{plan.training_id}/notify.webhook"
    assert plan.notify.on == ["failed"] and plan.secret_env == {}
    assert make_manifest(manifest.to_yaml()).notify.webhook.from_secret == "notify.webhook"


def test_what_signs_is_kept_as_a_secret_and_the_sites_hosts_are_in_the_plan():
    text = TEXT + "notify: {webhook: {from_env: A}, webhook_secret: whsec_MfKQ9r8G}\n"
    manifest, secrets = make_manifest(text).extract_secrets()
    assert secrets == {"notify.webhook_secret": "whsec_MfKQ9r8G"}
    assert "whsec_" not in manifest.to_yaml()
    plan = plan_of(text, make_site(more="webhook_hosts: [Hook.Lab.example., 10.1.2.3/16]"))
    assert plan.notify.webhook_secret.endswith(f"/{plan.training_id}/notify.webhook_secret")
    assert plan.webhook_hosts == ["hook.lab.example", "10.1.0.0/16"]


@pytest.mark.parametrize(
    ("url", "secret", "said"),
    [("https://10.0.0.1/x-tok", "", "the webhook's host 10.0.0.1 is not public"),
     ("http://hook.example.org/x-tok", "", "the webhook at hook.example.org is asked without TLS"),
     ("https://hook.example.org/x-tok", "x-tok", "the secret is not whsec_ and 24 to 64 bytes"),
     ("hook.example.org/x-tok", "", "the webhook is no http or https URL")],
)  # fmt: skip
def test_a_webhook_that_nothing_would_be_sent_to_is_refused(url, secret, said):
    values = {"notify.webhook": url, "notify.webhook_secret": secret}
    with pytest.raises(ManifestError, match=f"notify.webhook: {said}") as caught:
        refuse_webhook(values, [])
    assert caught.value.hint and "x-tok" not in str(caught.value)


def test_a_mail_server_and_its_password():
    text = TEXT + (
        "notify: {email: me@example.org, smtp: {server: 'smtp.example.org', user: me,"
        " password: {from_env: P}}}\n"
    )
    smtp = plan_of(text).notify.smtp
    assert (smtp.server, smtp.port, smtp.tls) == ("smtp.example.org", 587, "starttls")
    assert smtp.sender == "me@example.org" and smtp.password.endswith("/notify.smtp.password")
    assert not any("mail" in option for option in sbatch_options(plan_of(text)))


def test_without_a_mail_server_slurm_sends_mails():
    options = sbatch_options(plan_of(TEXT + "notify: {email: me@example.org}\n"))
    assert "--mail-user=me@example.org" in options and "--mail-type=FAIL,END" in options


def test_guards_are_in_the_plan():
    text = "stop: {not_a_number, plateau: {patience: 3}, loss_spike: {factor: 4}, max_gpu_hours: 8}"
    assert plan_of(TEXT + text).stop == contract.StopRules(
        True, contract.Plateau("validation_loss", 3), loss_spike=4.0, max_gpu_hours=8.0
    )
    for said, rule in (
        ("auto", contract.Plateau()),
        ("", contract.Plateau()),
        ("{metric: loss}", contract.Plateau("loss")),
        ("{metric: accuracy}", contract.Plateau("accuracy", 0, "higher")),
        ("{metric: accuracy, patience: 2}", contract.Plateau("accuracy", 2, "lower")),
    ):
        assert plan_of(f"{TEXT}stop: {{plateau: {said}}}").stop == contract.StopRules(plateau=rule)
    assert plan_of(TEXT + "stop: {loss_spike: {factor: 4, action: skip}}").stop.skip_batches


# evaluation_metrics: FfDL's spellings ------------------------------------------------------------

METRICS = "name: x\nframework: {name: f, command: run}\nevaluation_metrics:\n"
GROUP = 'groups: {test: {regex: "loss=(?P<loss>.*)", values: {loss: {type: FLOAT, value: $loss}}}}'


def metrics_manifest(text):
    return make_manifest(METRICS + text)


def planned_metrics(text):
    return metrics_plan(metrics_manifest(text).evaluation_metrics, prints=False)


def test_every_spelling_of_every_type():
    needs = {ParserType.REGEX: f", {GROUP}", ParserType.PYTHON: ", parser: p.py"}
    for word, kind in SPELLINGS.items():
        for spelling in (word, word.upper()):
            quoted = f'"{spelling}"'
            plan = planned_metrics(f"  {{type: {quoted}{needs.get(kind, '')}}}\n")
            assert plan["type"] == kind.value
    assert planned_metrics(f"  {{type: regex_extractor, {GROUP}}}\n")["line_lookahead"] == 4
    for absent in ("  {type: null}\n", "  {type: }\n", "  {image_tag: x}\n"):
        assert planned_metrics(absent) == {"type": "logger"}
    assert metrics_plan(make_manifest(METRICS).evaluation_metrics, prints=False) is None


def test_ffdls_example_of_groups_becomes_a_plain_dictionary():
    text = """\
  type: regex_extractor
  image_tag: latest
  in: "$JOB_STATE_DIR/logs/training-log.txt"
  linelookahead: 3
  eventTypes: [images, 1.5]
  groups:
    train:
      regex: '%{GLOG_STAMP:stamp}.*Iteration %{INT:iteration} .*loss = %{FLOAT:loss}'
      meta: {time: $stamp, subid: ""}
      scalars:
        loss: {type: FLOAT, value: $loss}
        batch: {type: 2, value: 64}
      etimes:
        iteration: {type: int, value: $iteration}
        note: {value: literal}
"""
    manifest = metrics_manifest(text)
    found = metrics_plan(manifest.evaluation_metrics, prints=False)
    assert json.loads(json.dumps(found)) == found
    assert (found["in"], found["line_lookahead"]) == ("$JOB_STATE_DIR/logs/training-log.txt", 3)
    group = found["groups"]["train"]
    assert group["meta"] == {"time": "$stamp", "subid": ""}
    assert group["scalars"] == {
        "loss": {"type": "FLOAT", "value": "$loss"},
        "batch": {"type": "INT", "value": "64"},
    }
    assert group["etimes"]["note"] == {"type": "STRING", "value": "literal"}
    again = make_manifest(manifest.to_yaml())
    assert metrics_plan(again.evaluation_metrics, prints=False) == found
    assert not [told for told in not_in_this_version(manifest) if "evaluation" in told]


def test_the_parsers_file_has_to_be_there(tmp_path):
    manifest = metrics_manifest("  {type: python, parser: my_parser.py}\n")
    with pytest.raises(ManifestError, match=r"evaluation_metrics.parser: my_parser.py does not"):
        check_files(manifest, tmp_path)
    (tmp_path / "my_parser.py").touch()
    check_files(manifest, tmp_path)


# parameter_server: what each solver allows, and what contradicts what -----------------------------

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


@pytest.mark.parametrize(("text", "place", "words"), [
    *((f"{TEXT}{section}\n", "3:", words) for section, words in (
        ("notify: {on: [failed]}", "has no way to tell"),
        ("notify: {email: nobody}", "'nobody' is not a mail address"),
        ("notify: {email: a@b.c, on: [eaten]}", "eaten"),
        ("notify: {webhook: {from_env: A}, smtp: {server: s}}", "smtp is set without email"),
        ("notify: {command: x, webhook_secret: y}", "webhook_secret is set without webhook"),
        ("notify: {command: x, on: []}", "on names no event; started, "),
        ("stop: {not_a_number: maybe}", "'maybe' is not allowed; true or false is allowed"),
        ("hang: {floor: 1s}", "'1s' is too short; 15s or more is allowed"),
        ("notify: {email: a@b.c, smtp: {server: s, tls: none, password: p4ssw0rd}}", "readable"),
        ("stop: {}", "is empty"),
        ("stop: {plateau: {patience: 0}}", "patience"),
        ("stop: {plateau: 5}", "stop.plateau: 5 is no guard; auto, or metric, patience and better"),
        ("stop: {loss_spike: {factor: 1}}", "factor"),
    )),
    *((METRICS + text, f"{line}:", words) for text, line, words in (
        ("  type: tensorbord\n", 4, "'tensorbord' is no parser"),
        ("  type: true\n", 4, "True is no parser"),
        ("  type: regex_extractor\n", 3, "needs groups"),
        ("  type: python\n", 3, "needs parser"),
        ("  type: auto\n  parser: p.py\n", 3, "type is not python"),
        ("  type: python\n  parser: ../p.py\n", 5, "leaves the folder"),
        ("  line_lookahead: 0\n", 4, "at least 1"),
        ("  line_lookahead: 2\n  linelookahead: 2\n", 3, "mean the same"),
        ("  colour: red\n", 4, "colour"),
        ("  inn: tb\n", 4, "unknown key; did you mean 'in'? Allowed: type, in, line_"),
        ("  groups:\n    g: {regex: '(a'}\n", 5, "is no regular expression"),
        ("  groups:\n    g: {regex: '%{NOPE}'}\n", 5, "%{NOPE} is not in the library"),
        ("  groups:\n    g: {regex: a, values: {x: {value: $y}}}\n", 5, "names no group"),
        ("  groups:\n    g: {regex: a, meta: {place: 1}}\n", 5, "'place' is unknown"),
        ("  groups:\n    g: {regex: a, values: {x: {type: BOOL, value: 1}}}\n", 5,
         "'BOOL' is no type"),
        ("  groups:\n    g: {regex: a, values: {x: {value: 1}}, scalars: {x: {value: 1}}}\n",
         5, "mean the same"),
    )),
    *((text_of(settings), r"4:\d+: parameter_server\.[a-z_]+: ", words) for settings, words in (
        ("solver: elastic_averaging, staleness: 0",
         "staleness: with 0 all learners would wait for one another, which elastic_averaging does "
         "not; at least 1 is allowed, or the solver parallel_sgd"),
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
    )),
])  # fmt: skip
def test_a_mistake_is_a_sentence_with_its_place(text, place, words):
    with pytest.raises(ManifestError) as told:
        make_manifest(text)
    line = told.value.problems[0]
    assert re.match(rf"manifest\.yml:{place}", line) and words in str(told.value), line
    assert len(told.value.problems) == 1 and "p4ssw0rd" not in str(told.value)


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
    manifest = make_manifest(text_of("", "storage: 1GiB\n"), learners=1)
    assert not_in_this_version(manifest) == [
        "One learner needs no parameter server: it trains alone, and none is started.",
        "This version does not use storage.",
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
