"""`dlctl show` says what kind of end it was, by which evidence, and what follows."""

import time

import pytest
from made_details import make_details

from dlctl.cli import output
from dlctl.cli.views.training import verdict_fields
from dlctl.contract import Action, Evidence, Next, State, Verdict, VerdictKind


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
