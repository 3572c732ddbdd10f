"""What `dlctl show` tells of several attempts, and of where the time of a step goes."""

import re
from dataclasses import replace

import pytest
from login_side import MANIFEST, make_site, plan_of
from made_details import make_details, process
from scheduler_plan import make_plan

from dlctl.cli.views.learners import rates, server_line, speed_line
from dlctl.cli.views.training import _per_attempt, print_details
from dlctl.contract import Evidence, Homes, State, Training, Verdict
from dlctl.outputs.insight import Attempt
from dlctl.record import Record

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


@pytest.mark.parametrize(("metrics", "line"), [
    ([], ""),
    ([{"loss": 1.0}], ""),
    ([{"exchange_s": 0.1}], ""),
    ([{"samples_per_s": 0.0, "exchange_s": 0.1}], ""),
    ([{"samples_per_s": None, "memory_bytes": None}], ""),
    ([{"memory_bytes": 1 << 30}, {"memory_bytes": 3 << 30}], "3 GiB of memory each at most"),
    ([{"samples_per_s": 100.0, "exchange_s": 0.02, "data_wait_s": 0.005,
       "checkpoint_stall_s": 0.001},
      {"exchange_s": 0.01, "data_wait_s": 0.005, "checkpoint_stall_s": None}],
     "100 samples/s · exchange 3 % · data 1 % · checkpoint 0.2 % of a step just now"),
    ([{"step_s": 0.1, "exchange_s": 0.05, "data_wait_s": 0.0}],
     "exchange 50 % · data 0 % of a step just now"),
])  # fmt: skip
def test_where_the_time_of_a_step_goes(metrics, line):
    assert speed_line(metrics, PLAN) == line


def test_memory_that_the_node_has_measured_is_told_once():
    assert speed_line([{"memory_bytes": 1 << 30}], PLAN, memory=False) == ""


def test_of_many_metrics_the_first_are_printed(capsys):
    learner = process("learner", 0, "n1", **{f"norm{n}": 1.0 for n in range(1020)})
    print_details(make_details(learners=[learner]))
    lines = capsys.readouterr().out.splitlines()
    told = lines[lines.index("metrics:") + 1 :]
    assert (told[19], told[20]) == (
        "  norm19  1", "  and 1,000 more, which `dlctl metrics` prints",
    )  # fmt: skip


def test_the_shares_stand_below_the_learners_and_not_in_their_row(capsys):
    learner = process("learner", 0, "n1", loss=0.5, step_s=0.1, exchange_s=0.003)
    print_details(make_details(learners=[learner], attempts=attempts(2, 1)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "exchange 3 % of a step just now"
    assert lines[-4:-1] == ["metrics:", "  loss  0.5", ""]
    assert "exchange_s" not in "".join(lines)
    assert any("2 in attempt 1, 1 from attempt 2 on" in line for line in lines)


def test_a_warning_of_a_learner_that_trains_is_shown(capsys):
    learners = [process("learner", 0, "n1", reason="nothing reads RANK"),
                process("learner", 1, "n1")]  # fmt: skip
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
    told = make_details(learners=learners, record={"reason": reason})
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(lambda: print_details(told), 60))
    assert "RuntimeError: wrong shape\n" in shown
    speed = "6624 samples/s · 1 GiB of memory each at most\n· exchange 10 % of a step just now\n"
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
    assert server_line(with_server(settings).told) == told


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
    assert "0 n1 TRAINING 3 1200 2 s ago" in rows
    assert rows[rows.index("metrics of learner 0:") :][:2] == ["metrics of learner 0:", "loss 0.1"]
    assert "0 310 12 2.0 4 % 2" in rows
    assert "1 - 8 - - 0" in rows
    assert "800 samples/s · 20 pushes/s in all" in rows  # each push 5 batches of 32 / 4
    assert "0 n1 TRAINING shards 0, 1, 2 2 s ago" in rows
    assert "1 n2 lost - 2 s ago" in rows
    assert "500 samples/s" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_learners_that_are_not_at_work_say_why(capsys):
    why = "was killed by signal 9; restarting"
    dead = process("learner", 0, "n1", State.DEPLOYING, why)
    lost = process("learner", 1, "n2", State.FAILED, "was lost with node n2")
    print_details(with_server(learners=[dead, lost]))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(row.startswith(f"0 n1 DEPLOYING: {why} 3 1200") for row in rows)
    assert any(row.startswith("1 n2 FAILED: was lost with node n2 3 1200") for row in rows)


def test_the_last_words_of_a_learner_that_never_began_are_of_no_node(capsys):
    print_details(with_server(verdict=failed("learner", 1, "", ["srun: no"])))
    assert "last lines of learner 1:\n  srun: no" in capsys.readouterr().out


def test_learners_that_have_ended_push_no_more(capsys):
    ended = process("learner", 0, "n1", exit_code=0, pushes_per_s=3.0)
    lost = process("learner", 1, "n2", State.FAILED, pushes_per_s=3.0)
    print_details(with_server(learners=[ended, lost]))
    assert "pushes/s in all" not in capsys.readouterr().out


def test_nobody_is_at_work_in_a_training_that_has_ended(capsys):
    """The supervisor died, and all with it: the last that they wrote is that they train."""
    learners = [process("learner", 0, "n1", pushes_per_s=3.0)]
    servers = [process("server", 0, "n1")]
    print_details(with_server(learners=learners, servers=servers,
                              record={"state": State.FAILED}))  # fmt: skip
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert any(row.startswith("0 n1 was TRAINING 3 1200") for row in rows)
    assert any(row.startswith("0 n1 was TRAINING shards 0, 2") for row in rows)
    assert "pushes/s in all" not in out


def test_of_a_program_only_the_pushes_are_known(capsys):
    known = with_server(learners=[process("learner", 0, "n1", pushes_per_s=3.0)])
    plan = known.told.plan
    program = replace(plan.framework, job=None, command="python mine.py")
    told = replace(known.told, plan=replace(plan, framework=program))
    print_details(replace(known, told=told))
    assert capsys.readouterr().out.splitlines()[-1] == "3 pushes/s in all"


def test_with_the_built_in_loop_samples_are_those_of_all_pushes():
    plan = with_server("push_every: 2, shards: 1").told.plan
    plan = replace(plan, parameter_server=replace(plan.parameter_server, batch_samples=11))
    learner = process("learner", 0, "n1", pushes_per_s=10.0)
    assert rates([learner], plan) == "220 samples/s · 10 pushes/s in all"
