"""Notices from the node: each once, in each way, and never in the way of the job."""

import json
import ssl
import threading
import time
from dataclasses import replace

import pytest
from aiosmtpd.smtp import AuthResult
from people import certificate, mail_server, webhook
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Action, Next, Notify, Smtp, State, Verdict, VerdictKind
from learner.supervisor import notices

FAILED = Verdict(
    2, "17", State.FAILED, "Learner 1 on n3 failed.\nBadly.", "See the log.",
    kind="user_error", action=Action(Next.STOP, "it would happen again"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    monkeypatch.setattr(notices, "PAUSES_S", (0.0, 0.0))


class Job:
    def __init__(self, folder, notify, verdict=None):
        self.dir = folder
        self.plan = replace(make_plan(), notify=notify, root=str(folder),
                            webhook_hosts=["127.0.0.1"])  # fmt: skip
        self.said = []
        for name in (contract.attempt_dir(2), contract.CODE):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if verdict is not None:
            path = folder / contract.verdict_file(2)
            contract.write_whole(path, contract.to_json(verdict))

    def end(self):
        notices.tell_end(self.dir, self.plan, 2, self.said.append)

    @property
    def files(self):
        folder = self.dir / contract.NOTICES
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def hook():
    with webhook() as made:
        yield made


def secret(folder, value):
    path = folder / "hook"
    path.write_text(value + "\n")
    path.chmod(0o600)
    return f"file:{path}"


def test_a_failure_reaches_a_webhook_once_with_its_verdict(tmp_path, hook):
    job = Job(tmp_path, Notify(webhook=secret(tmp_path, hook.url)), FAILED)
    job.end()
    job.end()
    (got,) = hook.got
    assert hook.request_count == 1
    assert (got["event"], got["kind"], got["attempt"]) == ("failed", "user_error", 2)
    assert got["action"] == "it would happen again"
    assert got["text"].startswith(f"{job.plan.training_id} FAILED: Learner 1 on n3 failed.")
    assert job.files == ["2-failed.webhook"] and not job.said


def test_an_attempt_that_was_succeeded_tells_nothing(tmp_path, hook):
    job = Job(tmp_path, Notify(webhook=secret(tmp_path, hook.url)), FAILED)
    (tmp_path / contract.attempt_dir(3)).mkdir(parents=True)
    (tmp_path / contract.submit_begin(3)).write_text("token")
    job.end()
    assert hook.request_count == 0 and not job.files


def test_what_a_webhook_refuses_is_tried_again_and_then_left_to_others(tmp_path):
    with webhook() as hook:
        job = Job(tmp_path, Notify(webhook=secret(tmp_path, hook.url)), FAILED)
        hook.answers = [500, 503]
        job.end()
        assert (hook.request_count, len(hook.got)) == (3, 1)
    assert {headers["webhook-id"] for headers, _ in hook.sent} == {"t-1-2-failed"}
    (tmp_path / contract.NOTICES / "2-failed.webhook").unlink()
    job.end()  # nobody listens any more
    assert job.files == ["2-failed.webhook.unsent"]
    assert "Connection refused" in job.said[0] and "secret-token" not in job.said[0]


def test_a_receiver_that_is_busy_for_long_is_left_to_others(tmp_path, hook):
    job = Job(tmp_path, Notify(webhook=secret(tmp_path, hook.url)), FAILED)
    hook.answers, hook.headers["Retry-After"] = [503], "3600"
    job.end()
    assert hook.request_count == 1 and job.files == ["2-failed.webhook.unsent"]
    left = (tmp_path / contract.NOTICES / "2-failed.webhook.unsent").read_text()
    assert 3590 < float(left.removeprefix("not before ")) - time.time() < 3601
    assert "answered with 503" in job.said[0]


def test_a_receiver_that_is_gone_is_asked_no_more(tmp_path, hook):
    both = Notify(webhook=secret(tmp_path, hook.url), on=["started", "failed"])
    job = Job(tmp_path, both, FAILED)
    hook.answers = [410]
    job.end()
    assert job.files == ["2-failed.webhook"] and "take it out" in job.said[1]
    notices.tell_started(tmp_path, job.plan, 2, job.said.append)
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread() and "tell" in thread.name:
            thread.join()
    assert hook.request_count == 1 and job.files == ["2-failed.webhook"]


def test_a_silent_webhook_does_not_hold_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(notices, "LONGEST_S", 0.2)
    released, answered = threading.Event(), threading.Event()
    monkeypatch.setattr(notices, "_send", lambda *_: released.wait(60) or answered.set())
    Job(tmp_path, Notify(webhook="file:x"), FAILED).end()
    assert not answered.is_set()
    released.set()


def test_a_mail_comes_by_smtp(tmp_path):
    with mail_server() as (port, mails):
        smtp = Smtp("127.0.0.1", port, "dlctl@example.org", tls="none")
        Job(tmp_path, Notify(email="me@example.org", smtp=smtp), FAILED).end()
        (mail,) = mails
    assert (mail["To"], mail["From"]) == ("me@example.org", "dlctl@example.org")
    assert mail["Subject"].endswith("failed: Learner 1 on n3 failed. Badly.")
    assert "kind: user_error" in str(mail.get_payload())


def test_a_mail_and_its_password_go_through_starttls_only(tmp_path, monkeypatch):
    made, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)

    def knows(server, session, envelope, how, told):
        del server, session, envelope, how
        return AuthResult(success=(told.login, told.password) == (b"me", b"secret"))

    rules = {"tls_context": context, "require_starttls": True, "auth_required": True,
             "authenticator": knows}  # fmt: skip
    with mail_server(**rules) as (port, mails):
        smtp = Smtp("localhost", port, "dlctl@example.org", user="me",
                    password=secret(tmp_path, "secret"))  # fmt: skip
        (tmp_path / contract.CODE).mkdir()
        wrong = replace(smtp, password=secret(tmp_path / contract.CODE, "guess"))
        for each, problem in (
            (smtp, "certificate verify failed"), (wrong, "the mail server refused"), (smtp, ""),
        ):  # fmt: skip
            job = Job(tmp_path, Notify(email="me@example.org", smtp=each), FAILED)
            job.end()
            assert bool(mails) is not bool(problem)
            assert not problem or problem in job.said[0]
            monkeypatch.setenv("SSL_CERT_FILE", str(made))
            for path in (tmp_path / contract.NOTICES).iterdir():
                path.unlink()
        assert [mail["To"] for mail in mails] == ["me@example.org"]


def test_a_command_gets_the_notice_and_runs_twice_at_most(tmp_path):
    command = 'cat >"../$DLCTL_EVENT"; echo ran >>../runs; exit 3'
    job = Job(tmp_path, Notify(command=command), FAILED)
    job.end()
    assert json.loads((tmp_path / "failed").read_text())["state"] == "FAILED"
    assert (tmp_path / "runs").read_text().split() == ["ran", "ran"]
    assert job.said == ["Warning: no notice by command: the command ended with exit code 3: "
                        "it printed nothing"]  # fmt: skip


def test_an_address_that_is_not_public_is_not_tried_again(tmp_path):
    job = Job(tmp_path, Notify(webhook=secret(tmp_path, "https://10.0.0.1/secret-token")), FAILED)
    job.end()
    assert job.said[0].endswith("10.0.0.1 is not public") and "webhook_hosts" in job.said[1]
    assert job.files == ["2-failed.webhook.unsent"] and "secret-token" not in job.said[0]


@pytest.mark.parametrize(
    ("verdict", "event"),
    [
        ({"action": Action(Next.RETRY, "", 3)}, ""),
        ({"action": None}, "failed"),
        ({"state": State.COMPLETED}, "finished"),
        ({"state": State.COMPLETED, "kind": str(VerdictKind.PLATEAU)}, "plateau"),
        ({"state": State.HALTED, "action": Action(Next.NOTHING, "a person")}, ""),
        ({"state": State.HALTED}, "failed"),
        ({"state": State.CANCELLED}, ""),
    ],
)
def test_what_is_told(verdict, event):
    assert contract.event_of(replace(FAILED, **verdict)) == event


def test_the_start_is_told_once_for_all_attempts(tmp_path, hook, wait_until):
    job = Job(tmp_path, Notify(on=["started"], webhook=secret(tmp_path, hook.url)), FAILED)
    for attempt in (1, 2):
        notices.tell_started(job.dir, job.plan, attempt, job.said.append)
    wait_until(lambda: hook.got)
    job.end()
    assert [got["event"] for got in hook.got] == ["started"]
    assert job.files == ["0-started.webhook"]
