"""`dlctl show`: the story of a training on a screen of 80 × 24, its verdict, and its chain."""

import time
from dataclasses import replace

import pytest
from made_details import make_details, process
from scheduler_plan import make_plan

from dlctl.cli import output
from dlctl.cli.output import Shown
from dlctl.cli.views.training import _asked, print_story, verdict_fields
from dlctl.contract import Action, Evidence, Lifecycle, Next, State, Verdict, VerdictKind
from dlctl.lifecycle.orders import Ordered
from dlctl.outputs.insight import Insight
from dlctl.series.answers import Answer
from dlctl.series.pace import TimeLeft
from dlctl.service.submit import _say_links
from dlctl.terminal.text import width_of

NOW, PLAN = time.time(), make_plan()
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


def story(last=LAST, plan=PLAN, **record):
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


def test_a_job_that_waits_says_when_it_starts(capsys):
    print_story(story(
        state=State.PENDING, started_at=0.0, starts_at=time.time() + 2400,
        reason="waiting in the queue: other jobs go first (Priority)",
    ))  # fmt: skip
    told = capsys.readouterr().out
    assert (
        "PENDING on mycluster, attempt 3, job 4711; starts at about" in told and "in 40 min" in told
    )
    assert "why" in told


def test_the_time_left_does_not_say_left_twice(capsys):
    print_story(story(state=State.TRAINING, ended_at=0.0))
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "time left" in each]
    assert line.split() == ["time", "left", "10", "min", "to", "12", "min"]


def test_a_warning_is_not_repeated_by_the_hint(capsys):
    how = ".gitignore:1 leaves it out. To send it, add the line !/data/ to .dlctlignore."
    lacks = [f"framework.command:1 names data/x, which is not sent: {how}", "gpu_type is ignored"]
    hint = f"data/x was not sent with the folder: {how} Then: dlctl resume"
    print_story(story(plan=replace(PLAN, not_in_this_version=lacks), hint=hint))
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
        evidence=Evidence("learner", 1, "n2", 3, None, ["broken"], "RUNNING", ""),
        action=Action(
            Next.RETRY, "retry 1 of 3, from the newest checkpoint", 2, "job", exclude=["n2"],
            memory_factor=1.5, not_before=time.time() + 100,
        ),
    )  # fmt: skip
    assert told["kind"] == "gpu_error"
    assert told["evidence"] == "learner 1 on n2, exit code 3; the scheduler says RUNNING"
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


def test_without_a_verdict_nothing_is_said():
    assert not any(verdict_fields(make_details()).values())
    assert not any(verdict_fields(make_details(verdict=None)).values())


def test_it_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True, raising=False)
    action = Action(
        Next.STOP, "an error in the program, its data or the manifest would happen again"
    )
    verdict = Verdict(1, "7", State.FAILED, "", kind="user_error", action=action)
    output.fields(verdict_fields(make_details(verdict=verdict)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80


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
    assert _asked(chain).endswith("4h in each of about 85 jobs")
    assert _asked(plan).endswith("at most 4h")
