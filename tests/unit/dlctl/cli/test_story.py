"""`dlctl show` tells the whole story of a training on a screen of 80 × 24."""

import time

import pytest

from dlctl.cli.states.story import print_story
from dlctl.terminal.text import width_of

NOW = time.time()
LONG = "learner 1 on n2 ended with exit code 3, and nobody knows why, " * 8
STORY = {
    "training_id": "digits-abcdefgh", "name": "digits", "state": "FAILED",
    "shown_state": "FAILED", "reason": LONG, "site": "mycluster", "attempt": 3, "job_id": "4711",
    "done": 0.4, "epoch": 3, "step": 120, "epochs": 8, "folder": "~/digits",
    "started_at": NOW - 7200, "ended_at": NOW - 3600,
    "job_dir": "/lustre/home/me/dl/jobs/digits-abcdefgh", "hint": "dlctl resume digits-abcdefgh",
    "plan": None, "orders": [{"text": "tune learning_rate to 0.1"}],
    "verdict": {
        "kind": "user_error", "action": {"kind": "stop", "why": LONG},
        "evidence": {"role": "learner", "rank": 1, "host": "n2", "exit_code": 3, "signal": None,
                     "scheduler_state": "FAILED", "scheduler_reason": "NonZeroExitCode",
                     "last_lines": [f"line {n} {LONG}\x1b]0;title\x07" for n in range(40)]},
    },
    "learners": [
        {"rank": rank, "state": state, "step": 96, "metrics": {}}
        for rank, state in enumerate(["TRAINING", "FAILED", "TRAINING"])
    ],
    "time_left_s": {"low_s": 600.0, "middle_s": 660.0, "high_s": 720.0, "jobs": 0, "queue_s": None},
    "answers": [{"question": q, "text": f"yes, {LONG}", "state": "yes"} for q in (
        "improving?", "over-fitting?", "fast?", "healthy?", "learners equal?", "checkpoint?")],
}  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_a_screen_whatever_there_is_to_tell(on_terminal, columns):
    lines = on_terminal(lambda: print_story(STORY), columns).splitlines()
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
    verdict = {**STORY["verdict"], "evidence": {**STORY["verdict"]["evidence"],
                                                "last_lines": last}}  # fmt: skip
    screen = on_terminal(lambda: print_story({**STORY, "verdict": verdict}), 40)
    wide = [line for line in screen.splitlines() if width_of(line) > 40]
    assert [line for line in wide if not line.startswith("  hint: ")] == []
    assert "  red \\x1b]0;title\\x07漢" in screen


def test_a_pipe_gets_whole_sentences(capsys):
    print_story({**STORY, "hint": "Continue with: dlctl resume digits-abcdefgh"})
    printed = capsys.readouterr()
    assert printed.out.count(LONG.strip()) >= 5
    assert "  hint: Continue with: dlctl resume" in printed.err  # "next: Continue with: …"


def test_a_job_that_waits_says_when_it_starts(capsys):
    print_story({
        **STORY, "state": "PENDING", "shown_state": "PENDING", "verdict": None, "started_at": 0.0,
        "reason": "waiting in the queue: other jobs go first (Priority)", "learners": [],
        "starts_in_words": "starts at about 14:30, in 40 min",
    })  # fmt: skip
    told = capsys.readouterr().out
    assert "PENDING on mycluster, attempt 3, job 4711; starts at about 14:30, in 40 min" in told
    assert "why" in told


def test_the_time_left_does_not_say_left_twice(capsys):
    print_story({**STORY, "state": "TRAINING", "shown_state": "TRAINING", "ended_at": None})
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "time left" in each]
    assert line.split() == ["time", "left", "10", "min", "to", "12", "min"]


def test_a_warning_is_not_repeated_by_the_hint(capsys):
    how = ".gitignore:1 leaves it out. To send it, add the line !/data/ to .dlctlignore."
    lacks = [f"framework.command:1 names data/x, which is not sent: {how}", "gpu_type is ignored"]
    told = {**STORY, "plan": {"not_in_this_version": lacks}}
    print_story({**told, "hint": f"data/x was not sent with the folder: {how} Then: dlctl resume"})
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("To send it") == 1
    assert "gpu_type is ignored" in printed
