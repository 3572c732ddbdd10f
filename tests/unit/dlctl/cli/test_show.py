"""`dlctl show`: attempts, the time of a step, the servers, and the story on a screen of 80 × 24."""

import re
import time
from dataclasses import replace

import pytest
from login_side import MANIFEST, make_site, plan_of
from made_details import make_details, process
from scheduler_plan import make_plan

from dlctl.cli.output import Shown
from dlctl.cli.views.learners import rates, server_line, speed_line
from dlctl.cli.views.training import _per_attempt, print_details, print_story, verdict_fields
from dlctl.contract import (
    STOPPING,
    Action,
    Evidence,
    Homes,
    Lifecycle,
    Next,
    State,
    Training,
    Verdict,
    VerdictKind,
)
from dlctl.lifecycle.orders import Ordered
from dlctl.outputs.insight import Attempt, Insight
from dlctl.record import Record
from dlctl.series.answers import Answer
from dlctl.series.pace import TimeLeft
from dlctl.series.utilisation import Use
from dlctl.service.describe import asked_in_words
from dlctl.service.submit import _say_links
from dlctl.terminal.text import width_of

PLAN = replace(make_plan(), training=Training(batch_size=50))


def attempts(*learners):
    return [Attempt(n, make_plan(learners=each).resources, "", [])
            for n, each in enumerate(learners, 1)]  # fmt: skip


def failed(role, rank, host, words):
    return Verdict(1, "7", State.FAILED, "", evidence=Evidence(role, rank, host, last_lines=words))


@pytest.mark.parametrize(("learners", "told"), [
    ([], ""),
    ([4], ""),
    ([4, 4], ""),
    ([2, 1], "2 in attempt 1, 1 from attempt 2 on"),
    ([2, 2, 1, 3], "2 in attempts 1 to 2, 1 in attempt 3, 3 from attempt 4 on"),
])  # fmt: skip
def test_show_lists_learners_per_attempt_if_they_changed(learners, told):
    assert _per_attempt(attempts(*learners)) == told


def test_where_the_time_of_a_step_goes():
    use = Use(step_shares={"exchange": 0.52, "data": 0.002, "checkpoint": 0.0})
    shares = "of a step's time exchange 52 %, data 0.2 %, checkpoint 0 %"
    assert speed_line([], PLAN, use) == shares
    metrics = [{"samples_per_s": 100.0}, {"loss": 1.0}]
    assert speed_line(metrics, PLAN, use) == f"100 samples/s · {shares}"
    assert speed_line([{"samples_per_s": None}, {}], PLAN, Use()) == ""


def test_of_many_metrics_the_first_are_printed(capsys):
    learner = process("learner", 0, "n1", **{f"norm{n}": 1.0 for n in range(1020)})
    print_details(make_details(learners=[learner]))
    lines = capsys.readouterr().out.splitlines()
    told = lines[lines.index("metrics:") + 1 :]
    assert (told[19], told[20]) == (
        "  norm19  1", "  and 1,000 more, which `dlctl metrics t-1` prints",
    )  # fmt: skip


def test_the_shares_stand_below_the_learners_and_not_in_their_row(capsys):
    learner = process("learner", 0, "n1", loss=0.5, step_s=0.1, exchange_s=0.003)
    insight = Insight(use=Use(step_shares={"exchange": 0.03}))
    print_details(make_details(learners=[learner], attempts=attempts(2, 1), insight=insight))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "of a step's time exchange 3 %"
    assert lines[-4:-1] == ["metrics:", "  loss  0.5", ""]
    assert "exchange_s" not in "".join(lines)
    assert any("2 in attempt 1, 1 from attempt 2 on" in line for line in lines)


def test_a_warning_of_a_learner_that_trains_is_shown(capsys):
    learners = [process("learner", 0, "n1", reason="nothing reads RANK"),
                process("learner", 1, "n1", reason=f"{STOPPING}halted on request")]  # fmt: skip
    print_details(make_details(learners=learners))
    assert capsys.readouterr().err == "warning: learner 0: nothing reads RANK\n"


def test_the_last_words_are_short_and_say_where_all_are(capsys):
    words = [
        "[rank 1 on n2] Traceback (most recent call last):",
        '[rank 1 on n2]   File "/x/site-packages/torch/module.py", line 1, in call',
        '[rank 1 on n2]   File "/h/jobs/t-1/code/train.py", line 14, in forward',
        "[rank 1 on n2] RuntimeError: wrong shape",
    ]
    known = {"job_dir": "/h/jobs/t-1", "attempt": 2}
    verdict = failed("learner", 1, "n2", words)
    print_details(make_details(verdict=verdict, record=known))
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "last lines of learner 1 on n2:",
        "  Traceback (most recent call last):",
        '    File "train.py", line 14, in forward',
        "  RuntimeError: wrong shape",
        "all lines: dlctl logs t-1 --learner 1 --debug",
        "at the site: /h/jobs/t-1/attempts/2/learner-1.log",
    ]
    hint = "See its whole log: dlctl logs t-1 --learner 1 --debug"
    print_details(make_details(verdict=verdict, record={**known, "hint": hint}))
    told = capsys.readouterr()
    assert "dlctl logs" not in told.out and told.err.count(hint) == 1, "the command stands once"


def test_a_narrow_terminal_breaks_no_word_of_the_metrics(on_terminal):
    metrics = {"samples_per_s": 6624.0, "memory_bytes": 1 << 30, "step_s": 1.0, "exchange_s": 0.1,
               "loss": 0.2, "validation_top5_accuracy": None}  # fmt: skip
    learners = [process("learner", rank, "node001", **metrics) for rank in (0, 1)]
    reason = "Learner 1 on node001 failed with exit code 1: train.py:14: RuntimeError: wrong shape"
    insight = Insight(use=Use(step_shares={"exchange": 0.1, "data": 0.004}))
    told = make_details(learners=learners, record={"reason": reason}, insight=insight)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(lambda: print_details(told), 60))
    assert "RuntimeError: wrong shape\n" in shown
    speed = "6624 samples/s · of a step's time exchange 10 %, data 0.4 %\n"
    assert speed in shown
    assert shown.count("validation_top5_accuracy  nan") == 1
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert "\n1        node001" in shown


def test_json_holds_objects_and_one_form_of_time():
    told = Record(
        training_id="t-1", name="t", site="local", folder="/f", job_dir="/j",
        created_at="2026-01-02T03:04:05.678+00:00", overrides='{"set": ["a=1"]}', seen_at=3.5,
    ).plain()  # fmt: skip
    assert (told["created_at"], told["overrides"]) == (1767323045.678, {"set": ["a=1"]})
    assert (told["seen_at"], told["ended_at"], told["epochs"]) == (3.5, None, None)


def with_server(settings="push_every: 5, shards: 3", **more):
    site = make_site(more="partitions: {two: {cpus_per_node: 2}}")
    text = f"{MANIFEST}parameter_server: {{{settings}}}\n"
    return make_details(plan=plan_of(text, site=site, learners=4), **more)


@pytest.mark.parametrize(("settings", "told"), [
    ("push_every: 5, shards: 3", "elastic_averaging, 3 shards on node 0, node 1\n"
     "push every 5 batches, no bound on staleness"),
    ("solver: downpour_sgd, staleness: 2, pull_every: 3, shards: 1", "downpour_sgd, 1 shard on "
     "node 0\npush every batch, pull every 3 batches, staleness at most 2"),
    ("solver: diloco", "diloco, 2 shards on node 0, node 1\n"
     "push every batch, all wait for one another"),
    ("solver: own, shards: 1",
     "own, 1 shard on node 0\npush every batch, waiting is up to its class"),
    ("solver: own, shards: 1, staleness: 1",
     "own, 1 shard on node 0\npush every batch, staleness at most 1"),
])  # fmt: skip
def test_the_parameter_server_in_a_few_lines(settings, told):
    assert server_line(with_server(settings).files) == told


def test_learners_have_a_row_for_their_pushes_and_nodes_one_for_their_server(capsys):
    learners = [
        process("learner", 0, "n1", loss=0.1, samples_per_s=500.0, batches=310.0, pushes=62.0,
                pushes_per_s=12.0, staleness=1.96, wait_share=0.043, restarts=2.0),
        process("learner", 1, "n2", pushes_per_s=8.0, wait_share=None),
    ]  # fmt: skip
    servers = [
        process("server", 0, "n1", reason="serves"),
        process("server", 1, "n2", reason="its node was given up"),
    ]
    homes = Homes(1, [0, 0, 0], [1])
    print_details(with_server(learners=learners, servers=servers, homes=homes))
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "parameter server elastic_averaging, 3 shards on n1" in rows
    assert any(re.fullmatch(r"0 n1 TRAINING 3 1200 \d+ s ago", row) for row in rows)
    assert rows[rows.index("metrics of learner 0:") :][:2] == ["metrics of learner 0:", "loss 0.1"]
    assert "0 310 12 2.0 4 % 2" in rows
    assert "1 - 8 - - 0" in rows
    assert "800 samples/s · 20 pushes/s in all" in rows  # each push 5 batches of 32 / 4
    assert "0 n1 TRAINING shards 0, 1, 2 2 s ago" in rows
    assert "1 n2 lost - 2 s ago" in rows
    assert "500 samples/s" not in out
    assert max(map(len, out.splitlines())) <= 80


WHY = "was killed by signal 9; restarting"


@pytest.mark.parametrize(("learners", "state", "rows"), [
    ([process("learner", 0, "n1", State.DEPLOYING, WHY),
      process("learner", 1, "n2", State.FAILED, "was lost with node n2")], State.TRAINING,
     [f"0 n1 DEPLOYING: {WHY} 3 1200", "1 n2 FAILED: was lost with node n2 3 1200"]),
    ([process("learner", 0, "n1", exit_code=0, pushes_per_s=3.0),
      process("learner", 1, "n2", State.FAILED, pushes_per_s=3.0)], State.TRAINING, []),
    ([process("learner", 0, "n1", State.FAILED, "killed from outside", pushes_per_s=3.0)],
     State.FAILED, ["0 n1 FAILED: killed from outside 3 1200"]),
])  # fmt: skip
def test_learners_that_are_not_at_work_say_why_and_push_no_more(capsys, learners, state, rows):
    print_details(with_server(learners=learners, servers=[process("server", 0, "n1")],
                              verdict=failed("learner", 1, "", ["srun: no"]),
                              record={"state": state}))  # fmt: skip
    out = capsys.readouterr().out
    found = [" ".join(line.split()) for line in out.splitlines()]
    for row in rows:
        assert any(line.startswith(row) for line in found), row
    assert "pushes/s in all" not in out
    assert "last lines of learner 1:\n  srun: no" in out, "it never began: on no node"


def test_of_a_program_only_the_pushes_are_known(capsys):
    known = with_server(learners=[process("learner", 0, "n1", pushes_per_s=3.0)])
    plan = known.files.plan
    program = replace(plan.framework, job=None, command="python mine.py")
    files = replace(known.files, plan=replace(plan, framework=program))
    print_details(replace(known, files=files))
    assert capsys.readouterr().out.splitlines()[-1] == "3 pushes/s in all"
    server = replace(plan.parameter_server, push_every=2, batch_samples=11)
    plan = replace(plan, parameter_server=server)
    learner = process("learner", 0, "n1", pushes_per_s=10.0)
    assert rates([learner], plan) == "220 samples/s · 10 pushes/s in all", "of the built-in loop"


# The story, its verdict, and its chain ------------------------------------------------------------

NOW, LONG_PLAN = time.time(), make_plan()
LONG = "learner 1 on n2 ended with exit code 3, and nobody knows why, " * 8
RECORD = {
    "training_id": "digits-abcdefgh", "name": "digits", "state": State.FAILED,
    "reason": LONG, "site": "mycluster", "attempt": 3, "job_id": "4711",
    "done": 0.4, "epoch": 3, "step": 120, "epochs": 8, "folder": "~/digits",
    "started_at": NOW - 7200, "ended_at": NOW - 3600,
    "job_dir": "/lustre/home/me/dl/jobs/digits-abcdefgh", "hint": "dlctl resume digits-abcdefgh",
}  # fmt: skip
LAST = [f"line {n} {LONG}\x1b]0;title\x07" for n in range(40)]
QUESTIONS = ("improving?", "over-fitting?", "fast?", "healthy?", "learners equal?", "checkpoint?")
ANSWERS = [Answer(question, question, "yes", f"yes, {LONG}") for question in QUESTIONS]


def story(last=LAST, plan=LONG_PLAN, **record):
    evidence = Evidence("learner", 1, "n2", 3, None, last, "FAILED", "NonZeroExitCode")
    verdict = Verdict(3, "4711", State.FAILED, LONG, kind="user_error", evidence=evidence,
                      action=Action(Next.STOP, LONG))  # fmt: skip
    order = Ordered("digits-abcdefgh", 1, State.TRAINING, {"learning_rate": 0.1}, save=False)
    states = (State.TRAINING, State.FAILED, State.TRAINING)
    learners = [process("learner", rank, "n1", state) for rank, state in enumerate(states)]
    waits = record.get("state") is State.PENDING
    return make_details(
        plan=plan, verdict=None if waits else verdict, learners=[] if waits else learners,
        orders=[order], insight=Insight(ANSWERS, left=TimeLeft(600.0, 660.0, 720.0)),
        record={**RECORD, **record},
    )  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_a_screen_whatever_there_is_to_tell(on_terminal, columns):
    lines = on_terminal(lambda: print_story(story()), columns).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    for told in ("FAILED on mycluster, attempt 3, job 4711", "40 %  epoch 3/8  step 120",
                 "2 TRAINING, 1 FAILED", "checkpoint?", "line 39",
                 "dlctl resume digits-abcdefgh", "dlctl show digits-abcdefgh --all",
                 "/lustre/home/me/dl/jobs/digits-abcdefgh"):  # fmt: skip
        assert told in text, told
    assert "\x1b" not in text


def test_at_40_columns_no_line_is_wider_but_the_hint(on_terminal):
    last = ["\x1b[31mred\x1b[0m \x1b]0;title\x07" + "漢" * 40]
    screen = on_terminal(lambda: print_story(story(last)), 40)
    wide = [line for line in screen.splitlines() if width_of(line) > 40]
    assert [line for line in wide if not line.startswith("  hint: ")] == []
    assert "  red \\x1b]0;title\\x07漢" in screen


def test_a_pipe_gets_whole_sentences(capsys):
    print_story(story(hint="Continue with: dlctl resume digits-abcdefgh"))
    printed = capsys.readouterr()
    assert printed.out.count(LONG.strip()) >= 5
    assert "  hint: Continue with: dlctl resume" in printed.err  # "next: Continue with: …"


def test_it_says_when_a_job_starts_or_ends_once(capsys):
    waits = "waiting in the queue: other jobs go first (Priority)"
    print_story(story(state=State.PENDING, started_at=0.0, starts_at=time.time() + 2400,
                      reason=waits))  # fmt: skip
    told = capsys.readouterr().out
    assert "PENDING on mycluster, attempt 3, job 4711; starts at about" in told
    assert "in 40 min" in told and "why" in told
    print_story(story(state=State.TRAINING, ended_at=0.0))
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "time left" in each]
    assert line.split() == ["time", "left", "10", "min", "to", "12", "min"]


def test_a_warning_is_not_repeated_by_the_hint(capsys):
    how = ".gitignore:1 leaves it out. To send it, add the line !/data/ to .dlctlignore."
    lacks = [f"framework.command:1 names data/x, which is not sent: {how}", "gpu_type is ignored"]
    hint = f"data/x was not sent with the folder: {how} Then: dlctl resume"
    print_story(story(plan=replace(LONG_PLAN, not_in_this_version=lacks), hint=hint))
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("To send it") == 1
    assert "gpu_type is ignored" in printed


def shown(**more):
    verdict = Verdict(1, "7", State.FAILED, "It failed.", **more)
    fields = verdict_fields(make_details(verdict=verdict))
    return {name: text for name, text in fields.items() if text}


def test_a_fault_its_evidence_and_the_retry():
    told = shown(
        kind=VerdictKind.GPU_ERROR,
        evidence=Evidence("learner", 1, "n2", 3, None, ["broken"], "TIMEOUT", ""),
        action=Action(
            Next.RETRY, "retry 1 of 3, from the newest checkpoint", 2, "job", exclude=["n2"],
            memory_factor=1.5, not_before=time.time() + 100,
        ),
    )  # fmt: skip
    assert told["kind"] == "gpu_error"
    assert told["evidence"] == "learner 1 on n2, exit code 3; the scheduler says TIMEOUT"
    runs = Evidence("learner", 1, "n2", 3, None, ["broken"], "RUNNING", "")
    assert shown(evidence=runs)["evidence"] == "learner 1 on n2, exit code 3"
    assert told["next"].startswith(
        "attempt 2, submitted by the ending job: retry 1 of 3, from the newest checkpoint; "
        "not on n2; with 1.5 times the memory; in "
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, {}),
        ({"evidence": Evidence(scheduler_state="TIMEOUT", scheduler_reason="TimeLimit")},
         {"evidence": "the scheduler says TIMEOUT (TimeLimit)"}),
        ({"evidence": Evidence("learner", 0, "", None, 9)}, {"evidence": "learner 0, signal 9"}),
        ({"action": Action(Next.STOP, "it would happen again")},
         {"next": "no attempt: it would happen again"}),
        ({"action": Action(Next.NOTHING, "a person ended it")}, {}),
    ],
)  # fmt: skip
def test_what_is_not_known_is_left_out(more, told):
    assert shown(**more) == told
    assert not any(verdict_fields(make_details(verdict=None)).values())


def test_a_chain_is_told_at_submission_and_later(capsys):
    plan = make_plan(time_s=4 * 3600)
    plan = replace(plan, batch=replace(plan.batch, partition="short"))
    _say_links(plan, Shown())
    _say_links(replace(plan, lifecycle=Lifecycle(links=1)), Shown())
    assert capsys.readouterr().err == ""
    chain = replace(plan, lifecycle=Lifecycle(links=85))
    _say_links(chain, Shown())
    said = " ".join(capsys.readouterr().err.split())
    assert said == (
        "the partition short allows 4h a job: a chain of about 85 jobs, the next one "
        "submitted by the ending job"
    )
    assert asked_in_words(chain).endswith("4h in each of about 85 jobs")
    assert asked_in_words(plan).endswith("at most 4h")
