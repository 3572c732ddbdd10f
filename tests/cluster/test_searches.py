"""Searches on both schedulers: started, watched, halted, resumed, with workers that die."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hints import commands_in
from repository import REPOSITORY
from trainings import ON_THE_CLUSTER, halt, search_of_digits, wait_for_state
from waiting import wait_until

from dlctl.contract import search as names

SEARCH = """\
name: valley
space:
  x: {float: [0, 1]}
  n: {int: [1, 9]}
strategy: {name: genetic, seed: 1, population: 5%MORE%}
metric: {name: loss}
budget: {trials: %TRIALS%}
task: {python: "trials:Valley", time: 1m, memory: 512MiB}
workers: {jobs: %WORKERS%, slots: %SLOTS%, time: 10m%JOBS%}
"""
PROGRAM = """\
import os, pathlib, time
from search.tasks import BaseTask

class Valley(BaseTask):
    def __init__(self, x, n):
        self.x, self.n = x, n

    def run(self):
        with open(pathlib.Path(__file__).parents[1] / "ran", "a") as file:
            print(os.getpid(), self.x, file=file)
        time.sleep(%SECONDS%)
        return {"loss": (self.x - 0.3) ** 2 + abs(self.n - 4) / 10}
"""


def write(dlctl, trials, more="", workers=2, slots=2, seconds=0.2, jobs=""):
    """Write search.yml and its program; return the file."""
    folder = dlctl.cwd / "job"
    folder.mkdir()
    text = SEARCH.replace("%TRIALS%", str(trials)).replace("%MORE%", more)
    text = text.replace("%WORKERS%", str(workers)).replace("%SLOTS%", str(slots))
    text = text.replace("%JOBS%", jobs)
    (folder / "search.yml").write_text(text)
    (folder / "trials.py").write_text(PROGRAM.replace("%SECONDS%", str(seconds)))
    return folder / "search.yml"


def start(dlctl, site, *arguments, **keywords):
    path = write(dlctl, *arguments, **keywords)
    return dlctl("search", "start", path, "--site", site.name, ok=True).stdout.strip()


def events(job_dir):
    path = job_dir / names.TRIALS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().rpartition(b"\n")[0].splitlines()]


def told(job_dir):
    return [event for event in events(job_dir) if event["event"] == "tell"]


def wait_for_results(job_dir, count):
    try:
        wait_until(lambda: len(told(job_dir)) >= count, 90)
    except BaseException:
        trial = "tasks/*/checkpoint/job/attempts/*/*.log"
        patterns = ("workers/*/*.out", "logs/*", "tasks/*/log", trial,
                    "../attempts/*/*.*")  # fmt: skip
        for path in [p for each in patterns for p in (job_dir / names.FOLDER).glob(each)]:
            print(f"==> {path.name}", *path.read_text().splitlines()[-10:], sep="\n")
        raise


def assert_each_once(job_dir, trials):
    counts = collections.Counter(event["number"] for event in told(job_dir))
    assert counts == dict.fromkeys(range(trials), 1)
    assert {(e["outcome"], e["error"]) for e in told(job_dir)} == {("SUCCEEDED", "")}


@pytest.mark.first("cluster")
@pytest.mark.costs(15)
@ON_THE_CLUSTER
def test_a_search_runs_to_its_end_and_is_fetched(dlctl, site):
    search_id = start(dlctl, site, 16)
    job_dir = site.job_dir(search_id)
    watched = dlctl("watch", search_id, "--json", ok=True).stdout.splitlines()
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(job_dir, 16)
    seen = [json.loads(line) for line in watched]
    assert [each["trial"]["number"] for each in seen if each["event"] == "trial"] == [
        event["number"] for event in told(job_dir)
    ], "each trial once, in the order of the ends"
    states = [each["state"] for each in seen if each["event"] == "state"]
    assert states[-1] == "COMPLETED" and len(states) > 1, "it was followed while it ran"
    status = dlctl("status", search_id, "--json", ok=True).json
    assert (status["ended"], status["failed"], status["budget"]) == (16, 0, 16)
    best = min(told(job_dir), key=lambda event: event["metric"])
    assert status["best"]["number"] == best["number"]
    assert f"trial {best['number']}" in dlctl("status", search_id, ok=True).stdout
    rows = dlctl("search", "trials", search_id, "--json", ok=True).json
    if site.is_cluster:
        assert len({row["worker"] for row in rows}) == 2, "both workers took part"
    dlctl("fetch", "results", search_id, ok=True)
    found = json.loads((dlctl.cwd / f"results/{search_id}/best.json").read_text())
    assert found["trial"] == best["number"]
    assert_shown(dlctl, search_id, best["number"])
    keys = [path for path in (job_dir / names.KEYS).iterdir() if path.suffix == ".key"]
    assert keys and {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def assert_shown(dlctl, search_id, best):
    lines = dlctl("watch", search_id, ok=True).stdout.splitlines()
    assert sum(line.startswith("trial ") for line in lines) == 16
    whole = dlctl("show", search_id, "--json", ok=True).json
    assert (whole["waits"], whole["best"]["number"], len(whole["workers"])) == ([], best, 2)
    assert len(dlctl("search", "export", search_id, "--csv", ok=True).stdout.splitlines()) == 17
    sources = {line.partition(" | ")[0] for line in
               dlctl("logs", search_id, ok=True).stdout.splitlines()}  # fmt: skip
    assert {"hub", "broker", "w1.0"} <= sources
    assert [row["name"] for row in whole["workers"]] == ["w1.0", "w1.1"]
    assert dlctl("search", "best", "--json", ok=True).json["number"] == best, "the folder's search"
    again = dlctl("search", "best", search_id, "--manifest", dlctl.cwd / "job/again.yml", ok=True)
    assert "dlctl search start" in again.stderr
    assert (
        "the same, in the order of the log" in dlctl("search", "replay", search_id, ok=True).stdout
    )


@ON_THE_CLUSTER
@pytest.mark.slow
@pytest.mark.parametrize("seen", ["plan.json", "attempts/1/submit.end"])
def test_a_start_that_was_killed_is_taken_up_by_the_same_command(dlctl, site, seen):
    """It left a hub without workers, or a second search beside the first."""
    command = ["search", "start", write(dlctl, 4), "--site", site.name]
    jobs = site.root / "jobs"
    with dlctl.start(*command) as killed:
        wait_until(lambda: list(jobs.glob(f"*/{seen}")), 60, interval_s=0.002, what=seen)
        killed.send_signal(signal.SIGKILL)
    search_id = dlctl(*command, ok=True).stdout.strip()
    assert [path.name for path in jobs.iterdir()] == [search_id]
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(site.job_dir(search_id), 4)


def test_a_search_that_is_halted_and_resumed_does_nothing_twice(dlctl, site):
    slow = '0.1 if (pathlib.Path(__file__).parents[1] / "hurry").exists() else 3'
    search_id = start(dlctl, site, 100, ", deterministic: true, window: 6", seconds=slow)
    job_dir = site.job_dir(search_id)
    wait_for_results(job_dir, 8)
    groups = sorted(path.name for path in (job_dir / names.WORKERS).glob("w?*"))
    assert "nothing to resume" in dlctl("resume", search_id).stderr
    shown = dlctl("show", search_id, "--json", ok=True).json["workers"]
    assert "CANCELLED" not in {worker["state"] for worker in shown}, "its workers stay"
    halt(dlctl, search_id)
    dlctl("search", "scale", search_id, "--workers", "2", ok=True)
    assert sorted(path.name for path in (job_dir / names.WORKERS).glob("w?*")) == groups
    (why,) = dlctl("status", search_id, "--json", ok=True).json["waits"]
    assert f"the search is halted; `dlctl resume {search_id}` goes on" in why
    before = len(told(job_dir))
    assert before < 100
    (dlctl.cwd / "job/search.yml").unlink()  # it goes on as it was sent
    (job_dir / "hurry").touch()
    dlctl("resume", search_id, ok=True)
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(job_dir, 100)
    assert "needs no workers" in dlctl("search", "scale", search_id, "--workers", "2").stderr
    replayed = dlctl("search", "replay", search_id, "--json", ok=True).json
    assert replayed == {"trials": 100, "deterministic": True, "timings": 3, "same": True,
                        "differs": None}  # fmt: skip


def test_a_search_whose_program_is_broken_ends_early_and_goes_on_with_a_mended_one(
    dlctl, local_site
):
    folder = dlctl.cwd / "job"
    folder.mkdir()
    text = SEARCH.replace("%MORE%", "").replace("%SLOTS%", "2").replace("%JOBS%", "")
    text = text.replace("%WORKERS%", "1").replace("trials: %TRIALS%", "trials: 20, failures: 3")
    (folder / "search.yml").write_text(text.replace("trials:Valley", "trails:Valley"))
    (folder / "trials.py").write_text(PROGRAM.replace("%SECONDS%", "0.1"))
    done = dlctl("search", "start", folder / "search.yml", "--site", local_site.name, ok=True)
    search_id = done.stdout.strip()
    wait_for_state(dlctl, search_id, "FAILED")
    failed = len(told(local_site.job_dir(search_id)))
    assert 3 <= failed < 10
    status = " ".join(dlctl("status", search_id, ok=True).stdout.split())
    assert "trials have failed, and none has ended well; the newest, trial" in status
    assert "No module named 'trails'" in status
    hint = dlctl("show", search_id, "--json", ok=True).json["hint"]
    (logs, _), (resume, _) = commands_in(hint)
    assert logs.startswith("logs --trial ") and resume == f"resume --code {search_id}", hint
    dlctl(*logs.split(), ok=True)
    ((trials, _),) = commands_in(dlctl("search", "best", search_id).stderr)
    assert trials == f"search trials {search_id}"
    dlctl(*trials.split(), ok=True)
    (folder / "search.yml").write_text(text.replace("int: [1, 9]", "int: [1, 8]"))
    refused = dlctl("resume", search_id, "--code")
    assert "search.yml: space is another one than that of " in refused.stderr
    ((another, _),) = commands_in(refused.stderr)
    assert another == f"search start {folder / 'search.yml'}"
    started = dlctl(*another.split(), ok=True)
    ((look, _),) = commands_in(started.stderr)
    assert look == f"status {started.stdout.strip()}"
    dlctl(*look.split(), ok=True)
    dlctl("cancel", started.stdout.strip(), ok=True)
    (folder / "search.yml").write_text(text)
    dlctl(*resume.split(), ok=True)
    wait_for_state(dlctl, search_id, "COMPLETED")
    ends = dlctl("status", search_id, "--json", ok=True).json
    assert ends["ended"] == 20
    assert failed <= ends["failed"] < 10, "a few had failed and were not told"


def test_a_search_whose_workers_fit_nowhere_is_not_begun(dlctl, local_site):
    text = SEARCH.replace("%MORE%", "").replace("%TRIALS%", "9").replace("%JOBS%", "")
    text = text.replace("%WORKERS%", "1").replace("%SLOTS%", "500")
    (dlctl.cwd / "search.yml").write_text(text.replace("time: 1m,", "time: 1m, cpus: 100,"))
    refused = dlctl("search", "start", dlctl.cwd / "search.yml", "--site", local_site.name)
    assert refused.exit_code and "50000 CPUs" in refused.stderr, refused
    assert dlctl("list", "--json", ok=True).json == []


def processes(module, job_dir):
    """Return the processes of a search that run a module."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if module in words and str(job_dir) in words:
            found.append(int(path.parent.name))
    return found


@ON_THE_CLUSTER
def test_the_hub_adds_workers_while_there_is_work_and_scale_ends_some(dlctl, site):
    search_id = start(dlctl, site, 80, workers="1..2", slots=1, seconds=1)
    job_dir = site.job_dir(search_id)
    wait_for_results(job_dir, 1)
    wait_until(lambda: (job_dir / names.WORKERS / "w2" / "submit.end").exists(), 60)
    assert (job_dir / names.WORKERS / "w2" / "submit.end").read_text().startswith("0\n")
    if site.is_cluster:
        wait_until(lambda: {e["worker"][:2] for e in told(job_dir)} == {"w1", "w2"}, 60)
    (pool,) = dlctl("search", "scale", search_id, "--workers", "0..1", "--json", ok=True).json
    assert (pool["name"], pool["least"], pool["most"]) == ("w", 0, 1)

    def workers():
        shown = dlctl("show", search_id, "--json", ok=True).json["workers"]
        return [each for each in shown if each["state"] in ("PENDING", "RUNNING", "ENDING")]

    wait_until(lambda: len(workers()) <= 1, 60)
    dlctl("cancel", search_id, ok=True)
    wait_until(lambda: not workers(), 60)
    counts = collections.Counter(event["number"] for event in told(job_dir))
    assert set(counts.values()) == {1}


def test_trials_without_workers_get_some_by_the_command_that_is_printed(dlctl, local_site):
    search_id = start(dlctl, local_site, 3, workers=0)

    def says_why():
        waits = dlctl("status", search_id, "--json", ok=True).json["waits"]
        return [command for why in waits for command, _ in commands_in(why)]

    ((command),) = wait_until(says_why, 60, what="a wait that names a command")
    assert command == f"search scale {search_id} --workers N"
    dlctl(*command.replace("N", "1").split(), ok=True)
    wait_for_state(dlctl, search_id, "COMPLETED")


def test_workers_scaled_from_several_places_at_once_are_all_kept(dlctl, local_site):
    search_id = start(dlctl, local_site, 50, workers=1, seconds=1)
    words = [sys.executable, "-m", "dlctl", "search", "scale", search_id, "--workers", "0..3"]
    calls = [
        subprocess.Popen([*words, "--partition", name], env=dlctl.env, cwd=dlctl.cwd)
        for name in ("one", "two", "three")
    ]
    assert [call.wait(60) for call in calls] == [0, 0, 0]
    pools = dlctl("search", "scale", search_id, "--json", ok=True).json
    assert {pool["partition"] for pool in pools} == {None, "one", "two", "three"}
    assert len({pool["name"] for pool in pools}) == 4
    dlctl("cancel", search_id, ok=True)


@ON_THE_CLUSTER
def test_trials_may_be_whole_trainings_with_several_learners(dlctl, site):
    started = dlctl("search", "start", search_of_digits(dlctl.cwd), "--site", site.name, ok=True)
    search_id = started.stdout.strip()
    job_dir = site.job_dir(search_id)
    wait_for_results(job_dir, 2)
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(job_dir, 2)
    best = dlctl("search", "best", search_id, "--json", ok=True).json
    assert best["metric"] > 0.3, "better than guessing one of ten"
    for folder in (job_dir / names.TASKS).iterdir():
        learners = {
            path.name.rpartition("-")[2] for path in (folder / "checkpoint/job/metrics").iterdir()
        }
        assert len(learners) >= 2, learners


def test_workers_go_on_while_the_hub_is_gone_and_its_successor_takes_over(dlctl, cluster_site):
    """A broker in a worker's job adopts the log of the hub's; the next hub takes it back."""
    search_id = start(
        dlctl, cluster_site, 60, ", window: 40", slots=1, seconds=0.4, jobs=", per_broker: 1"
    )
    job_dir = cluster_site.job_dir(search_id)
    wait_for_results(job_dir, 5)
    endpoints = job_dir / names.ENDPOINTS
    wait_until(lambda: len(list(endpoints.glob("b.*.json"))) == 2, 60)
    shown = dlctl("show", search_id, "--json", ok=True).json["brokers"]
    assert {each["broker"] for each in shown} == {"b0", "b.w1.0", "b.w1.1"}
    assert [(job_dir / names.WORKERS / "w1" / name).read_text() for name in ("before", "count")] \
        == ["0\n", "2\n"]  # fmt: skip
    hub = processes("learner.supervisor", job_dir) + processes("search.hub", job_dir)
    hub += processes("search.model", job_dir) + processes("search.nameserver", job_dir)
    hub += [pid for pid in processes("search.broker", job_dir)
            if b"b0" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]  # fmt: skip
    assert len(hub) >= 5
    for pid in hub:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: wait_logs(job_dir).count("adopts the broker b0") == 1, 60)
    ran = job_dir / "ran"
    done = len(ran.read_text().splitlines())
    wait_until(lambda: len(ran.read_text().splitlines()) >= done + 5, 60)
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(job_dir, 60)
    assert len(ran.read_text().splitlines()) <= 60 + 4, "what ran without a hub ran again"


def wait_logs(job_dir):
    """Return what workers, and the brokers beside them, have printed."""
    return "".join(path.read_text() for path in (job_dir / names.WORKERS).glob("*/*.out"))


FIT = """\
import argparse, importlib, os
ddl = importlib.import_module("learner.ddl")

parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=int)
parser.add_argument("--kind")
parser.add_argument("--rate", type=float, default=-1)
parser.add_argument("--big", action="store_true")
args = parser.parse_args()
ddl.log(1, score=args.depth + 0.1 * args.big, rate=args.rate, a=args.kind == "it's a")
"""


def test_trials_of_other_frameworks_get_their_own_arguments_and_the_best_one_a_manifest(
    dlctl, local_site
):
    folder = dlctl.cwd / "fit"
    folder.mkdir()
    (folder / "fit.py").write_text(FIT)
    (folder / "search.yml").write_text("""\
name: fit
framework: {name: sklearn, job: fit.py, arguments: {kind: none}}
memory: 512MiB
space:
  framework.arguments.kind: {choice: ["it's a", b]}
  framework.arguments.depth: {int: [1, 3]}
  framework.arguments.big: {choice: [true, false]}
  framework.arguments.rate: {choice: [0.5], when: {framework.arguments.kind: b}}
strategy: {name: grid}
metric: {name: score}
budget: {trials: 3}
workers: {jobs: 1, slots: 2, time: 10m}
""")
    started = dlctl("search", "start", folder / "search.yml", ok=True)
    search_id = started.stdout.strip()
    job_dir = local_site.job_dir(search_id)
    wait_for_results(job_dir, 3)
    rows = dlctl("search", "trials", search_id, "--json", ok=True).json
    for row in rows:
        point = {name.rpartition(".")[2]: value for name, value in row["point"].items()}
        event = told(job_dir)[[e["number"] for e in told(job_dir)].index(row["number"])]
        assert (row["outcome"], row["error"]) == ("SUCCEEDED", "")
        assert row["metric"] == point["depth"] + 0.1 * point["big"]
        assert event["value"]["rate"] == point.get("rate", -1)
        assert event["value"]["a"] == (point["kind"] == "it's a")
    wait_for_state(dlctl, search_id, "COMPLETED")
    best = dlctl("search", "best", search_id, "--json", ok=True).json
    (again, _), *_ = commands_in(started.stderr)
    assert again == "search best --manifest FILE", started.stderr
    dlctl(*again.replace("FILE", "best.yml").split(), cwd=folder, ok=True)
    training_id = dlctl("submit", folder / "best.yml", ok=True).stdout.strip()
    wait_for_state(dlctl, training_id, "COMPLETED")
    csv = dlctl("metrics", training_id, "--names", "^score$", "--csv", ok=True).stdout
    assert float(csv.splitlines()[-1].rpartition(",")[2]) == best["metric"], csv
    shown = dlctl("show", search_id, "--trial", str(best["number"]), "--json", ok=True)
    assert shown.json["runs"] == 1 and shown.json["log"], shown.stdout


def test_workers_that_a_newer_dlctl_adds_run_the_version_of_the_hub(dlctl, local_site):
    search_id = start(dlctl, local_site, 30)
    newer = dlctl.cwd / "newer"
    for package in ("dlctl", "learner", "psrv", "search", "templates", "site_configs"):
        shutil.copytree(REPOSITORY / package, newer / package)
    with (newer / "search/errors.py").open("a") as file:
        file.write("# newer\n")
    added = ("search", "scale", search_id, "--workers", "3")
    with dlctl.start(*added, env={"PYTHONPATH": str(newer)}) as command:
        told = command.communicate(timeout=60)
    assert command.returncode == 0, told
    job_dir = local_site.job_dir(search_id)
    runtime_dir = json.loads((job_dir / "plan.json").read_text())["runtime_dir"]
    script = (job_dir / names.WORKERS / "w/worker.sbatch").read_text()
    assert f"runtime_dir={runtime_dir}\n" in script
    wait_for_state(dlctl, search_id, "COMPLETED")


PACKAGES = Path(sys.prefix, "worker-node/node_modules")


@pytest.mark.skipif(
    not (shutil.which("node") and PACKAGES.is_dir()),
    reason=".ci/make-worker-node .venv/worker-node",
)
def test_a_search_of_foreign_workers_alone_runs_tasks_of_their_own_type(dlctl, site):
    """The example follows docs/search-protocol.md: three guesses were needed."""
    example = REPOSITORY / "examples/worker-node"
    search_id = dlctl("search", "start", example / "search.yml", "--site", site.name,
                      ok=True).stdout.split()[0]  # fmt: skip
    job_dir = site.job_dir(search_id)
    wait_until(lambda: (job_dir / names.ENDPOINTS / "b0.json").exists(), what="the broker")
    assert (job_dir / names.OUTBOXES).is_dir() and (job_dir / names.TASKS).is_dir()
    waits = wait_until(lambda: dlctl("status", search_id, "--json", ok=True).json["waits"],
                       what="trials that wait")  # fmt: skip
    assert "no worker is there; start your own: search.yml has `workers: {jobs: 0}`" in waits[0]
    home = site.root / "worker"  # whoever runs it can't read this one's home
    shutil.copytree(example, home)
    shutil.copytree(PACKAGES, home / "node_modules")
    argv = ["node", f"{home}/worker.js", str(job_dir), "--name", "mine", "--slots", "2"]
    if site.cluster:
        site.cluster.user(*argv, node=2, timeout_s=300)
    else:
        subprocess.run(argv, check=True, timeout=300)
    wait_for_state(dlctl, search_id, "COMPLETED")
    assert_each_once(job_dir, 20)
    rows = dlctl("search", "trials", search_id, "--json", ok=True).json
    assert {row["worker"] for row in rows} == {"mine"}
    assert not list((job_dir / names.OUTBOXES).iterdir())
    assert "node: tasks/valley" in dlctl("show", search_id, ok=True).stdout
