"""The sections `notify`, `stop` and `evaluation_metrics`: what is refused, and what is planned."""

import json

import pytest
from login_side import make_manifest, make_site, plan_of

from dlctl import contract
from dlctl.contract.measured.parsers import SPELLINGS, ParserType
from dlctl.errors import ManifestError
from dlctl.manifest.checks import check_files, not_in_this_version
from dlctl.plan.sections import metrics_plan
from dlctl.request.credentials import refuse_webhook
from dlctl.scheduler.sbatch import sbatch_options

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


@pytest.mark.parametrize(
    ("section", "said"),
    [
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
    ],
)
def test_what_is_refused(section, said):
    with pytest.raises(ManifestError) as caught:
        make_manifest(TEXT + section + "\n")
    assert said in str(caught.value) and "p4ssw0rd" not in str(caught.value)


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
    return metrics_plan(metrics_manifest(text).evaluation_metrics)


def test_every_spelling_of_every_type():
    needs = {ParserType.REGEX: f", {GROUP}", ParserType.PYTHON: ", parser: p.py"}
    for word, kind in SPELLINGS.items():
        for spelling in (word, word.upper()):
            quoted = f'"{spelling}"'
            assert (
                planned_metrics(f"  {{type: {quoted}{needs.get(kind, '')}}}\n")["type"]
                == kind.value
            )
    assert planned_metrics(f"  {{type: regex_extractor, {GROUP}}}\n")["line_lookahead"] == 4
    for absent in ("  {type: null}\n", "  {type: }\n", "  {image_tag: x}\n"):
        assert planned_metrics(absent) == {"type": "logger"}
    assert metrics_plan(make_manifest(METRICS).evaluation_metrics) is None


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
    found = metrics_plan(manifest.evaluation_metrics)
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
    assert metrics_plan(again.evaluation_metrics) == found
    assert not [told for told in not_in_this_version(manifest) if "evaluation" in told]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
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
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_with_its_line(text, place, words):
    with pytest.raises(ManifestError) as told:
        metrics_manifest(text)
    (line,) = told.value.problems
    assert line.startswith(f"manifest.yml:{place}:") and words in line, line


def test_the_parsers_file_has_to_be_there(tmp_path):
    manifest = metrics_manifest("  {type: python, parser: my_parser.py}\n")
    with pytest.raises(ManifestError, match=r"evaluation_metrics.parser: my_parser.py does not"):
        check_files(manifest, tmp_path)
    (tmp_path / "my_parser.py").touch()
    check_files(manifest, tmp_path)
