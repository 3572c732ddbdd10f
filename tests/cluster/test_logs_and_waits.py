"""Logs and large files over a real link, and why jobs wait in a real queue."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from hints import commands_in
from trainings import complete, submit, wait_for_state, write_training
from waiting import wait_until

from dlctl import contract

PROGRAM = r"""
import os, pathlib, signal, sys, time
mine = pathlib.Path(os.environ["CHECKPOINT_DIR"], "count-" + os.environ["RANK"])
count = int(mine.read_text()) if mine.exists() else 0
def halt(*_):
    mine.write_text(str(count))
    sys.exit(0)
signal.signal(signal.SIGUSR2, halt)
print("\x1b]52;c;cm0gLXJmIH4=\x07\x1b]0;title\x07\x1b[2Jbegins", flush=True)
while count < 120:
    count += 1
    sys.stdout.write("".join(f"\r{p}% |" for p in (1, 50)) + f"\rline {count}\n")
    sys.stdout.flush()
    time.sleep(0.05)
"""


def lines_of(text: str) -> list[tuple[str, int]]:
    found = re.findall(r"^(learner-\d) \| line (\d+)$", text, re.MULTILINE)
    return [(who, int(count)) for who, count in found]


@pytest.mark.cluster
def test_a_log_is_followed_through_a_halt_and_a_cut_link(dlctl, cluster_site, tmp_path):
    files = {"count.py": PROGRAM}
    folder = write_training(tmp_path / "job", {"command": "python3 count.py"}, files, learners=2)
    training_id = submit(dlctl, cluster_site, folder)
    job_dir = Path(dlctl.record(training_id).job_dir)
    first = dlctl.start("logs", training_id, "--follow")
    log = job_dir / "attempts/1/learner-0.log"
    wait_until(lambda: log.exists() and "line 10\n" in log.read_text(), 60, what="ten lines")
    dlctl("halt", training_id, ok=True)
    halted = first.communicate(timeout=60)[0]
    assert dlctl.record(training_id).state is contract.State.HALTED
    assert lines_of(halted)[0][1] == 1
    assert "\x1b" not in halted
    assert "\\x1b]52;c;cm0gLXJmIH4=\\x07" in halted
    assert "% |" not in halted, "a bar is one line, in its last state"

    between = datetime.fromtimestamp(time.time() + 1).isoformat()
    wait_until(lambda: datetime.now().isoformat() > between, 60, what="a second to pass")
    dlctl("resume", training_id, ok=True)
    second = dlctl.start("logs", training_id, "--follow")
    log = job_dir / "attempts/2/learner-0.log"
    wait_until(lambda: log.exists() and log.read_text().count("line") > 10, 60, what="more lines")
    cluster_site.cluster.ssh_drop()
    text, said = second.communicate(timeout=90)
    assert second.returncode == 0, said
    for who in ("learner-0", "learner-1"):
        counts = [count for name, count in lines_of(text) if name == who]
        assert counts == [*range(1, 121)], who
    assert set(lines_of(halted)) <= set(lines_of(text))

    one = dlctl("logs", training_id, "--attempt", "1", ok=True).stdout
    assert sorted(lines_of(one)) == sorted(lines_of(halted))
    late = lines_of(dlctl("logs", training_id, "--since", between, ok=True).stdout)
    assert sorted(late + lines_of(one)) == sorted(lines_of(text))
    picked = dlctl("logs", training_id, "--rank", "1", "--grep", "^line 11[0-9]$", "--no-prefix",
                   ok=True).stdout  # fmt: skip
    assert picked.splitlines() == [f"line {n}" for n in range(110, 120)]
    refused = dlctl("logs", training_id, "--attempt", "7")
    assert (refused.exit_code, "has no attempt 7" in refused.stderr) == (8, True)


@pytest.mark.cluster
def test_a_thousand_learners_logs_need_few_files_here(dlctl, cluster_site, tmp_path):
    folder = write_training(tmp_path / "job", {"command": "true"})
    training_id = complete(dlctl, cluster_site, folder)
    attempt = Path(dlctl.record(training_id).job_dir, "attempts/1")
    for rank in range(1, 1001):
        log = attempt / f"learner-{rank}.log"
        log.write_text(f"hello from {rank}\n" * 3)
        log.with_suffix(".times").write_text(contract.note_line(1000.0 + rank, log.stat().st_size))
    few = f"ulimit -n 64; exec {sys.executable} -m dlctl logs {training_id}"
    done = subprocess.run(["sh", "-c", few], env=dlctl.env, cwd=tmp_path, capture_output=True,
                          text=True, timeout=100)  # fmt: skip
    assert done.stdout.count("hello from") == 3000, done.stderr
    some = dlctl("logs", training_id, "--grep", "from 99[0-9]", "--tail", "1", ok=True).stdout
    assert len(some.splitlines()) == 10


def change_partition(cluster, *changes: str) -> None:
    cluster.exec("scontrol", "update", "PartitionName=debug", *changes)


def wait_for_reason(dlctl, training_id: str, word: str) -> dict:
    """Return the state once Slurm gives this reason."""

    def told():
        known = json.loads(dlctl("status", training_id, "--json", ok=True).stdout)
        assert known["state"] == "PENDING", known
        return known if word in known["reason"] else None

    return dict(wait_until(told, 60, what=word))


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("changes", "word", "resume"),
    [
        (["State=DOWN"], "(PartitionDown)", "resume ID --partition NAME"),
        (["State=UP", "MaxNodes=1"], "(PartitionNodeLimit)", "resume ID --nodes N"),
    ],
)
def test_a_job_that_waits_in_vain_starts_by_the_commands_of_its_hint(
    dlctl, cluster_site, tmp_path, changes, word, resume
):
    folder = write_training(tmp_path / "job", {"command": "true"}, time="1m", learners=2, nodes=2)
    change_partition(cluster_site.cluster, "State=DOWN")
    try:
        training_id = submit(dlctl, cluster_site, folder)
        change_partition(cluster_site.cluster, *changes)
        hint = wait_for_reason(dlctl, training_id, word)["hint"]
        found = [command for command, _ in commands_in(hint)]
        assert [each.replace(training_id, "ID") for each in found] == ["cancel ID", resume]
        filled = {"NAME": "short", "N": "1"}
        if "NAME" in found[-1]:  # a partition of one node
            found[-1] += " --nodes 1"
        for command in found:
            dlctl(*(filled.get(each, each) for each in command.split()), ok=True)
        wait_for_state(dlctl, training_id, "COMPLETED")
    finally:
        change_partition(cluster_site.cluster, "State=UP", "MaxNodes=UNLIMITED")


@pytest.mark.cluster
def test_a_job_says_why_it_waits_and_what_to_do(dlctl, cluster_site, tmp_path):
    cluster = cluster_site.cluster
    folder = write_training(tmp_path / "job", {"command": "true"}, time="5m")

    def partition(*changes: str) -> None:
        change_partition(cluster, *changes)

    def waits(word: str) -> dict:
        return wait_for_reason(dlctl, training_id, word)

    partition("State=DOWN")
    try:
        training_id = submit(dlctl, cluster_site, folder)
        assert "its partition is closed at the moment" in waits("(PartitionDown)")["reason"]
        job_id = waits("")["job_id"]
        cluster.user("scontrol", "hold", job_id)
        known = waits("(JobHeldUser)")
        assert known["reason"].startswith("waiting in the queue: you, or a program of yours, holds")
        assert known["hint"] == f"run `scontrol release {job_id}` on the login node"
        assert "scontrol release" in dlctl("show", training_id, ok=True).stderr
        cluster.user("sh", "-c", re.search(r"`(.*)`", known["hint"])[1])
        partition("State=UP", "MaxTime=1")
        known = waits("(PartitionTimeLimit)")
        assert "more time than its partition allows" in known["reason"]
        hint = known["hint"]
        listed = dlctl("list", ok=True).stdout
        assert "it asks for more time than its partition allows (PartitionTimeLimit)" in listed
        for command, _ in commands_in(hint):
            dlctl(*command.replace("LESS", "1m").split(), ok=True)
        assert commands_in(hint)[-1] == (f"resume {training_id} --time LESS", False)
        wait_for_state(dlctl, training_id, "COMPLETED")
    finally:
        partition("State=UP", "MaxTime=UNLIMITED")


SIZE_BYTES = 200_000_000
LARGE = f"""\
head -c {SIZE_BYTES} /dev/urandom >$RESULT_DIR/model.bin; echo 1 >$RESULT_DIR/one
mkdir $CHECKPOINT_DIR/step-7; echo w >$CHECKPOINT_DIR/step-7/weights; echo saved"""


@pytest.mark.cluster
def test_a_killed_fetch_goes_on_in_mid_file(dlctl, cluster_site, tmp_path):
    folder = write_training(tmp_path / "job", {"command": LARGE})
    training_id = complete(dlctl, cluster_site, folder)
    to = tmp_path / "got"

    def arrived_bytes() -> int:
        return max((path.stat().st_size for path in to.glob(".dlctl-partial/*")), default=0)

    with dlctl.start("fetch", training_id, "--to", to) as first:
        wait_until(lambda: arrived_bytes() > SIZE_BYTES // 4, 60, what="a part of the file")
        first.send_signal(signal.SIGKILL)
    assert not (to / "model.bin").exists()
    kept = arrived_bytes()
    assert kept > SIZE_BYTES // 4
    inode = next(p for p in to.glob(".dlctl-partial/*") if p.suffix != ".note").stat().st_ino
    with (
        dlctl.start("fetch", "all", training_id, "--to", to) as second,
        dlctl.start("fetch", "all", training_id, "--to", to) as third,
    ):
        assert second.wait(120) == third.wait(120) == 0
    there = cluster_site.job_dir(training_id)
    assert (to / "model.bin").stat().st_ino == inode
    assert (to / "model.bin").read_bytes() == (there / "results/model.bin").read_bytes()
    assert (to / "checkpoints/step-7/weights").read_text() == "w\n"
    assert list(to.rglob("*.local*")) == []
    assert not (to / ".dlctl-partial").exists()
    again = dlctl("fetch", "all", training_id, "--to", to, "--json", ok=True).json
    assert {"model.bin", "one", "metrics.jsonl"} & set(again["files"]) >= {"model.bin", "one"}
    assert again["kept"] == again["left_out"] == []
