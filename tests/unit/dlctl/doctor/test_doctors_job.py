"""The doctor's job, each of whose faults breaks a link of its own; its archive for a bug report."""

import tarfile
from dataclasses import replace

import pytest
from login_side import make_record, make_site

from dlctl import contract
from dlctl.contract import State
from dlctl.doctor.bundle import redact_all, write_bundle
from dlctl.doctor.chain import Chain, Link
from dlctl.doctor.examine import Examined
from dlctl.doctor.job_checks import Job, check_chaining, judge_job
from dlctl.errors import ResultsError
from dlctl.sites.files import save_site

GPUS = "partitions: {debug: {nodes: 4, gpus_per_node: 2, default: true}}\n"


def log(node="n1", world=2, **changes):
    said = {"node": node, "shared": "yes", "home": "/home/me", "clock": "1005.0",
            "torch": "2.13.0", "gpus": "0", "submit": "0 ok",
            "world": f"{world} 0,1" if world else None,
            "control": "0", "namespaces": "0"} | changes  # fmt: skip
    return "".join(f"dlctl-{name} {text}\n" for name, text in said.items() if text is not None)


def report(rank, size=2, mpi_size=2):
    return contract.Preflight(rank, f"n{rank + 1}", "3.11.2", size, mpi_size, rank, clock_at=1005.0)


DENIED = (
    "sbatch: error: Batch job submission failed: Access/permission denied "
    "(submission from compute nodes is not allowed)"
)
JOB = Job(make_record(job_id="7", state=State.COMPLETED), 2, [log(), log("n2")],
          [report(0), report(1)], None, 1000.0, 1010.0)  # fmt: skip


def judged(job, more=""):
    chain = Chain("testbed")
    judge_job(chain, make_site(more=more), job)
    return {link.name: link for link in chain.links}


def broken(found):
    return [name for name, link in found.items() if link.state == "broken"]


def test_all_is_well():
    found = judged(JOB)
    assert {link.state for link in found.values()} == {"ok"}
    assert found["gpus of nodes"].evidence.startswith("there are none")
    assert found["clocks of nodes"].evidence == "n1, n2 agree with this machine"


@pytest.mark.parametrize(
    ("logs", "link", "words"),
    [
        ([log(world=1), log("n2", world=1)], "mpi", "2 worlds of 1 rank"),
        ([log(world=2), log("n2", world=1)], "mpi", "the learners see 2, 1"),
        ([log(world=None, nompi="no libmpi.so"), log("n2")], "mpi", "no libmpi.so"),
        ([log(world=None), log("n2", world=None)], "mpi", "no rank has come back"),
        ([log(), log("n2", shared=None)], "shared root", "n2 can't read"),
        ([log(), log("n2", torch=None, notorch="no torch")], "torch of nodes", "n2: no torch"),
        ([log(gpus="2 A100, which computes wrongly"), log("n2")], "gpus of nodes", "wrongly"),
    ],
)
def test_each_fault_breaks_its_own_link(logs, link, words):
    found = judged(replace(JOB, logs=logs))
    assert broken(found) == [link]
    assert words in found[link].evidence and found[link].fix


def test_what_limits_a_site_is_a_warning():
    logs = [log(clock="4605.0", submit="1 not allowed here", namespaces="1 unshare: no"),
            log("n2", home=None, nohome="/home/me")]  # fmt: skip
    found = judged(replace(JOB, logs=logs), GPUS)
    warned = {name for name, link in found.items() if link.state == "warn"}
    assert warned == {"home of nodes", "gpus of nodes", "clocks of nodes", "chaining",
                      "paths of the service"}  # fmt: skip
    assert "60 min ahead of" in found["clocks of nodes"].evidence
    assert "not allowed here" in found["chaining"].evidence
    link = found["paths of the service"]
    assert link.evidence == "n1 allows no user namespaces: unshare: no" and "$DATA_DIR" in link.fix
    found = judged(replace(JOB, logs=[log(gpus="1 NVIDIA H100"), log("n2")]), GPUS)
    assert found["gpus of nodes"].state == "ok"
    assert "n1: 1 NVIDIA H100" in found["gpus of nodes"].evidence


def test_a_launcher_that_starts_too_few():
    failed = replace(JOB.record, state=State.FAILED, reason="srun started 1")
    found = judged(replace(JOB, record=failed, logs=["", ""], preflights=[report(0, 1, 1)]))
    assert broken(found) == ["job", "launcher of nodes", "mpi"]
    assert found["shared root"].state == "ok" and found["torch of nodes"].state == "skipped"


def test_a_job_that_left_nothing_has_not_seen_the_root():
    failed = replace(JOB.record, state=State.FAILED, reason="no verdict")
    silent = replace(JOB, record=failed, logs=["", ""], preflights=[])
    assert broken(judged(silent)) == ["job", "shared root"]
    spoke = replace(silent, own_logs={"slurm.out": "no Python"})
    assert broken(judged(spoke)) == ["job"]
    mute = replace(silent, own_logs={"slurm.out": ""})  # its set-up ended without a word
    assert broken(judged(mute)) == ["job"]


@pytest.mark.parametrize(("hint", "fix"), [
    ("Load a module; then: dlctl resume {}", "Load a module; then: dlctl doctor testbed --deep"),
    ("With more memory: dlctl resume {} --memory 8GiB",
     "`dlctl doctor testbed --deep --bundle FILE` keeps its logs"),
    ("dlctl logs {}", "`dlctl doctor testbed --deep --bundle FILE` keeps its logs"),
])  # fmt: skip
def test_the_hint_of_a_job_that_is_removed_becomes_one_for_the_doctor(hint, fix):
    """It has no option --memory."""
    failed = replace(JOB.record, state=State.FAILED, reason="it failed")
    verdict = contract.Verdict(1, "7", State.FAILED, "it failed", hint.format(failed.training_id))
    assert judged(replace(JOB, record=failed, verdict=verdict))["job"].fix == fix


@pytest.mark.parametrize(
    ("told", "state", "evidence", "fix"),
    [
        ({"submit": "0 sbatch: Job 7 to start", "control": "0"}, "ok", "n3 can submit jobs", ""),
        ({"submit": f"1 {DENIED}", "control": "0"}, "warn",
         f"not possible from n3: job: {DENIED}",
         "set scheduler.next_attempt: [in_allocation, requeue, client]"),
        ({"submit": "127 sbatch: not found", "control": "127 not found"}, "warn",
         "not possible from n3: job: sbatch: not found; requeue: not found",
         "set scheduler.next_attempt: [in_allocation, client]"),
        ({}, "skipped", "not tried: the job's first learner did not come so far", ""),
    ],
)  # fmt: skip
def test_who_can_start_the_next_attempt_from_a_node(told, state, evidence, fix):
    chain = Chain()
    check_chaining(chain, make_site(), {"node": "n3", **told})
    link = chain.links[0]
    assert (link.name, link.state, link.evidence) == ("chaining", state, evidence)
    assert link.fix.startswith(fix)


# No credential is in the archive, whatever the site's file and the logs hold ----------------------

SITE = """\
transport: {kind: local}
root: /r
scheduler: {kind: local}
launcher: {kind: mpirun}
environment:
  python: /usr/bin/python3
  pip: [--index-url, 'https://pypi.example.org/simple']  # before: https://me:hunter2@example.org
  variables:
    WANDB_API_KEY: hunter2
    HARMLESS: hunter2 as well
  setup: ['export TOKEN=hunter2', 'true']
"""


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2@example.org/x", "password: hunter2", 'API_KEY="hunter2"',
        "export AWS_SECRET_ACCESS_KEY=hunter2", '{"token": "hunter2"}', "Bearer hunter2",
        "ghp_hunter2hunter2hunter2hunter2", "hf_hunter2hunter2hunter2",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2 cut short", "passphrase = hunter2",
    ],
)  # fmt: skip
def test_what_looks_like_a_credential_goes(text):
    found = redact_all({"a": f"before\n{text}\nafter\n"}, {})["a"]
    assert "hunter2" not in found and found.startswith("before\n")


def test_what_this_shell_calls_a_secret_goes_wherever_it_stands():
    shell = {"MY_TOKEN": "hunter2", "SSH_AUTH_SOCK": "/tmp/agent", "HOME": "/home/me", "A_KEY": "x"}
    text = "it said hunter2 at /home/me and /tmp/agent"
    assert redact_all({"a": text}, shell)["a"] == "it said (removed) at /home/me and /tmp/agent"


def test_the_archive_is_private_and_clean(tmp_path, monkeypatch):
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("MY_TOKEN", "opensesame")
    save_site("mine", SITE)
    said = "refused by https://a:hunter2@b/ and opensesame"
    found = Examined([Link("tcp", "broken", said, "fix it", "mine")])
    path = write_bundle(tmp_path / "b.tgz", found, "mine", None)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert set(texts) == {f"dlctl-doctor/{name}" for name in (
        "versions.json", "doctor.json", "trainings.json", "sites/mine.yml")}  # fmt: skip
    assert not [n for n, text in texts.items() if "hunter2" in text or "opensesame" in text]
    site = texts["dlctl-doctor/sites/mine.yml"]
    assert "WANDB_API_KEY: (removed)" in site and "python: /usr/bin/python3" in site
    with pytest.raises(ResultsError, match="can't be written"):
        write_bundle(path, found, "mine", None)
