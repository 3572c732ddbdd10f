"""The plan of a rehearsal, and the forecast that its figures allow."""

from dataclasses import replace

import pytest
from login_side import make_site, plan_of

from dlctl.contract import Framework, Notify, ParameterServer, Rehearsed
from dlctl.errors import PlanError
from dlctl.plan.rehearsal import forecast, rehearsal_plan
from dlctl.plan.render import render

SITE = make_site(more="partitions:\n  short: {nodes: 4, cpus_per_node: 8, max_time: 1h}\n")


def job_plan(**asked):
    framework = Framework("pytorch", None, None, "train.py")
    return replace(plan_of(site=SITE, **asked), framework=framework)


def test_a_rehearsal_is_one_short_job_that_tells_nobody():
    plan = replace(job_plan(time="14d"), notify=Notify(["finished"], email="a@b.example"))
    short = rehearsal_plan(plan, 20, 900)
    assert (short.resources.time_s, short.resources.halt_margin_s) == (900, 120)
    assert (short.notify, short.rehearsal.steps, short.lifecycle.retries) == (None, 20, 0)
    script = render(short)
    assert "--time=0:15:00" in script or "--time=00:15:00" in script
    assert "--no-requeue" in script and "mail" not in script


def test_what_has_no_steps_of_its_own_is_refused_with_the_reason():
    plan = job_plan()
    command = replace(plan, framework=Framework("pytorch", None, "python train.py", None))
    with pytest.raises(PlanError, match="steps of a `framework.command`"):
        rehearsal_plan(command, 20, 900)
    server = ParameterServer("downpour_sgd", [0])
    with pytest.raises(PlanError, match="no two runs are alike"):
        rehearsal_plan(replace(plan, parameter_server=server), 20, 900)


def test_the_forecast_counts_jobs_and_hours():
    plan = job_plan(time="14d", learners=2, nodes=2)
    found = Rehearsed(True, 20, total_steps=7200, step_s=1.0, start_s=10.0)
    whole = forecast(plan, found)
    assert whole is not None and whole.links == 3  # 3470 s of each hour
    assert whole.hours == pytest.approx(7230 / 3600) and whole.asked_hours == 14 * 24
    assert whole.node_hours == pytest.approx(2 * whole.hours) and whole.gpu_hours == 0
    assert forecast(plan, Rehearsed(True, 20, step_s=1.0)) is None
