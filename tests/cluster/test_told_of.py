"""Notices: from the node where it reaches the hook, else from the next dlctl that looks."""

from __future__ import annotations

import json
import os
import signal

import pytest
from people import mail_server, webhook
from trainings import ON_THE_CLUSTER, run, state_of, submit, wait_for_state, write_training

from dlctl import contract


@pytest.fixture
def env(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    return {"no_proxy": "*"}


@ON_THE_CLUSTER
def test_start_and_end_are_told_once_each(dlctl, site, wait_until, env):
    with webhook() as hook:
        notify = {"webhook": hook.url, "command": "cat >>../told", "on": ["started", "finished"]}
        folder = write_training(dlctl.cwd, {"command": "true"}, learners=2, notify=notify)
        done, training_id = run(dlctl, site, folder)
        assert done.exit_code == 0, done.stderr
        job_dir = site.job_dir(training_id)

        def told():
            state_of(dlctl, training_id)  # a look while the node still tries leaves it the notice
            return any(got["event"] == "finished" for got in hook.got)

        wait_until(told, 60)
        state_of(dlctl, training_id)
        events = [got["event"] for got in hook.got]
    # The cluster's nodes reach no network: what happens between two looks is not told from here.
    least = ["finished"] if site.is_cluster else ["finished", "started"]
    assert sorted(events) in (least, ["finished", "started"]), events
    told = (job_dir / "told").read_text()
    assert told.count('"event": "finished"') == 1 and told.count('"event": "started"') == 1
    for path in job_dir.rglob("*.json"):
        assert "secret-token" not in path.read_text(), path
    assert "secret-token" not in (job_dir / contract.MANIFEST).read_text()


def test_a_failure_that_is_retried_is_told_only_when_it_is_given_up(dlctl, local_site, env):
    with webhook() as hook:
        folder = write_training(
            dlctl.cwd, {"command": "kill -9 $$"}, retries=1, retry={"backoff": "1s"},
            notify={"webhook": hook.url},
        )  # fmt: skip
        _, training_id = run(dlctl, local_site, folder)
        got = list(hook.got)
    assert [each["event"] for each in got] == ["failed"]
    assert got[0]["attempt"] == 2 and got[0]["action"]
    notices = local_site.job_dir(training_id) / contract.NOTICES
    assert [path.name for path in notices.iterdir()] == ["2-failed.webhook"]


def test_a_dead_supervisor_is_told_of_by_the_next_dlctl(dlctl, local_site, wait_until, env):
    with mail_server() as (port, mails):
        smtp = {"server": f"127.0.0.1:{port}", "tls": "none", "sender": "dlctl@example.org"}
        folder = write_training(
            dlctl.cwd, {"command": "sleep 60"},
            notify={"email": "me@example.org", "smtp": smtp}, retries=0,
        )  # fmt: skip
        training_id = submit(dlctl, local_site, folder)
        wait_for_state(dlctl, wait_until, training_id, "TRAINING")
        job_dir = local_site.job_dir(training_id)
        status = job_dir / contract.status_file(1, "supervisor", 0)
        os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
        wait_for_state(dlctl, wait_until, training_id, "FAILED")
        state_of(dlctl, training_id)
    assert [mail["To"] for mail in mails] == ["me@example.org"]
    assert " ".join(mails[0]["Subject"].split()).startswith(f"{training_id} failed: ")


@pytest.mark.cluster
def test_slurm_sends_mails_where_there_is_no_mail_server(dlctl, cluster_site, wait_until):
    mails = cluster_site.cluster.logs / "mails"
    folder = write_training(
        dlctl.cwd, {"command": "true"}, notify={"email": "me@example.org", "on": ["finished"]}
    )
    done, training_id = run(dlctl, cluster_site, folder)
    assert done.exit_code == 0, done.stderr

    def mail():
        lines = mails.read_text().splitlines() if mails.exists() else []
        return next((line for line in lines if f"Name={training_id}.1 Ended" in line), "")

    assert wait_until(mail, 60, what="Slurm's mail").endswith("me@example.org")
