"""Endpoints that are registered after the submission: kept, told from both sides, removed."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from login_side import make_record, make_site, plan_of
from people import webhook

from dlctl import contract
from dlctl.contract import Action, Endpoint, Next, State, Verdict
from dlctl.errors import Misused, RecordError
from dlctl.lifecycle.notices import TRIES, tell
from dlctl.lifecycle.session import Session
from dlctl.service import webhooks
from dlctl.transport.local import LocalTransport
from learner.supervisor.notices import tell_end

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def session(tmp_path):
    site = make_site(tmp_path, more="webhook_hosts: [127.0.0.1]")
    return Session(site, LocalTransport(), None)  # type: ignore[arg-type]


@pytest.fixture
def record(tmp_path):
    """A training without `notify` that has failed, which dlctl does not know yet."""
    made = make_record(tmp_path, state=State.TRAINING, attempt=1)
    job_dir = Path(made.job_dir)
    (job_dir / contract.attempt_dir(1)).mkdir(parents=True)
    plan = replace(plan_of(), training_id="t-1", root=str(tmp_path), webhook_hosts=["127.0.0.1"])
    (job_dir / contract.PLAN).write_text(contract.to_json(plan))
    verdict = Verdict(1, "7", State.FAILED, "Learner 0 failed.", finished_at=1.5,
                      action=Action(Next.STOP, "why"))  # fmt: skip
    (job_dir / contract.verdict_file(1)).write_text(contract.to_json(verdict))
    return made


def test_an_endpoint_is_kept_replaced_and_removed(session, record):
    assert webhooks.endpoints(session, record) == []
    old, new = (Endpoint("a", "failed", f"https://hook.example.org/{n}") for n in (1, 2))
    for each in (old, new, Endpoint("b", "finished", "https://hook.example.org/3", SECRET)):
        assert webhooks.register(session, record, each) == each
    known = {each.id: each for each in webhooks.endpoints(session, record)}
    assert known["a"] == new and [*known] == ["a", "b"]
    file = Path(contract.endpoints_file(session.site.root, record.training_id))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "hook.example.org" not in repr(new) and SECRET not in repr(webhooks.endpoints)
    webhooks.unregister(session, record, new)
    assert [each.id for each in webhooks.endpoints(session, record)] == ["b"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [(Endpoint("a", "eaten", "https://hook.example.org/"), "'eaten' is no event; started, "),
     (Endpoint("../a", "failed", "https://hook.example.org/"), "endpoint's id"),
     (Endpoint("a", "failed", "https://169.254.169.254/latest"), "is not public"),
     (Endpoint("a", "failed", "http://hook.example.org/"), "without TLS"),
     (Endpoint("a", "failed", ""), "no http or https URL"),
     (Endpoint("a", "failed", "https://hook.example.org/", "hunter2"), "24 to 64 bytes")],
)  # fmt: skip
def test_what_is_refused(session, record, wanted, said):
    session.site.webhook_hosts.clear()
    with pytest.raises(Misused, match=said):
        webhooks.register(session, record, wanted)
    with pytest.raises(RecordError, match="t-1 is FAILED"):
        webhooks.register(session, replace(record, state=State.FAILED),
                          Endpoint("a", "failed", "https://hook.example.org/"))  # fmt: skip
    assert webhooks.endpoints(session, record) == []


def test_of_programs_that_register_at_once_none_loses_its_endpoint(session, record):
    def register(number: int) -> None:
        url = f"https://hook.example.org/{'x' * 500}"
        webhooks.register(session, record, Endpoint(str(number), "failed", url))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(register, range(16)))
    known = webhooks.endpoints(session, record)
    assert {each.id for each in known} == set(map(str, range(16)))
    with pytest.raises(Misused, match="has 16 endpoints"):
        register(16)
    register(15)


@pytest.mark.parametrize("from_node", [True, False])
def test_an_endpoint_is_told_of_its_event_once_by_whoever_comes_first(session, record, from_node):
    said: list[str] = []
    job_dir = Path(record.job_dir)
    plan = contract.from_json(contract.Plan, (job_dir / contract.PLAN).read_text())
    ended = replace(record, state=State.FAILED, notice_tries=TRIES)
    with webhook() as hook, webhook() as other:
        for event, url in (("failed", hook.url), ("finished", other.url)):
            webhooks.register(session, record, Endpoint("a", event, url, SECRET))
        if from_node:
            tell_end(job_dir, plan, 1, said.append)
            assert len(hook.got) == 1, said
        (told,) = tell(session, [ended])
        tell_end(job_dir, plan, 1, said.append)
    assert (len(hook.got), other.request_count, told.notice_tries, said) == (1, 0, 0, [])
    ((headers, _),) = hook.sent
    assert headers["webhook-id"] == "t-1-1-failed" and "webhook-signature" in headers
    assert (job_dir / contract.notice_file(1, "failed", "webhook-a")).exists()


def test_what_a_receiver_lost_comes_again_under_the_same_id(session, record, monkeypatch):
    monkeypatch.setattr("learner.supervisor.notices.PAUSES_S", ())
    job_dir = Path(record.job_dir)
    plan = contract.from_json(contract.Plan, (job_dir / contract.PLAN).read_text())
    with webhook() as hook:
        webhooks.register(session, record, Endpoint("a", "failed", hook.url))
        hook.answers = [500]
        said: list[str] = []
        tell_end(job_dir, plan, 1, said.append)
        assert "answered with 500" in said[0]
        tell(session, [replace(record, state=State.FAILED, notice_tries=TRIES)])
    assert [headers["webhook-id"] for headers, _ in hook.sent] == ["t-1-1-failed"] * 2
    assert hook.sent[0][1] == hook.sent[1][1] and len(hook.got) == 1
