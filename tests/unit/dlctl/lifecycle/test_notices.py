"""Notices that no node could send, sent by the dlctl that sees the end."""

import os
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
from login_side import make_record, make_site, plan_of
from people import webhook

from dlctl import contract
from dlctl.contract import Action, Next, Notify, State, Verdict
from dlctl.lifecycle.notices import TRIES, due, tell
from dlctl.lifecycle.session import Session
from dlctl.transport.local import LocalTransport


class CountedTransport(LocalTransport):
    calls = 0

    def run(self, *arguments, **named):
        self.calls += 1
        return super().run(*arguments, **named)


class Ended:
    """A training that FAILED, with a webhook."""

    def __init__(self, root, url, number=1, verdict=True, **notify):
        self.dir = root / f"jobs/t-{number}"
        self.record = make_record(
            root, training_id=f"t-{number}", state=State.FAILED, attempt=1, job_dir=str(self.dir),
            reason="a node was lost", notice_tries=TRIES,
        )  # fmt: skip
        (self.dir / contract.attempt_dir(1)).mkdir(parents=True)
        secret = root / "hook"
        secret.write_text(url)
        plan = replace(plan_of(), notify=Notify(webhook=f"file:{secret}", **notify))
        (self.dir / contract.PLAN).write_text(contract.to_json(plan))
        if verdict:
            self.verdict(action=Action(Next.STOP, "all 3 retries have been used"))

    def verdict(self, **fields):
        told = Verdict(1, "7", State.FAILED, "Learner 0 failed.", **fields)
        (self.dir / contract.verdict_file(1)).write_text(contract.to_json(told))

    def claim(self, text="", age_s=0.0, name="1-failed.webhook"):
        """Leave the file of a notice that somebody else was at."""
        (self.dir / contract.NOTICES).mkdir()
        file = self.dir / contract.NOTICES / name
        file.write_text(text)
        os.utime(file, (time.time() - age_s,) * 2)
        return file

    @property
    def files(self):
        folder = self.dir / contract.NOTICES
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def session(tmp_path):
    site = make_site(tmp_path, more="webhook_hosts: [127.0.0.1]")
    return Session(site, CountedTransport(), None)


def test_what_can_not_be_sent_from_here_either_is_given_back(tmp_path, session, shift):
    ended = Ended(tmp_path, "http://127.0.0.1:1/")
    told = tell(session, [ended.record])
    assert ended.files == ["1-failed.webhook.unsent"]
    for left in range(TRIES - 1, 0, -1):
        rests_s = 60 * 2 ** (TRIES - 1 - left)
        assert [each.notice_tries for each in told] == [left]
        assert rests_s / 2 - 5 <= shift(ended, 0) <= rests_s + 1, "shortened by half at most"
        told = tell(session, told)
        assert [each.notice_tries for each in told] == [left], "it still rests"
        shift(ended, -rests_s - 1)
        told = tell(session, told)
        assert [each.notice_tries for each in told] == [left - 1]
    assert tell(session, told) == [] and ended.files == ["1-failed.webhook.unsent"]


@pytest.fixture
def shift():
    def shift(ended, by_s):
        """Move when a notice may be tried again; return in how many seconds that was."""
        file = ended.dir / contract.NOTICES / "1-failed.webhook.unsent"
        at = int(file.read_text().removeprefix("not before "))
        file.write_text(f"not before {at + by_s}\n")
        return at - time.time()

    return shift


@pytest.mark.parametrize("after", ["7200", None])
def test_a_receiver_that_is_busy_says_when_to_come_again(tmp_path, session, shift, after):
    date = formatdate(time.time() + 7200, usegmt=True)
    with webhook() as hook:
        ended = Ended(tmp_path, hook.url)
        hook.answers, hook.headers["Retry-After"] = [429], after or date
        told = tell(session, [ended.record])
        assert 7100 < shift(ended, 0) <= 7201
        told = tell(session, told)
        assert hook.request_count == 1
        shift(ended, -7300)
        told = tell(session, told)
    assert len(hook.got) == 1 and [each.notice_tries for each in told] == [0]
    assert {headers["webhook-id"] for headers, _ in hook.sent} == {"t-1-1-failed"}


def test_a_receiver_that_is_gone_is_asked_no_more(tmp_path, session):
    with webhook() as hook:
        ended = Ended(tmp_path, hook.url)
        hook.answers = [410]
        told = tell(session, [ended.record])
        assert [each.notice_tries for each in told] == [0] and ended.files == ["1-failed.webhook"]
        told = tell(session, [ended.record])  # another laptop
        assert [each.notice_tries for each in told] == [0]
        runs = replace(ended.record, state=State.TRAINING)
        ended.dir.joinpath(contract.PLAN).write_text(
            contract.to_json(
                replace(
                    plan_of(), notify=Notify(webhook=f"file:{tmp_path / 'hook'}", on=["started"])
                )
            )
        )
        assert [each.notice_tries for each in tell(session, [runs])] == [0]
    assert hook.request_count == 1


def test_a_look_that_took_long_leaves_the_rest_to_the_next(tmp_path, session, monkeypatch):
    with webhook() as hook:
        records = [Ended(tmp_path, hook.url, number).record for number in (1, 2)]
        monkeypatch.setattr("dlctl.lifecycle.notices._LONGEST_S", -1)
        assert tell(session, records) == [] and hook.request_count == 0
        monkeypatch.undo()
        assert [each.notice_tries for each in tell(session, records)] == [0, 0]
    assert len(hook.got) == 2


def test_a_notice_that_a_node_was_at_and_could_not_send_is_sent_by_a_later_look(tmp_path, session):
    with webhook() as hook:
        ended = Ended(tmp_path, hook.url)
        file = ended.claim("claimed by the job at 1\n")
        told = tell(session, [ended.record])
        assert (hook.got, [each.notice_tries for each in told]) == ([], [TRIES])
        file.rename(f"{file}.unsent")
        told = tell(session, told)
    assert len(hook.got) == 1 and [each.notice_tries for each in told] == [0]


def test_nothing_is_told_while_another_attempt_follows_or_of_what_nobody_wants(tmp_path, session):
    with webhook() as hook:
        retried, begun = Ended(tmp_path, hook.url), Ended(tmp_path, hook.url, 2)
        retried.verdict(action=Action(Next.RETRY, "retry 1 of 3", 2))
        (begun.dir / contract.attempt_dir(2)).mkdir()
        (begun.dir / contract.submit_begin(2)).touch()
        others = Ended(tmp_path, hook.url, 3, on=["finished"])
        runs = Ended(tmp_path, hook.url, 4)
        pending = due(runs.record, replace(runs.record, state=State.PENDING))
        told = tell(session, [retried.record, begun.record, others.record, pending])
    assert [each.notice_tries for each in told] == [0, 0, 0]
    assert hook.got == [] and not (retried.files or begun.files or others.files or runs.files)


def test_hundreds_of_ended_trainings_cost_one_question(tmp_path, session):
    records = []
    for number in range(100):
        ended = Ended(tmp_path, "", number)
        (ended.dir / contract.PLAN).write_text(contract.to_json(plan_of()))
        records.append(ended.record)
    tell(session, records)
    assert session.transport.calls == 1


@pytest.mark.parametrize(("verdict", "reason"), [
    (True, "Learner 0 failed."), (False, "a node was lost"),  # in the scheduler's words
])  # fmt: skip
def test_an_end_that_nobody_told_is_told_once(tmp_path, session, verdict, reason):
    with webhook() as hook:
        ended = Ended(tmp_path, hook.url, verdict=verdict)
        for _ in range(2):
            tell(session, [ended.record])
    assert [(each["event"], each["reason"]) for each in hook.got] == [("failed", reason)]
    if verdict:
        assert hook.got[0]["action"] == "all 3 retries have been used"
    assert ended.files == ["1-failed.webhook"]


CLAIMED = "claimed by the job at 1\n"


@pytest.mark.parametrize(("name", "text", "age_s", "is_sent"), [
    ("1-failed.webhook.unsent", "", 0, True), ("1-failed.webhook", "", 0, False),
    ("1-failed.webhook", CLAIMED, 400, True),  # its sender died
    ("1-failed.webhook", CLAIMED, 60, False),
    ("1-failed.webhook", "sent by the job at 1\n", 400, False),
])  # fmt: skip
def test_what_a_node_could_not_send_is_sent_from_here_and_what_it_claimed_is_not(
    tmp_path, session, name, text, age_s, is_sent
):
    with webhook() as hook:
        ended = Ended(tmp_path, hook.url)
        ended.claim(text, age_s, name)
        for _ in range(2):
            tell(session, [ended.record])
    assert len(hook.got) == is_sent and ended.files == ["1-failed.webhook"]
    if is_sent:
        assert (ended.dir / "notices/1-failed.webhook").read_text() == "sent by dlctl\n"
