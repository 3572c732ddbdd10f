"""Many trainings by one command: each once, also if the command is killed and given again."""

from __future__ import annotations

import json
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from trainings import ON_THE_CLUSTER, change_site, submit, wait_for_state, write_training
from waiting import wait_until

from dlctl import contract
from learner.local_queue.records import Queue

COUNT = 6


@pytest.fixture
def folder(dlctl):
    """A training that writes a line for each time that it runs."""
    program = 'echo ran >>"$JOB_STATE_DIR/runs"; echo "$LR $TRAINING_SEED" >"$RESULT_DIR/lr"'
    return write_training(dlctl.cwd, {"command": program}, name="one", env={"LR": "0"})


def submitted_once(site, records):
    """Check that each training has one receipt, and that the scheduler had one job for each."""
    for record in records:
        folder = site.job_dir(record["training_id"])
        assert (folder / contract.submit_answer(1)).read_text().startswith("0\n")
        assert not (folder / contract.attempt_dir(2)).exists()
    jobs = [record["job_id"] for record in records]
    assert len(set(jobs)) == len(jobs), "no two trainings share a job"


def ran_once(dlctl, site, records):
    for record in records:
        wait_for_state(dlctl, record["training_id"], "COMPLETED")
        runs = site.job_dir(record["training_id"]) / "state/runs"
        assert runs.read_text() == "ran\n"


@ON_THE_CLUSTER
def test_a_sweep_is_submitted_seen_and_fetched_by_one_command_each(dlctl, site, folder, tmp_path):
    grid = tmp_path / "grid.yml"
    grid.write_text("env.LR: ['0.1', '0.2']\n")
    sent = dlctl("submit", "manifest.yml", "--site", site.name, "--sweep", grid, "--repeat", "2",
                 "--tag", "grid", "--json", cwd=folder, ok=True)  # fmt: skip
    assert "4 of 4 trainings submitted" in sent.stderr
    records = sent.json
    assert [each["varied"] for each in records] == [
        f"LR={lr} seed={seed}" for lr in ("0.1", "0.2") for seed in (1, 2)
    ]
    submitted_once(site, records)
    ran_once(dlctl, site, records)
    listed = dlctl("list", "--tag", "grid", "--json", ok=True).json
    ids = {each["training_id"] for each in records}
    assert {each["training_id"] for each in listed} == ids
    (batch,) = {tag for each in listed for tag in each["tags"]} - {"grid"}
    dlctl("fetch", "results", "--tag", batch, "--to", tmp_path / "got", ok=True)
    got = [path.read_text() for path in (tmp_path / "got").rglob("lr")]
    assert sorted(got) == ["0.1 1\n", "0.1 2\n", "0.2 1\n", "0.2 2\n"]
    again = dlctl("submit", "manifest.yml", "--site", site.name, "--sweep", grid, "--repeat", "2",
                  "--tag", "grid", "--json", cwd=folder, ok=True).json  # fmt: skip
    assert not ids & {each["training_id"] for each in again}, "what has ended well is not taken up"


@pytest.mark.first("cluster")
@pytest.mark.costs(15)
@ON_THE_CLUSTER
def test_what_was_killed_is_taken_up_by_the_same_command(dlctl, site, folder):
    arguments = ["submit", "manifest.yml", "--site", site.name, "--repeat", str(COUNT), "--json"]
    jobs = site.root / "jobs"
    with dlctl.start(*arguments, cwd=folder) as killed:
        wait_until(lambda: list(jobs.glob("*/plan.json")), 60, interval_s=0.002, what="a plan")
        killed.send_signal(signal.SIGKILL)
    done = dlctl(*arguments, cwd=folder, ok=True)
    assert len(done.json) == COUNT
    known = dlctl("list", "--json", ok=True).json
    assert len(known) == COUNT, "nothing is doubled, nothing forgotten"
    submitted_once(site, done.json)
    ran_once(dlctl, site, done.json)
    assert {path.name for path in jobs.iterdir()} == {each["training_id"] for each in known}


@pytest.mark.cluster
def test_a_limit_of_the_site_leaves_the_rest_for_the_same_command(
    dlctl, cluster, cluster_site, folder
):
    def limit(jobs: int) -> None:
        cluster.exec("sacctmgr", "-i", "modify", "user", cluster.user_name, "set",
                     f"MaxSubmitJobs={jobs}")  # fmt: skip

    arguments = ["submit", "manifest.yml", "--site", cluster_site.name, "--repeat", "4", "--json",
                 "--set", "scheduler.extra=[--hold]"]  # fmt: skip
    limit(2)
    try:
        first = dlctl(*arguments, cwd=folder, ok=True)
        assert "2 of 4 trainings submitted" in first.stderr
        assert "2 wait: the site takes no more jobs of yours now" in first.stderr
        waiting = [each for each in first.json if not each["job_id"]]
        assert [each["state"] for each in waiting] == ["QUEUED", "QUEUED"]
    finally:
        limit(-1)
    word = first.json[0]["tags"][-1]
    dlctl("tag", *(each["training_id"] for each in first.json), "--remove", word, ok=True)
    second = dlctl(*arguments, cwd=folder, ok=True)
    assert "takes up the submission of 4 trainings" in second.stderr
    assert "4 of 4 trainings submitted, 2 of them before" in second.stderr
    before = {each["training_id"]: each["job_id"] for each in first.json if each["job_id"]}
    after = {each["training_id"]: each["job_id"] for each in second.json}
    assert before.items() <= after.items()
    submitted_once(cluster_site, second.json)
    dlctl("cancel", *after, ok=True)


def test_the_same_command_at_the_same_time_means_other_trainings(dlctl, local_site, folder):
    def submit(_: int) -> str:
        return dlctl("submit", "manifest.yml", cwd=folder, ok=True).stdout

    with ThreadPoolExecutor(4) as people:
        ids = list(people.map(submit, range(4)))
    assert len(set(ids)) == 4
    assert len(dlctl("list", "--offline", "--json", ok=True).json) == 4


def jobs_of(site):
    """Return the token and id of each job that the scheduler has had of the site's folder."""
    if site.is_cluster:
        rows = site.cluster.exec("squeue", "-h", "-t", "all", "-o", "%j %A %Z").splitlines()
        return [tuple(row.split()[:2]) for row in rows if f"{site.root}/" in row]
    queue = Queue(str(site.root))
    jobs = [*queue.records("active"), *queue.records("ended")]
    return [(each.token, str(each.id)) for each in jobs]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_clients_of_one_record_submit_at_once(dlctl, site, folder, xdg):
    """At a load of 35, "database is locked" or "disk I/O error" met 1 of 200 submissions."""
    clients, count, options = 20, 60, ["--set", "scheduler.extra=[--hold]"]
    crowded, blocker = site, list[str]()
    if not site.is_cluster:
        clients, count, options = 45, 200, []
        crowded = change_site(site, xdg.config, scheduler={"cpus": 1})
        # Only clients work: one job keeps the only CPU.
        first = write_training(dlctl.cwd / "first", {"command": "exec sleep 1400"}, time="25m")
        blocker = [submit(dlctl, crowded, first)]

    def send(_: int) -> Any:
        return dlctl("submit", "manifest.yml", "--site", crowded.name, *options, "--json",
                     cwd=folder, timeout_s=1200)  # fmt: skip

    try:
        with ThreadPoolExecutor(clients) as room:
            sent = list(room.map(send, range(count)))
        jobs = jobs_of(site)
    finally:
        dlctl("cancel", *(each.training_id for each in dlctl.records()), ok=True)
    assert [each for each in sent if each.exit_code] == []
    asked = {contract.token(each.json["training_id"], 1): each.json["job_id"] for each in sent}
    known = {contract.token(each.training_id, 1): each.job_id for each in dlctl.records()}
    assert len(asked) == len(set(asked.values())) == count
    assert len(known) == count + len(blocker) and asked.items() <= known.items()
    assert sorted(jobs) == sorted(known.items()), "one job for each, and none besides"


@pytest.mark.cluster
def test_a_small_colloquium_of_nine_people_and_twenty_trainings(
    dlctl, cluster_site, folder, tmp_path
):
    """All submit at once, each from a laptop of their own."""
    people, trainings = 9, 20

    def submit(person: int) -> list[dict[str, str]]:
        laptop = {f"XDG_{kind}_HOME": str(tmp_path / f"laptop-{person}" / kind.lower())
                  for kind in ("STATE", "CACHE")}  # fmt: skip
        mine = len(range(person, trainings, people))
        sent = dlctl("submit", "manifest.yml", "--site", cluster_site.name, "--repeat", str(mine),
                     "--seed-from", str(person), "--json", cwd=folder, env=laptop,
                     timeout_s=400)  # fmt: skip
        assert sent.exit_code == 0, sent
        return sent.json if mine > 1 else [sent.json]

    with ThreadPoolExecutor(people) as room:
        records = [record for sent in room.map(submit, range(people)) for record in sent]
    assert len({record["training_id"] for record in records}) == trainings
    submitted_once(cluster_site, records)
    verdicts = [cluster_site.job_dir(record["training_id"]) / contract.verdict_file(1)
                for record in records]  # fmt: skip
    wait_until(lambda: all(path.exists() for path in verdicts), 600, interval_s=1.0)
    states = Counter(json.loads(path.read_text())["state"] for path in verdicts)
    assert states == {"COMPLETED": trainings}
    runs = [cluster_site.job_dir(record["training_id"]) / "state/runs" for record in records]
    assert {path.read_text() for path in runs} == {"ran\n"}
    jobs = Counter(cluster_site.cluster.exec("squeue", "-h", "-t", "all", "-o", "%j").split())
    counts = {jobs[contract.token(record["training_id"], 1)] for record in records}
    assert max(counts) == 1, "no training has two jobs"
