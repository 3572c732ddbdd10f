"""Suggestions, with numbers that can be checked by hand, and what they say they rest on."""

from dataclasses import replace

import pytest
from login_side import make_manifest, make_site, plan_of
from made_past import GIB, MIB, past

from dlctl.contract.measured.interval import best_interval_s, sensible_interval_s
from dlctl.suggest import waits
from dlctl.suggest.evidence import far_off
from dlctl.suggest.judge import judge

SITE = make_site(more="failures: {node_mtbf: 30d}")
TEXT = """\
name: digits
learners: 2
cpus: 8
memory: 32GiB
time: 40h
framework: {name: pytorch, job: train.py}
training: {epochs: 10, batch_size: 64}
"""


def suggestions(*same, others=(), text=TEXT, site=SITE, **overrides):
    found = judge(make_manifest(text, **overrides), site, same, [*same, *others])
    return {each.key: each for each in found}


def suggested(*same, **how):
    return {key: each.suggested for key, each in suggestions(*same, **how).items()}


def test_memory_is_the_peak_and_a_fifth_told_apart_by_learners():
    known = [past(n, memory_bytes=int((3.1 + n / 10) * GIB)) for n in range(4)]
    other = past(9, learners=1, memory_bytes=10 * GIB)
    found = suggestions(*known, other)["memory"]
    assert (found.asked, found.suggested) == ("32GiB", "4352MiB"), "1.2 × 3.385 GiB, rounded up"
    assert found.evidence == "4 trainings with 2 learners: 3.1 to 3.4 GiB"
    found = suggestions(other)["memory"]
    assert found.suggested == "12GiB" and found.evidence.startswith(
        "1 training with 1 learner, not 2"
    )
    assert suggested(past(memory_bytes=300 * MIB))["memory"] == "448MiB", (
        "little leaves room for what runs beside the learner"
    )
    failed = past(2, state="FAILED", kind="out_of_memory", memory_asked_bytes=4 * GIB, steps=0)
    found = suggestions(past(memory_bytes=GIB), failed, failed)["memory"]
    assert found.suggested == "6GiB", "it counts more than the peaks"
    assert found.evidence.endswith("4 GiB was too little twice")


def test_what_failed_at_once_says_nothing():
    nothing = dict.fromkeys(("step_s", "epoch_samples", "exchange_share", "save_s"))
    failed = [past(n, state="FAILED", kind="user_error", steps=0, memory_bytes=MIB, **nothing)
              for n in range(2, 20)]  # fmt: skip
    assert suggestions(past(), *failed)["memory"].evidence == "1 training with 2 learners: 3 GiB"
    found = suggestions(*failed)
    assert {each.suggested for each in found.values()} == {""}
    assert all(each.evidence.startswith("too little: ") for each in found.values())


def test_time_is_that_of_all_steps_and_a_quarter_with_start_and_store():
    found = suggestions(past(validation_s=6.0))["time"]
    # 10 epochs of 100 steps of 0.5 s, 10 validations of 6 s: 560 s × 1.25, and 30 s around them.
    assert found.suggested == "13m" and found.asked == "40h"
    assert found.evidence == "1 training: 1000 steps of 500 ms, 30 s to start and store"
    assert suggested(past(), learners=4)["time"] == ""
    assert "only with 2" in suggestions(past(), learners=4)["time"].evidence
    elsewhere = suggestions(past(site="other"))
    assert elsewhere["time"].suggested == "" and elsewhere["memory"].suggested == "3840MiB"


def test_the_time_of_a_program_is_that_of_whole_trainings():
    text = "name: x\nlearners: 2\nframework: {name: sh, command: ./train}\n"
    own = {"epochs": 0, "step_s": None, "steps": 0, "epoch_samples": None, "save_s": None}
    known = [past(1, held_s=600.0, state="HALTED", **own),
             past(1, attempt=2, held_s=1200.0, **own), past(2, held_s=900.0, **own),
             past(3, held_s=10.0, state="FAILED", **own)]  # fmt: skip
    found = suggestions(*known, text=text)
    assert found["time"].suggested == "37m", "1.25 × 1755 s"
    assert found["time"].evidence == "2 trainings: 15 to 30 min"
    assert "checkpoint.every" not in found


def test_what_is_enough_and_not_far_more_stays():
    enough = suggestions(past(), memory="5GiB", cpus=2)
    assert not enough["memory"].is_change and enough["memory"].suggested == "5GiB"
    assert not enough["cpus"].is_change
    found = suggestions(past(cpus_used=7.9))["cpus"]
    assert not found.is_change and "more `cpus` may make it faster" in found.evidence
    assert suggested(past(memory_bytes=None))["cpus"] == "", "memory may come with them"
    found = suggestions(past(cpus_used=2.4), past(2, cpus_used=2.5))["cpus"]
    assert (
        found.suggested == "3" and found.evidence == "2 trainings with 2 learners: 2.4 to 2.5 used"
    )


def test_gpus_that_stayed_idle_are_too_many():
    text = TEXT + "gpus: 4\n"
    assert suggested(past(), text=text)["gpus"] == ""
    found = suggestions(past(gpus=4, gpus_used=1), past(2, gpus=4, gpus_used=2), text=text)["gpus"]
    assert (found.suggested, found.evidence) == (
        "2", "2 trainings: at most 2 GPUs of a learner busy, 2 to 3 idle",
    )  # fmt: skip


def test_twice_as_many_learners_halve_the_computing_only():
    found = suggestions(past())["learners"]
    # 0.8 / 2 + 0.2 × (3/4) / (1/2) = 0.7 of a step.
    assert found.evidence.endswith("4 would be 1.4 times as fast at 1.4 times the cost")
    assert not found.is_change
    found = suggestions(past(), past(2, learners=4, step_s=0.4))["learners"]
    assert found.evidence == "2 trainings: 4 were 1.2 times as fast at 1.6 times the cost"
    assert suggestions(past(learners=4), learners=1)["learners"].evidence == (
        "one learner exchanges nothing; a training with two would tell"
    )


def test_the_interval_is_youngs_and_dalys_with_the_faults_that_were_seen():
    assert best_interval_s(2.0, 100.0) == pytest.approx(20.0)
    assert best_interval_s(300.0, 100.0) == 100.0
    assert sensible_interval_s(1.0, None) == 24 * 3600 and sensible_interval_s(0.0, 10.0) == 10.0
    long = TEXT.replace("epochs: 10", "epochs: 1000")
    found = suggestions(past(), text=long)["checkpoint.every"]
    assert found.suggested == "54m", "sqrt(2 × 2 s × 30 d)"
    day = 86400.0
    lost = [past(n, held_s=day, state="FAILED", kind="node_lost") for n in range(2, 5)]
    found = suggestions(past(), *lost, text=long)["checkpoint.every"]
    # (3 days and 30) / (3 faults and 1) = 8.25 days.
    assert found.suggested == "28m"
    assert found.evidence == (
        "4 trainings: 2 s a checkpoint; 3 faults in 72 node-hours, and the site file's one in 30d "
        "a node"
    )


@pytest.mark.parametrize(
    ("every", "epochs"), [("40m", 1000), ("auto", 1000), ("60 epochs", 1000), ("1 epoch", 10)]
)
def test_an_interval_that_is_near_the_best_stays_and_so_does_that_of_a_short_training(
    every, epochs
):
    """The best is 54 min; an epoch takes 50 s."""
    text = TEXT.replace("epochs: 10", f"epochs: {epochs}") + f"checkpoint: {{every: {every}}}\n"
    found = suggestions(past(), text=text)["checkpoint.every"]
    assert (found.asked, found.suggested) == (every, every)
    assert ("longer than the training" in found.evidence) == (epochs == 10)


# Waiting ------------------------------------------------------------------------------------------


def queued(partition, seconds, first):
    return [past(first + n, partition=partition, queued_s=each) for n, each in enumerate(seconds)]


def test_the_partition_in_which_jobs_waited_least():
    slow, fast = queued("long", [3600, 7200, 9000], 1), queued("short", [30, 60, 90], 4)
    manifest, names = make_manifest(TEXT), ["long", "short"]
    found = waits.partition(manifest, "long", names, [*slow, *fast], lambda _: True)
    assert found.suggested == "short"
    assert found.evidence == "long: 3 jobs waited 2 h; short: 3 jobs waited 60 s"
    unfit = waits.partition(manifest, "long", names, [*slow, *fast], lambda name: name == "long")
    assert not unfit.is_change
    few = waits.partition(manifest, "long", names, [*slow, *fast[:2]], lambda _: True)
    assert few.suggested == "" and few.evidence.startswith("too little")


def test_a_start_is_never_one_number():
    known = queued("short", [60.0, 120.0, 600.0], 1)
    shared = replace(known[0], attempt=2, queued_s=0.0)  # of the same job
    found = waits.start([*known, shared], "short", 180.0, "")
    assert found.sentence == (
        "planned in 3 min; your 3 jobs in short waited 2 min in the median, nine of ten at most "
        "8.4 min"
    )
    nothing = waits.start([], "short", 180.0, "")
    assert nothing.sentence == "planned in 3 min; no earlier job of yours in short is known"
    silent = waits.start(known, "short", None, "Slurm says: no")
    assert silent.sentence.startswith("Slurm says: no; your 3 jobs")


# One line for a submission ------------------------------------------------------------------------


def test_a_submission_that_asks_for_far_more_than_was_ever_used():
    plan = plan_of(TEXT)
    told = far_off([plan], [past(), past(2, memory_bytes=4 * GIB)])
    assert told.startswith("asks for 32 GiB of memory where at most 4 GiB was used and 40 h where "
                           "at most 16.7 min was used by 2 trainings")  # fmt: skip
    assert far_off([plan], [past(memory_bytes=11 * GIB, held_s=14400.0)]) == ""
    assert far_off([plan], [past(state="FAILED")]) == "", "nobody knows what it would have used"
    assert far_off([plan], [past(name="other", code_digest="x")]) == ""
    assert "32 GiB" in far_off([plan], [past(name="other")]), "the same code"
    assert far_off([plan_of(TEXT, memory="900MiB", time="10m")], [past(memory_bytes=MIB)]) == ""


# Nothing that passes may fail by a suggestion ----------------------------------------------------


def test_a_killed_training_counts_until_a_later_one_has_done_with_no_more():
    killed = past(1, state="FAILED", kind="out_of_memory", memory_asked_bytes=4 * GIB,
                  memory_bytes=4 * GIB, steps=7)  # fmt: skip
    more = past(2, memory_asked_bytes=6 * GIB, memory_bytes=int(5.5 * GIB))
    assert suggested(killed)["memory"] == "6GiB"
    assert suggested(killed, more)["memory"] == "6912MiB", "1.2 × the peak"
    assert "4 GiB was too little once" in suggestions(killed, more)["memory"].evidence
    mended = past(3, memory_asked_bytes=2 * GIB, memory_bytes=GIB)
    assert suggested(killed, mended)["memory"] == "4864MiB", "its peak stays"
    assert "too little" not in suggestions(killed, mended)["memory"].evidence
    assert "4 GiB was too little once" in suggestions(mended, killed)["memory"].evidence
    unasked = replace(killed, memory_asked_bytes=None)
    assert suggested(unasked)["memory"] == "6GiB", "what it had used is known"
    low = [past(n, memory_bytes=GIB) for n in range(40)]
    high = past(40, memory_bytes=3 * GIB)
    assert suggested(*low, high)["memory"] == "3GiB", "one high peak is not cut off"


def test_a_rehearsal_counts_only_where_no_training_is_known_and_with_more_room():
    rehearsed = past(1, is_rehearsal=True, memory_bytes=2 * GIB, cpus_used=1.0, held_s=9.0)
    found = suggestions(rehearsed)
    assert found["memory"].suggested == "4GiB"
    assert found["memory"].evidence == "1 rehearsal with 2 learners: 2 GiB"
    assert found["time"].suggested == "", "it was over long before its training would be"
    assert "0 faults in 0 node-hours" in found["checkpoint.every"].evidence
    found = suggestions(rehearsed, past(2, memory_bytes=GIB))["memory"]
    assert found.evidence == "1 training with 2 learners: 1 GiB" and found.suggested == "1280MiB"
    assert waits.waits([rehearsed], "short") == []
    assert far_off([plan_of(TEXT)], [rehearsed]) == ""


def test_the_time_is_never_less_than_what_such_trainings_took():
    slow = past(1, epochs=10, held_s=3000.0)  # its steps alone would take 530 s × 1.25
    assert suggested(slow)["time"] == "50m"
    assert suggested(replace(slow, epochs=9))["time"] == "11m"
    ended = replace(slow, training_id="digits-2", state="HALTED", kind="time_limit", held_s=4000.0)
    assert suggested(slow, ended)["time"] == "1h24m"


def test_smaller_batches_are_no_reason_for_less_memory():
    small = past(1, batch_size=16, memory_bytes=GIB)
    found = suggestions(small)["memory"]
    assert not found.is_change and "smaller than 64" in found.evidence
    assert suggested(small, past(2, memory_bytes=2 * GIB))["memory"] == "2560MiB"
    low = suggestions(small, memory="1GiB")["memory"]
    assert low.suggested == "1280MiB", "more can't hurt"
    program = TEXT.replace("job: train.py", "command: python train.py")
    assert suggested(replace(small, epochs=0), text=program)["memory"] == "1280MiB"


def test_a_site_fails_for_all_trainings():
    known = past(1, epochs=10, held_s=36000.0)
    lost = [past(n, name="other", kind="node_lost", held_s=3600.0) for n in range(2, 12)]
    alone, among = (suggestions(known, others=others)["checkpoint.every"] for others in ((), lost))
    assert "0 faults in 10 node-hours" in alone.evidence
    assert "10 faults in 20 node-hours" in among.evidence
