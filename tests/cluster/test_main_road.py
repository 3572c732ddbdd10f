"""The main road, on this machine and over SSH on a real Slurm: the same scenarios on both."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from trainings import (
    ON_THE_CLUSTER,
    change_site,
    complete,
    halt,
    run,
    state_of,
    submit,
    wait_for_state,
    write_training,
)
from waiting import wait_until

from dlctl import contract

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

SLOW_MANIFEST = """\
name: slow
learners: {learners}
memory: 768MiB
time: 5m
framework: {{name: pytorch, job: train.py}}
training: {{epochs: 4, batch_size: 32, seed: 3}}
checkpoint: {{every: 1 epoch, keep: 2}}
"""
# 4 epochs of 16 batches, 0.25 s of work each: long enough, until it is told to hurry.
SLOW_TRAIN = """\
import os, time
from pathlib import Path
import torch

class Points(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(512, 8, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        if index % 32 == 0 and not Path(os.environ["JOB_STATE_DIR"], "hurry").exists():
            time.sleep(PAUSE_S)
        return self.inputs[index], self.targets[index]

def build(arguments):
    global PAUSE_S
    PAUSE_S = arguments.get("pause_s", 0.25)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 2))
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "loss": torch.nn.functional.cross_entropy,
        "train": Points(),
    }
"""

WORDS = """\
for n in 1 2 3 4; do
  for _ in 1 2 3 4 5 6 7 8; do [ -e "$JOB_STATE_DIR/hurry" ] || sleep "${PAUSE_S:-0.25}"; done
  echo "epoch $n/4"
done
"""


@pytest.fixture
def slow(dlctl):
    """A folder with a training that takes some seconds."""
    (dlctl.cwd / "train.py").write_text(SLOW_TRAIN)
    (dlctl.cwd / "manifest.yml").write_text(SLOW_MANIFEST.format(learners=2))
    return dlctl.cwd


@pytest.fixture
def words(dlctl):
    """A folder with a program that says four words in eight seconds, or until it is to hurry.

    For what happens to any training, whatever it computes: torch takes longer to start than this.
    """
    write_training(dlctl.cwd, {"command": WORDS}, learners=2)
    return dlctl.cwd


def fetch(dlctl, training_id):
    answer = dlctl("fetch", "results", training_id, "--json", ok=True).json
    return Path(answer["folder"]), answer


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


@pytest.mark.first("cluster-8")
@pytest.mark.costs(30)
@pytest.mark.parametrize("epochs", [8, pytest.param(20, marks=pytest.mark.long)])
@ON_THE_CLUSTER
def test_digits_reaches_its_accuracy_followed_live_and_fetched(dlctl, site, tmp_path, epochs):
    folder = tmp_path / "digits"
    shutil.copytree(EXAMPLES / "digits", folder)
    learners = 2
    wide = ("--memory", "3000MiB") if site.is_cluster else ()  # a node each
    options = ("--learners", str(learners), "--set", f"training.epochs={epochs}", *wide)
    training_id = submit(dlctl, site, folder, *options)
    states_seen, lines = set(), []
    with dlctl.start("logs", "--follow", training_id, cwd=folder) as follower:
        for line in follower.stdout:
            if "epoch 1/" in line or "epoch 4/" in line:
                states_seen.add(state_of(dlctl, training_id)["state"])
            lines.append(line)
        assert follower.wait() == 0, follower.stderr.read()
    assert "TRAINING" in states_seen, "the log was not live"
    text = "".join(lines)
    assert text.count(f"epoch {epochs}/{epochs}") == 1, "each line once"
    results, answer = fetch(dlctl, training_id)
    assert answer["complete"]
    metrics = json.loads((results / "metrics.json").read_text())
    assert metrics["final"]["validation_accuracy"] >= 0.97, metrics["final"]
    assert sum(value.numel() for value in weights(results).values()) > 1000
    curve = [json.loads(line) for line in (results / "metrics.jsonl").read_text().splitlines()]
    steps = [point["step"] for point in curve]
    assert steps == sorted(steps)
    log = (results / "logs" / "attempt-1-learner-0.log").read_text()
    assert log.count(f"epoch {epochs}/{epochs}") == 1
    shown = dlctl("show", training_id, "--json", ok=True).json
    hosts = {learner["host"] for learner in shown["learners"]}
    assert len(hosts) == (2 if site.is_cluster else 1)
    assert len(shown["learners"]) == learners


def test_plain_torch_ddp_runs_unmodified(dlctl, cluster_site, tmp_path):
    folder = tmp_path / "torch-ddp"
    shutil.copytree(EXAMPLES / "torch-ddp", folder)
    done = dlctl(
        "submit", "manifest.yml", "--site", cluster_site.name, "--follow", cwd=folder, ok=True
    )
    assert "trained by 2 processes" in done.stdout
    results, _ = fetch_in(dlctl, folder)
    assert list(results.glob("*.pt"))


def fetch_in(dlctl, folder):
    answer = dlctl("fetch", "results", "--json", cwd=folder, ok=True).json
    return Path(answer["folder"]), answer


@pytest.mark.first("cluster")
@pytest.mark.costs(40)
@ON_THE_CLUSTER
def test_halted_and_resumed_is_bit_equal_to_uninterrupted(dlctl, site, slow):
    """How long a batch takes changes no bit: the one that is not interrupted need not be slow."""
    few = () if site.is_cluster else ("--learners", "1")  # two here: tests/mpi/test_builtin_loop.py
    halted = submit(dlctl, site, slow, *few, "--set", "framework.arguments.pause_s=0.15")
    log = site.job_dir(halted) / contract.learner_log(1, 0)
    wait_until(lambda: log.exists() and "epoch 2/4" in log.read_text(), 90)
    assert dlctl("halt", halted).exit_code == 0
    now = wait_for_state(dlctl, halted, "HALTED")
    assert now["hint"], "says what to do next"
    assert dlctl("halt", halted).exit_code == 11
    (site.job_dir(halted) / "state/hurry").touch()
    resumed = dlctl("resume", halted, "--follow", ok=True)
    assert "epoch 4/4" in resumed.stdout
    assert "epoch 1/4" not in resumed.stdout, "went on, did not begin again"
    whole = complete(dlctl, site, slow, *few, "--set", "framework.arguments.pause_s=0")
    ours, theirs = weights(fetch(dlctl, halted)[0]), weights(fetch(dlctl, whole)[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    curve = (fetch(dlctl, halted)[0] / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in curve]
    assert steps == sorted(steps) and steps[-1] == 64


@pytest.mark.costs(40)
@ON_THE_CLUSTER
def test_more_epochs_later_are_bit_equal_to_as_many_at_once(dlctl, site, slow):
    """A training that has completed goes on, if it is asked for more epochs."""
    quick = ("--learners", "1", "--set", "framework.arguments.pause_s=0")
    first = complete(dlctl, site, slow, *quick, "--set", "training.epochs=1")
    assert dlctl("resume", first).exit_code == 11
    assert "no larger number than 1" in dlctl("resume", first, "--epochs", "1").stderr
    resumed = dlctl("resume", first, "--epochs", "+1", "--follow", ok=True)
    assert "epoch 2/2" in resumed.stdout and "epoch 1/2" not in resumed.stdout
    assert "epoch 2/2" in dlctl("show", first, ok=True).stdout
    whole = complete(dlctl, site, slow, *quick, "--set", "training.epochs=2")
    ours, theirs = weights(fetch(dlctl, first)[0]), weights(fetch(dlctl, whole)[0])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_dry_run_says_which_partition_starts_first(dlctl, cluster_site, words):
    found = dlctl("submit", "--dry-run", "--site", cluster_site.name, "--json", ok=True).json
    starts = {each["partition"]: each["planned_in_s"] for each in found["starts"]}
    assert len(starts) > 1 and min(each for each in starts.values() if each is not None) < 600
    assert not list((cluster_site.root / "jobs").glob("*"))


def test_placement_does_not_change_a_bit(dlctl, cluster_site, slow):
    """2 + 1 and 1 + 1 + 1 learners on nodes: sums are taken in rank order."""
    learners = 3
    short = ("--set", "training.epochs=1", "--set", "framework.arguments.pause_s=0")
    wide = ("--memory", "3000MiB")  # not --cpus 2: two threads may give other bits
    trainings, hosts = [], []
    for options in ((), wide):  # one after the other: ranks that wait spin
        asked = ("--learners", str(learners), *options, *short)
        training_id = complete(dlctl, cluster_site, slow, *asked)
        trainings.append(training_id)
        shown = dlctl("show", training_id, "--json", ok=True).json
        hosts.append(len({learner["host"] for learner in shown["learners"]}))
    assert hosts == [2, learners]
    a, b = (weights(fetch(dlctl, training_id)[0]) for training_id in trainings)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_learners_run_on_the_nodes_asked_for_and_lines_are_merged(dlctl, cluster_site, tmp_path):
    command = """\
echo "$RANK on $SLURMD_NODENAME" >"$RESULT_DIR/$RANK"
[ $RANK = 0 ] || sleep 1.3; echo one; sleep 2.6; echo two"""
    folder = write_training(tmp_path / "t", {"command": command}, learners=2)
    done, training_id = run(dlctl, cluster_site, folder, "--nodes", "2", ok=True)
    results = cluster_site.job_dir(training_id) / "results"
    assert len({(results / str(rank)).read_text()[5:] for rank in range(2)}) == 2
    shown = dlctl("show", training_id, "--all", ok=True).stdout
    assert "2 learners on 2 nodes" in shown
    lines = dlctl("logs", training_id, ok=True).stdout.splitlines()
    said = [line for line in lines if not line.startswith("job | ")]
    assert said == [f"learner-{rank} | {word}" for word in ("one", "two") for rank in (0, 1)]
    assert lines.index(said[0]) > next(n for n, line in enumerate(lines) if " TRAINING: " in line)
    assert " COMPLETED: " in lines[-1]


@pytest.mark.first
@pytest.mark.costs(12)
def test_submit_returns_the_id_and_list_knows_it(dlctl, local_site, words):
    short = ("--learners", "1", "--set", "env.PAUSE_S=0.1")
    done = dlctl("submit", "manifest.yml", *short, ok=True)
    training_id = done.stdout.strip()
    assert f"dlctl logs --follow {training_id}" in done.stderr
    assert training_id in dlctl("list", ok=True).stdout
    prefix = training_id[: len(training_id) - 3]
    assert dlctl("status", prefix, "--json", ok=True).json["training_id"] == training_id
    assert dlctl("cancel", ok=True).stdout, "without an id: the folder's latest"
    wait_for_state(dlctl, training_id, "CANCELLED")
    assert dlctl("resume", training_id).exit_code == 0, "a cancelled training may continue"
    wait_for_state(dlctl, training_id, "COMPLETED")
    assert dlctl("resume", training_id).exit_code == 11
    assert dlctl("delete", "--yes", training_id, ok=True)
    assert not local_site.job_dir(training_id).exists()
    assert dlctl("status", training_id).exit_code == 8


@ON_THE_CLUSTER
def test_what_render_shows_is_what_was_sent(dlctl, site, words):
    training_id = submit(dlctl, site, words)
    sent = dlctl("show", training_id, "--script", ok=True).stdout
    shown = dlctl("render", "manifest.yml", "--site", site.name, "--script",
                  "--training-id", training_id, ok=True).stdout  # fmt: skip

    def without_time(text):
        return [line for line in text.splitlines() if not line.startswith("# Made by")]

    assert without_time(sent) == without_time(shown)
    dlctl("cancel", training_id, ok=True)


@ON_THE_CLUSTER
def test_a_second_job_waits_and_can_be_halted_before_it_starts(dlctl, site, words):
    (words / "manifest.yml").write_text(
        "name: long\nlearners: 1\ntime: 10m\nframework: {name: sh, command: sleep 500}\n"
    )
    if site.is_cluster:
        options = ["--learners", "4", "--cpus", "2"]
        first = submit(dlctl, site, words, *options)
    else:
        options = ["--learners", "16"]
        first = submit(dlctl, site, words)
    second = submit(dlctl, site, words, *options)
    assert wait_for_state(dlctl, second, "PENDING", "TRAINING")["state"] == "PENDING"
    halt(dlctl, second)
    dlctl("cancel", first, ok=True)
    wait_for_state(dlctl, first, "CANCELLED")


@pytest.mark.first("cluster-asking", "cluster-recorded", "local-asking")
@pytest.mark.parametrize("when", ["recorded", "asking"])
def test_killed_while_submitting_loses_nothing_and_runs_once(dlctl, site, words, when):
    """kill -9 of `dlctl submit`; then `resume` brings one run to its end."""
    marker = (
        "framework: {name: sh, command: 'echo $LEARNER_ID >> \"$JOB_STATE_DIR/runs\"; sleep 1'}"
    )
    (words / "manifest.yml").write_text(f"name: once\nlearners: 1\ntime: 2m\n{marker}\n")
    reached = {
        "recorded": dlctl.records,
        "asking": lambda: list(site.root.glob(f"jobs/*/{contract.submit_begin(1)}")),
    }[when]
    with dlctl.start("submit", "manifest.yml", "--site", site.name) as killed:
        wait_until(reached, interval_s=0.001, what=when)
        killed.send_signal(signal.SIGKILL)
    (record,) = dlctl.records()
    training_id = record.training_id

    def ended():
        now = dlctl("status", training_id, "--json", ok=True).json
        assert now["state"] != "FAILED", now
        if now["state"] == "QUEUED":
            dlctl("resume", training_id)
        return now["state"] == "COMPLETED"

    wait_until(ended, interval_s=0.3, what="the training to complete")
    assert (site.job_dir(training_id) / "state/runs").read_text() == "1\n", "ran once"


@pytest.mark.first
def test_a_hung_controller_never_makes_two_jobs(dlctl, cluster, cluster_site, words):
    """sbatch times out, the job runs all the same: found by its token, not sent again."""
    (words / "manifest.yml").write_text(
        "name: hung\nlearners: 1\ntime: 2m\n"
        "framework: {name: sh, command: 'echo ran >> \"$JOB_STATE_DIR/runs\"'}\n"
    )
    cluster.ctld_hang()
    done = dlctl("submit", "manifest.yml", "--site", cluster_site.name)
    assert done.exit_code == 7, done
    training_id = dlctl("list", "--json", ok=True).json[0]["training_id"]
    silent = dlctl("status", training_id, "--json").json
    assert silent["state"] == "QUEUED" and silent["stale_since"], "stale, not FAILED"
    cluster.ctld_resume()

    def ended():
        now = dlctl("status", training_id, "--json", ok=True).json
        if now["state"] == "QUEUED":
            dlctl("resume", training_id)
        return now["state"] == "COMPLETED"

    wait_until(ended, 90, interval_s=0.5, what="the training to complete")
    assert (cluster_site.job_dir(training_id) / "state/runs").read_text() == "ran\n"


@pytest.mark.first
def test_a_silent_site_makes_states_stale_not_failed(dlctl, cluster, cluster_site, words, xdg):
    site = change_site(cluster_site, xdg.config, transport={"connect_timeout_s": 5})
    training_id = submit(dlctl, site, words, "--learners", "1")
    wait_for_state(dlctl, training_id, "TRAINING")
    cluster.ctld_stop()
    assert state_of(dlctl, training_id)["state"] in ("TRAINING", "COMPLETED")
    cluster.ctld_start()
    (site.job_dir(training_id) / "state/hurry").touch()
    wait_for_state(dlctl, training_id, "COMPLETED")
    cluster.ssh_hang()
    silent = dlctl("status", training_id, "--json", timeout_s=60).json
    assert silent["state"] == "COMPLETED" and silent["stale_since"]
    assert dlctl("submit", "manifest.yml", "--site", site.name).exit_code == 6
    assert len(dlctl("list", "--json", ok=True).json) == 1, "nothing was sent, nothing is kept"
