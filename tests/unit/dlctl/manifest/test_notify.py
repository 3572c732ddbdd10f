"""The manifest's `notify` and `stop`: what is kept secret, what is refused, what Slurm is told."""

import pytest
from login_side import make_manifest, make_site, plan_of

from dlctl import contract
from dlctl.errors import ManifestError
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
