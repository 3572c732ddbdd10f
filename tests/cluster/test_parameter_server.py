"""Learners on a parameter server, and what may happen to them: real learners, servers, nodes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from served import (
    PAUSES,
    SLOW_EPOCHS,
    SLOW_SAMPLES,
    assert_each_sample_was_done_once,
    chunks_of,
    homes_of,
    hurry,
    kill,
    last_words,
    learners_of,
    processes_of,
    servers_of,
    shared_memory,
    steps_of,
    wait_for_learners,
    write_slow,
)
from trainings import REPOSITORY, begin, change_site, command_lines, halt, wait_for_state
from waiting import wait_until

from dlctl import contract
from learner.supervisor.worker_group.worker import LEARNER_DEATHS

DIGITS, DIGITS_SAMPLES = REPOSITORY / "examples/digits", 1437
ITS_OWN_LOOP = """
from learner import parameter_server

parts = build({})
model = parts["model"]
with parameter_server.join(model, parts["train"], epochs=120, batch_size=4, lr=0.05) as server:
    for (x,), y in server.batches():
        torch.nn.functional.mse_loss(model(x), y).backward()
        server.step()
        model.zero_grad()
"""


def change_manifest(folder, **changes):
    """Write an example's manifest with other keys; JSON is YAML."""
    import yaml

    asked = yaml.safe_load((DIGITS / "manifest-ps.yml").read_text())
    for key, value in changes.items():
        asked[key] = asked.get(key, {}) | value if isinstance(value, dict) else value
    shutil.copytree(DIGITS, folder)
    (folder / "manifest.yml").write_text(json.dumps(asked))
    return folder


def append(folder, program):
    """Add to an example's train.py."""
    with (folder / "train.py").open("a") as file:
        file.write("\n" + program)


def accuracy_of(site, training_id):
    """Return the validation accuracy at the end."""
    lines = (site.job_dir(training_id) / contract.metrics_file(1, 0)).read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return [line["validation_accuracy"] for line in told if "validation_accuracy" in line][-1]


@pytest.mark.first("3-3")
@pytest.mark.costs(60)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("learners", "kills"), [(3, 3), pytest.param(4, 20, marks=pytest.mark.long)]
)
def test_kills_of_learners_and_of_both_servers(dlctl, cluster_site, learners, kills):
    """One training on two nodes: it finishes, as good as without, and no sample is lost.

    Any of them dies at any moment from the training's begin on: while it starts, joins,
    computes, or starts again. One kill only is left out, a learner's third in a row without a chunk
    done: it would be given up, as docs/parameter-server.md says.
    """
    seed = int(os.environ.get("DLCTL_TEST_SEED") or time.time_ns() % 10**6)
    print(f"DLCTL_TEST_SEED={seed}")
    folder = change_manifest(
        dlctl.cwd / "digits",
        learners=learners,
        training={"validate_every_epochs": 10},
        parameter_server={"push_every": 1},
    )
    append(folder, PAUSES)
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_until(lambda: learners_of(job_dir), 90, what="the first learner")
    secret = (job_dir / contract.server_secret(1)).read_bytes()
    assert not any(secret in line for line in command_lines())
    chance, killed, idle, servers = random.Random(seed), set(), [0] * learners, [1, 0]
    while len(killed) < kills:
        if servers and len(killed) == kills // 3 * (3 - len(servers)):
            assert kill(servers_of(job_dir)[servers.pop()])
        assert not (job_dir / contract.verdict_file(1)).exists(), last_words(job_dir)
        time.sleep(chance.uniform(0.0, 1.5))
        rank = chance.randrange(learners)
        pid = learners_of(job_dir).get(rank)
        if pid is None or pid in killed:
            continue
        chunks = chunks_of(job_dir, rank)
        deaths = 0 if chunks else idle[rank] + 1
        if deaths < LEARNER_DEATHS and kill(pid):
            idle[rank] = deaths
            killed.add(pid)
            print(f"killed learner {rank} after {chunks} chunks")
    hurry(job_dir)
    found = wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=240)
    assert found["reason"] == f"All {learners} learners ended with exit code 0."
    output = (job_dir / contract.job_output(1)).read_text()
    assert output.count("was killed by signal 9: restarting it") == kills
    assert output.count("the server on n") == 2
    assert not (job_dir / contract.server_secret(1)).exists()
    files = [path for path in job_dir.rglob("*") if path.is_file()]
    assert files and not any(secret in path.read_bytes() for path in files)
    assert accuracy_of(cluster_site, training_id) >= 0.97
    assert_each_sample_was_done_once(job_dir, DIGITS_SAMPLES, 20)
    assert shared_memory(training_id, cluster_site) == []


@pytest.mark.timeout(600)  # a node is given up after a minute or two, as Slurm says
def test_a_node_that_lost_its_power_and_one_that_lost_its_network(dlctl, cluster_site, cluster):
    """The first node's learner continues; the one that is cut off computes and has no part in it.

    With its network that node loses sight of the shared files: what it sees are those of before,
    until its network is back and its server has come with the pushes, and was refused. (With a
    solver whose replica moves by itself: with others it would wait after 16 pushes.)
    """
    server = {"solver": "elastic_averaging", "min_learners": 1}
    folder = write_slow(
        dlctl.cwd / "job", learners=3, cpus=2, time="10m", parameter_server=server
    )  # fmt: skip
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_for_learners(job_dir, 3)
    cut_off = learners_of(job_dir)[1]
    watchdog = learners_of(job_dir, "learner.agent")[1]
    os.kill(watchdog, signal.SIGSTOP)  # it would end the learner as soon as it may
    shared, before = str(job_dir / contract.server_dir(1)), f"/tmp/{training_id}"
    cluster.exec("cp", "-a", shared, before, node=2)
    cluster.exec("mount", "--bind", before, shared, node=2)
    cluster.exec("pkill", "-STOP", "-x", "slurmd", node=2)  # it would end all that is left there
    cluster.node_cut(2)
    cluster.node_kill(3)
    wait_until(lambda: homes_of(job_dir).lost_nodes == [1, 2], 90)
    assert set(homes_of(job_dir).shard_nodes) == {0}
    step = steps_of(job_dir)[0]
    wait_until(lambda: steps_of(job_dir)[0] > step + 20, 60)
    first = learners_of(job_dir)[0]
    assert kill(first)  # Slurm counts its cores as taken from now on
    wait_until(lambda: learners_of(job_dir).get(0, first) != first, 60)
    log = job_dir / contract.learner_log(1, 1)
    wait_until(lambda: "expelled" in log.read_text(), 120)
    assert 1 in servers_of(job_dir)
    cluster.node_heal(2)
    # It comes again and again: at least as many refusals as totals have ways, and one for clocks.
    refused = re.compile(r"refused \S+: node 1 was given up")
    home_log = job_dir / contract.server_log(1, 0)
    wait_until(lambda: len(refused.findall(home_log.read_text())) > 1, 60)
    cluster.exec("umount", shared, node=2)
    wait_until(lambda: 1 not in servers_of(job_dir), 60)  # it cleans up; KillWait is 2 s here
    cluster.exec("pkill", "-CONT", "-x", "slurmd", node=2)
    with contextlib.suppress(ProcessLookupError):  # slurmd may have ended it by now
        os.kill(watchdog, signal.SIGCONT)
    wait_until(lambda: watchdog not in learners_of(job_dir, "learner.agent").values(), 60)
    wait_until(lambda: cut_off not in learners_of(job_dir).values(), 60)
    hurry(job_dir)
    found = wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=240)
    assert found["reason"] == (
        "1 of 3 learners ended with exit code 0; learner 1 was lost with node n2; "
        "learner 2 was lost with node n3."
    )
    assert_each_sample_was_done_once(job_dir, SLOW_SAMPLES, SLOW_EPOCHS)
    learner = dlctl("show", training_id, "--json", ok=True).json["learners"][1]
    assert (learner["state"], learner["reason"]) == ("FAILED", "was lost with node n2")
    cluster.node_start(3)
    assert shared_memory(training_id, cluster_site) == []


@pytest.mark.long
def test_learners_keep_their_gpus_after_a_node_is_lost(dlctl, cluster_site, cluster):
    """They share a step's GPUs with others then, and see their own only. (torch here sees none.)"""
    folder = write_slow(dlctl.cwd / "job", learners=3, gpus=1)
    asked = json.loads((folder / "manifest.yml").read_text())
    asked["framework"] = {"name": "custom", "command": 'exec python train.py "$DLCTL_JOB_DIR"'}
    (folder / "manifest.yml").write_text(json.dumps(asked))
    append(folder, ITS_OWN_LOOP)
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_for_learners(job_dir, 3)
    first = learners_of(job_dir, "train.py")
    had = {rank: gpus_of(first[rank]) for rank in (0, 1)}
    assert set(had.values()) == {"0", "1"}
    status = json.loads((job_dir / contract.status_file(1, "learner", 2)).read_text())
    lost = status["host"]
    cluster.exec("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    wait_until(lambda: homes_of(job_dir).lost_nodes == [1], 90)
    for rank in (1, 0):
        assert kill(first[rank])
        wait_until(
            lambda rank=rank: learners_of(job_dir, "train.py").get(rank, 0) not in (0, first[rank]),
            60,
        )
    again = learners_of(job_dir, "train.py")
    assert {rank: gpus_of(again[rank]) for rank in (0, 1)} == had
    assert not set(again.values()) & set(first.values())
    hurry(job_dir)
    wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=240)
    remains = f"rm -rf /dev/shm/*{training_id}*"  # Slurm has killed what could have removed it
    cluster.exec("sh", "-c", remains, node=int(lost[1:]))
    assert shared_memory(training_id, cluster_site) == []


def gpus_of(pid):
    """Return which GPUs a process sees."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.partition("=")[::2] for word in words)["CUDA_VISIBLE_DEVICES"]


def test_kill_of_everything_and_what_the_next_attempt_removes(dlctl, local_site):
    folder = write_slow(dlctl.cwd / "job", learners=2, retries=0)
    training_id, job_dir = begin(dlctl, local_site, folder)
    wait_for_learners(job_dir, 2)
    wait_until(lambda: any((job_dir / contract.CHECKPOINTS).iterdir()), 90)
    modules = ("supervisor", "agent", "parameter_server.server", "train")
    pids = [pid for name in modules for pid, _ in processes_of(job_dir, f"learner.{name}")]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none sees another one's end
        for pid in pids:
            os.kill(pid, number)
    left = shared_memory(training_id, local_site)
    assert len(left) == 1
    wait_for_state(dlctl, training_id, "FAILED")
    hurry(job_dir)
    done = dlctl("resume", training_id, "--follow", ok=True)
    assert "continuing from the checkpoint" in done.stdout
    assert shared_memory(training_id, local_site) == []


@pytest.mark.long
def test_the_loss_of_the_batch_host_and_a_halt(dlctl, cluster_site, cluster, xdg):
    """The node that is left ends the job; a new attempt continues from the checkpoint."""
    changed = change_site(
        cluster_site, xdg.config, environment={"variables": {"DLCTL_SUPERVISOR_LOST_S": "8"}}
    )
    folder = write_slow(dlctl.cwd / "job", learners=2, cpus=2, time="10m", retries=0)
    training_id, job_dir = begin(dlctl, changed, folder)
    wait_for_learners(job_dir, 2)
    wait_until(lambda: any((job_dir / contract.CHECKPOINTS).iterdir()), 90)
    cluster.node_kill(1)
    wait_until(lambda: not learners_of(job_dir), 60)
    wait_until(lambda: not cluster.exec("squeue", "-h").strip(), 60)
    found = wait_for_state(dlctl, training_id, "FAILED")
    assert found["reason"].startswith("The first node of the job was lost")
    dlctl("resume", training_id, ok=True)
    wait_for_learners(job_dir, 2, attempt=2)
    assert "continuing from the checkpoint" in (job_dir / contract.learner_log(2, 0)).read_text()
    halt(dlctl, training_id)
    cluster.node_start(1)
    assert shared_memory(training_id, changed) == []
