"""`dlctl validate --notify`: a test notice to those whom a manifest names."""

from __future__ import annotations

import pytest
from people import mail_server, webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MANIFEST = """\
name: digits
framework: {{name: custom, command: python train.py}}
notify: {{webhook: '{url}', webhook_secret: '{secret}'{more}}}
"""


@pytest.fixture
def validate(dlctl, xdg, add_site, tmp_path):
    add_site("mine", tmp_path / "root")
    with (xdg.config / "dlctl/sites/mine.yml").open("a") as file:
        file.write("webhook_hosts: [127.0.0.1]\n")

    def validate(url, *options, more="", **how):
        (dlctl.cwd / "train.py").write_text("")
        text = MANIFEST.format(url=url, secret=SECRET, more=more)
        (dlctl.cwd / "manifest.yml").write_text(text)
        return dlctl("validate", *(options or ("--notify", "--site", "mine")), **how)

    return validate


def test_each_way_gets_a_signed_notice_that_says_it_is_a_test(validate):
    with webhook() as hook, mail_server() as (port, mails):
        more = (", email: me@example.org, "
                f"smtp: {{server: '127.0.0.1:{port}', sender: a@b.c, tls: none}}")  # fmt: skip
        done = validate(hook.url, more=more, ok=True)
        assert hook.asked == 1 and len(mails) == 1
        validate(hook.url, "--site", "mine", ok=True)
        assert hook.asked == 1, "without --notify nobody is told"
    assert "webhook: the test notice was taken" in done.stderr and "email: " in done.stderr
    (headers, _), (got,) = hook.sent[0], hook.got
    assert got["event"] == "started" and got["training_id"].startswith("test-")
    assert "This is a test" in got["text"] and headers["webhook-signature"].startswith("v1,")


def test_what_was_not_taken_is_an_error_without_a_secret(validate):
    with webhook() as hook:
        hook.answers = [404]
        refused = validate(hook.url)
    absent = validate(hook.url)
    for done, said in ((refused, "answered with 404"), (absent, "Connection refused")):
        assert done.exit_code == 1 and said in done.stderr
        assert "secret-token" not in done.stderr and SECRET not in done.stderr


def test_a_private_receiver_that_the_site_does_not_list_is_refused(validate):
    with webhook() as hook:
        done = validate(hook.url, "--notify", "--site", "local")
    assert done.exit_code == 1 and "webhook_hosts" in done.stderr and hook.asked == 0


def test_a_manifest_that_tells_nobody_is_a_wrong_option(validate, dlctl):
    text = "name: digits\nframework: {name: custom, command: 'true'}\n"
    (dlctl.cwd / "manifest.yml").write_text(text)
    done = dlctl("validate", "--notify")
    assert done.exit_code == 2 and "no webhook" in done.stderr
