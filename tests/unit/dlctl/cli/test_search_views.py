"""What `dlctl search` shows of a search whose job directory is on this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_search import events_of, lines_of, trials_of, write_search

from dlctl import contract
from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.record import Record

ONE = "made-3k9f"


@pytest.fixture
def job_dir(tmp_path):
    folder = tmp_path / "jobs" / ONE
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def known(trainings, job_dir, tmp_path):
    """A search that was cancelled: its state is asked for no more."""
    trainings.add(
        Record(ONE, "made", "local", str(tmp_path), str(job_dir), "2026-01-01T10:00:00+00:00",
               job_id="1", state=State.CANCELLED, reason="cancelled", is_search=True,
               manifest_path=str(tmp_path / "elsewhere" / "search.yml"))
    )  # fmt: skip
    return job_dir


def fails(done, code, *says):
    assert done.exit_code == code, done.stderr
    for text in says:
        assert text in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(("command", "code"), [
    (("search", "trials"), 11), (("search", "best"), 11), (("show", "--trial", "0"), 2),
    (("logs", "--trial", "0"), 2),
])  # fmt: skip
def test_a_training_is_no_search(dlctl, known, trainings, command, code):
    trainings.update(replace(trainings.find(ONE), is_search=False))
    fails(dlctl(*command, ONE), code, f"{ONE} is a training, and no search")


def test_a_job_directory_that_is_gone_is_named(dlctl, known):
    known.rmdir()
    fails(dlctl("show", ONE), 11, f"{known}/search/spec.json is gone from the site")


def test_the_state_of_a_search_is_told_without_its_files_or_its_site(dlctl, known, trainings):
    """`dlctl status` ended with an error where it tells the state of any other training."""
    told = dlctl("status", ONE, "--json", ok=True)
    assert told.json["state"] == "CANCELLED" and "spec.json is gone" in told.stderr
    folder = Path(dlctl.env["XDG_CONFIG_HOME"], "dlctl/sites")
    folder.mkdir(parents=True)
    (folder / "away.yml").write_text(AWAY)
    trainings.add(replace(trainings.find(ONE), training_id="far-off", site="away",
                          state=State.TRAINING))  # fmt: skip
    told = dlctl("status", "far-off", "--json", ok=True).json
    assert told["state"] == "TRAINING" and told["stale_since"]


AWAY = """\
transport: {kind: ssh, host: 127.0.0.1, port: 9}
root: /nonexistent
scheduler: {kind: slurm}
launcher: {kind: srun}
environment: {python: /usr/bin/python3}
"""


def test_a_damaged_log_is_named(dlctl, known):
    write_search(known, 3)
    with (known / names.TRIALS).open("a") as file:
        file.write('{"event": "tell", "number": 77}\n')
    fails(dlctl("show", ONE), 11, "trials.jsonl: line 16 is no event of a search")
    done = dlctl("watch", ONE, "--once", ok=True)
    assert "line 16 is no event of a search" in done.stdout


def test_a_search_without_a_trial(dlctl, known):
    write_search(known, 0)
    assert "no trial has ended well so far" in dlctl("show", ONE, ok=True).stdout
    assert "no trial so far" in dlctl("watch", ONE, "--once", ok=True).stdout
    assert dlctl("show", ONE, "--json", ok=True).json["best"] is None
    assert "has printed nothing so far" in dlctl("logs", ONE, ok=True).stderr
    fails(dlctl("search", "best", ONE), 9, "no trial has ended well so far")
    fails(dlctl("show", ONE, "-t", "0"), 8, "there is no trial 0")
    fails(dlctl("logs", ONE, "-t", "0"), 8, "there is no trial 0")


def test_lines_of_a_trial_are_not_chosen_by_learner_or_age(dlctl, known):
    write_search(known, 4)
    for options in (["--rank", "0"], ["--attempt", "1"], ["--since", "1h"], ["--tail", "1"]):
        refused = dlctl("logs", ONE, "--trial", "2", *options)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "of a trial all lines are printed" in refused.stderr


def test_show_tells_space_trials_and_why_they_wait(dlctl, known):
    write_search(known, 12, 9)
    fails(dlctl("search", "best", "nosuch"), 8, "nosuch")
    text = dlctl("show", ONE, ok=True).stdout
    assert "float 0.0001 to 1, logarithmic" in text and "optimizer: sgd" in text
    assert "3 trials wait: the search is cancelled" in text
    told = dlctl("show", ONE, "--json", ok=True).json
    assert (told["ended"], told["spec"]["metric"], len(told["waits"])) == (9, "loss", 1)
    assert told["best_over_time"][-1]["number"] == told["best"]["number"]


def test_of_a_search_that_has_ended_no_trial_runs(dlctl, known):
    write_search(known, 12, 9)
    told = names.BrokerStatus("b0", 1, 0.0, workers=[names.WorkerStatus("w1.0", running=2)])
    (known / names.BROKERS / "b0").mkdir(parents=True, exist_ok=True)
    (known / names.BROKERS / "b0" / names.BROKER_STATUS).write_text(contract.to_json(told))
    text = dlctl("status", ONE, ok=True).stdout
    assert "3 outstanding\n" in text and "of them run" not in text
    assert dlctl("status", ONE, "--json", ok=True).json["running"] == 0
    (known / names.TRIALS).write_bytes(lines_of(events_of(2))[:-5])
    told = dlctl("status", ONE, "--json", ok=True).json
    assert told["ended"] == 1, "a line that is not finished yet waits"


def test_best_names_the_newest_failure_while_none_has_ended_well(dlctl, known):
    write_search(known, 12, 9, failed=1.0)
    newest = trials_of(12, 9, failed=1.0).rows[8]
    says = f"no trial has ended well so far; trial 8 failed: {newest.error}"
    fails(dlctl("search", "best", ONE), 9, says)
    assert newest.error and says in " ".join(dlctl("show", ONE, ok=True).stdout.split())


def test_the_newest_failure_is_named_beside_the_best(dlctl, known):
    write_search(known, 12, 9, failed=0.3)
    found = trials_of(12, 9, failed=0.3)
    newest = found.newest_failure
    assert found.best and newest
    for command in ("show", "status"):
        text = " ".join(dlctl(command, ONE, ok=True).stdout.split())
        assert f"newest failure trial {newest.number}: {newest.error}" in text


def test_a_search_that_has_ended_is_neither_halted_nor_cancelled(dlctl, known):
    write_search(known, 3)
    for command in ("halt", "cancel"):
        fails(dlctl(command, ONE), 11, f"dlctl show {ONE}")
    shown = dlctl("show", ONE, ok=True).stdout
    assert "folder         " in shown and "elsewhere" in shown, "that of search.yml"


def test_show_tells_how_much_each_parameter_explains(dlctl, known):
    write_search(known, 60)
    rows = dlctl("show", ONE, ok=True).stdout.splitlines()
    (rate,) = [row for row in rows if row.startswith("lr ")]
    assert " %, best at 0.0" in rate
    (noise,) = [row for row in rows if row.startswith("noise ")]
    assert noise.endswith("no more than chance")
    told = dlctl("show", ONE, "--json", ok=True).json["importance"]
    assert told[0]["name"] == "lr" and told[0]["share"] > 0.5


def test_show_tells_one_trial_with_its_reports_and_the_end_of_its_log(dlctl, known):
    write_search(known, 4)
    row = trials_of(4).rows[2]
    folder = known / names.TASKS / row.id
    folder.mkdir(parents=True)
    (folder / "log").write_text("".join(f"line {n}\n" for n in range(100)) + "no newline")
    text = dlctl("show", ONE, "--trial", "2", ok=True).stdout
    assert "| no newline" in text and "| line 99" in text and "| line 80" not in text
    told = dlctl("show", ONE, "--trial", "2", "--json", ok=True).json
    assert [each["step"] for each in told["reports"]] == [1, 2, 3]
    assert (told["point"], told["worker"], told["runs"]) == (row.point, "w1.2", None)
    log = dlctl("logs", ONE, "--trial", "2", ok=True).stdout.splitlines()
    assert log[0] == "trial | line 0" and log[-1] == "trial | no newline" and len(log) == 101
    for attempt in (1, 2):
        run = folder / f"checkpoint/job/attempts/{attempt}"
        run.mkdir(parents=True)
        plan = run if attempt > 1 else folder / "checkpoint/job"
        (plan / "plan.json").write_text("{}")
        (run / "learner-0.log").write_text(f"attempt {attempt}\n")
    told = dlctl("show", ONE, "--trial", "2", "--json", ok=True).json
    assert told["runs"] == 2
    assert "learner-0 | attempt 2" in dlctl("logs", ONE, "-t", "2", ok=True).stdout


def test_the_logs_of_all_processes_are_named_by_their_sources(dlctl, known):
    write_search(known, 1)
    for name in (f"{names.LOGS}/b0.log", f"{names.LOGS}/model.log", f"{names.WORKERS}/w1/0.out",
                 "attempts/1/slurm.out", "attempts/1/learner-0.log"):  # fmt: skip
        (known / name).parent.mkdir(parents=True, exist_ok=True)
        (known / name).write_text(f"of {name}\n")
    lines = dlctl("logs", ONE, ok=True).stdout.splitlines()
    assert [line.partition(" | ")[0] for line in lines] == ["job", "hub", "b0", "model", "w1.0"]
    first = json.loads(dlctl("logs", ONE, "--json", ok=True).stdout.splitlines()[0])
    assert first == {"attempt": 1, "source": "job", "line": "of attempts/1/slurm.out"}


def test_watch_prints_a_line_for_each_trial_into_a_pipe(dlctl, known):
    write_search(known, 5)
    lines = dlctl("watch", ONE, ok=True).stdout.splitlines()
    assert lines[0].startswith(f"{ONE} CANCELLED")
    assert [line.split()[1] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    objects = dlctl("watch", ONE, "--json", ok=True).stdout.splitlines()
    assert [json.loads(line)["trial"]["number"] for line in objects[1:]] == [0, 1, 2, 3, 4]
    once = dlctl("watch", ONE, "--json", "--once", ok=True).stdout
    assert json.loads(once)["overview"]["ended"] == 5


def test_exports_go_to_standard_output_or_to_files(dlctl, known, tmp_path):
    write_search(known, 5, 4)
    lines = dlctl("search", "export", ONE, "--csv", ok=True).stdout.splitlines()
    assert len(lines) == 6 and lines[0].startswith("trial,outcome,metric,point.lr,")
    whole = dlctl("search", "export", ONE, "--json", ok=True).json
    assert (whole["search"], len(whole["trials"]), whole["spec"]["seed"]) == (ONE, 5, 0)
    assert whole["trials"][0]["reports"][0]["step"] == 1
    done = dlctl("search", "export", ONE, "--parquet", tmp_path / "t.parquet", ok=True)
    assert "5 trials in" in done.stderr and (tmp_path / "t.parquet").exists()
    fails(dlctl("search", "export", ONE, "--parquet", "/nowhere/t"), 9, "can't be written")
    assert dlctl("search", "export", ONE).exit_code == 2
    assert dlctl("search", "export", ONE, "--csv", "--json").exit_code == 2


def test_the_page_is_one_file_that_asks_nobody(dlctl, known, tmp_path):
    write_search(known, 12)
    dlctl("search", "export", ONE, "--html", tmp_path / "s.html", ok=True)
    text = (tmp_path / "s.html").read_text()
    assert "default-src 'none'" in text and f"#/search/{ONE}" in text
    assert "the loss is \\u003cb>odd" in text, "no text of a trial ends the script"


def test_without_an_id_it_is_the_latest_search_and_not_a_training_after_it(
    dlctl, trainings, tmp_path
):
    for number, name in enumerate(("old", "mine", "later")):
        folder = tmp_path / name
        write_search(folder, number + 1)
        trainings.add(Record(name, name, "local", str(dlctl.cwd), str(folder),
                             f"2026-01-0{number + 1}T10:00:00+00:00", job_id="1",
                             state=State.CANCELLED, is_search=name != "later"))  # fmt: skip
    best = dlctl("search", "best", "--manifest", "-")
    assert "/mine/code/" in best.stderr and best.exit_code == 9
    assert dlctl("status", "--json", ok=True).json["training_id"] == "later"
