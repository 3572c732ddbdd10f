"""How long a chain of jobs is, as `submit` and `show` say it."""

from dataclasses import replace

from scheduler_plan import make_plan

from dlctl.cli.output import Shown
from dlctl.cli.views.training import _asked
from dlctl.contract import Lifecycle
from dlctl.service.submit import _say_links


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
