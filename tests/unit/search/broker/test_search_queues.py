"""The four queues, played with at random: each task gets exactly one result, and logs replay."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from search.broker.queues import MOST_DEATHS, PEER, Queues
from search.broker.replay import begin, replay, snapshot
from search.broker.shapes import Room, Shape
from search.protocol import messages as m

LEASE_S = 10.0
MODELS = ("one", "two")
WORKERS = ("w1", "w2", "w3")
ROOM = Room(1000, 0, 0, frozenset(), 0.0, for_each=True)


def make_task(number: int, **fields: object) -> m.Task:
    return m.Task(id=f"{number:032x}", type="python", time_limit_s=1, **fields)


def make_queues() -> tuple[Queues, list[tuple[int, bytes]]]:
    log: list[tuple[int, bytes]] = []
    return Queues(1, LEASE_S, lambda kind, payload: log.append((kind, payload))), log


def replayed(log: list[tuple[int, bytes]]) -> tuple[Queues, list[tuple[int, bytes]]]:
    """Return the next incarnation, and its own log."""
    own: list[tuple[int, bytes]] = []
    queues = Queues(2, LEASE_S, lambda kind, payload: own.append((kind, payload)))
    for kind, payload in log:
        replay(queues, kind, payload)
    begin(queues, 0.0, 1.0)
    return queues, own


def leased() -> tuple[Queues, list[tuple[int, bytes]], m.Lease]:
    """Let w1 run the only task: the queues, their log, the lease."""
    queues, log = make_queues()
    queues.submit("one", [make_task(1)], 10)
    (lease,) = queues.lease("w1", 1, ROOM, 0.0)
    return queues, log, lease


def report_of(lease: m.Lease, **more: object) -> m.Report:
    return m.Report(task_id=lease.task.id, lease_id=lease.id, **more)


def result_of(lease: m.Lease, outcome: m.Outcome, **more: object) -> m.Result:
    return m.Result(task_id=lease.task.id, lease_id=lease.id, outcome=outcome, **more)


def outcome_of(queues: Queues, model: str = "one") -> list[m.Result]:
    return [each.result for each in queues.results.mailbox(model).accepted]


def success(lease: m.Lease) -> m.Result:
    return result_of(lease, m.SUCCEEDED, value=b"1")


def test_a_task_goes_from_owned_to_processing_to_results():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    assert queues.status().owned == 1
    (lease,) = queues.lease("w1", 5, ROOM, 0.0)
    assert (queues.status().owned, queues.status().processing) == (0, 1)
    queues.accept("w1", [success(lease)], 1.0)
    assert (queues.status().processing, queues.status().results) == (0, 1)
    queues.results.forget("one", 1)
    assert queues.status().results == 0 and queues.outstanding == 0


def test_a_late_result_is_dropped_once_another_worker_has_the_task():
    queues, _, old = leased()
    queues.lapse(LEASE_S + 1)
    (new,) = queues.lease("w2", 1, ROOM, LEASE_S + 1)
    assert queues.accept("w1", [success(old)], LEASE_S + 2) == [old.task.id]
    assert outcome_of(queues) == [] and queues.counts["dropped"] == 1
    queues.accept("w2", [success(new), success(new)], LEASE_S + 3)
    assert len(outcome_of(queues)) == 1 and queues.counts["dropped"] == 2


def test_a_worker_that_was_cut_off_goes_on_if_nobody_else_has_the_task():
    queues, log, lease = leased()
    queues.lapse(LEASE_S + 1)
    assert queues.renew("w1", [report_of(lease)], LEASE_S + 2) == {}
    assert queues.lease("w2", 1, ROOM, LEASE_S + 2) == []
    assert queues.tasks[lease.task.id].task.deaths == 0  # its worker had not died
    queues.accept("w1", [success(lease)], LEASE_S + 3)
    assert len(outcome_of(queues)) == 1
    again, _ = replayed(log)
    assert not again.tasks


def test_a_lease_is_valid_until_there_is_a_newer_one_and_never_again():
    queues, _, old = leased()
    queues.lapse(LEASE_S + 1)
    (new,) = queues.lease("w2", 1, ROOM, LEASE_S + 1)
    queues.lapse(3 * LEASE_S)  # w2's lease has lapsed, too; nobody has the task
    assert queues.renew("w1", [report_of(old)], 3 * LEASE_S) == {old.task.id: m.STOP}
    queues.accept("w1", [success(old)], 3 * LEASE_S)
    assert queues.counts["dropped"] == 1
    queues.accept("w2", [success(new)], 3 * LEASE_S)
    assert [r.lease_id for r in outcome_of(queues)] == [new.id]


def test_of_leases_of_a_former_incarnation_the_newest_that_shows_up_is_valid():
    queues, log, old = leased()
    queues.lapse(LEASE_S + 1)
    (new,) = queues.lease("w2", 1, ROOM, LEASE_S + 1)
    for first, second in (((old, "w1"), (new, "w2")), ((new, "w2"), (old, "w1"))):
        again, _ = replayed(log)
        for lease, worker in (first, second):
            again.renew(worker, [report_of(lease)], 0.1)
        again.accept("w1", [success(old)], 0.2)
        assert outcome_of(again) == []
        again.accept("w2", [success(new)], 0.3)
        assert [r.lease_id for r in outcome_of(again)] == [new.id]


def test_the_death_of_a_worker_that_was_to_leave_is_not_the_tasks():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    now = 0.0
    for excused_from in (None, now, 5.0, 500.0):
        queues.lease("w1", 1, ROOM, now)
        queues.excuse("w1", None if excused_from is None else now + excused_from)
        now += LEASE_S + 1
        queues.lapse(now)
    assert queues.tasks[make_task(1).id].task.deaths == 2  # the first and the last


def test_renewed_leases_do_not_lapse():
    queues, _, lease = leased()
    for now in range(1, 60):
        queues.renew("w1", [report_of(lease)], float(now))
        assert queues.lapse(float(now)) == 0
    assert queues.lapse(59 + LEASE_S + 1) == 1


def test_a_broken_connection_ends_leases_early():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1), make_task(2)], 10)
    queues.lease("w1", 2, ROOM, 0.0)
    queues.lose("w1", 1.0, 0.5)
    assert queues.lapse(1.4) == 0
    assert queues.lapse(1.6) == 2


def test_three_deaths_are_a_failed_result():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    now = 0.0
    for number in range(MOST_DEATHS):
        (lease,) = queues.lease("w1", 1, ROOM, now)
        assert lease.task.deaths == number
        now += LEASE_S + 1
        queues.lapse(now)
    (result,) = outcome_of(queues)
    assert result.outcome == m.KILLED_WORKERS
    assert queues.lease("w1", 1, ROOM, now) == []


def test_a_task_that_is_handed_back_is_no_death_and_keeps_its_checkpoint():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    for _ in range(MOST_DEATHS + 1):
        (lease,) = queues.lease("w1", 1, ROOM, 0.0)
        back = result_of(lease, m.HANDED_BACK, checkpoint="here")
        queues.accept("w1", [back], 0.0)
    (lease,) = queues.lease("w1", 1, ROOM, 0.0)
    assert (lease.task.deaths, lease.task.checkpoint) == (0, "here")


def test_the_folder_of_a_run_that_may_go_on_is_given_to_nobody_else():
    queues, log = make_queues()
    theirs = f"search/tasks/{make_task(9).id}/checkpoint"
    queues.submit("one", [make_task(1), make_task(2, checkpoint=theirs)], 10)
    first, second = queues.lease("w1", 2, ROOM, 0.0)
    own = f"search/tasks/{first.task.id}/run-1"
    back = result_of(first, m.HANDED_BACK, checkpoint=own)
    queues.accept("w1", [back], 0.0)
    (again,) = queues.lease("w2", 1, ROOM, 0.0)
    assert again.task.checkpoint == own
    restarted, _ = replayed(log)
    restarted.lapse(2.0)
    restarted.lapse(2.0)
    assert {e.task.checkpoint for e in restarted.tasks.values()} == {"", theirs}
    queues.lapse(LEASE_S + 1)
    leases = queues.lease("w3", 2, ROOM, LEASE_S + 1)
    assert {lease.task.id: lease.task.checkpoint for lease in leases} == {
        first.task.id: "",
        second.task.id: theirs,
    }


def test_only_owned_tasks_are_lent_one_hop_deep():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    queues.help("b2", [m.Lease(task=make_task(2), id=77)])
    lent = queues.lease(PEER + "b3", 10, ROOM, 0.0, lend=True)
    assert [lease.task.id for lease in lent] == [make_task(1).id]
    assert queues.status().helper == 1


def test_owned_and_helped_tasks_take_turns():
    queues, _ = make_queues()
    queues.submit("one", [make_task(n) for n in range(10)], 100)
    queues.help("b2", [m.Lease(task=make_task(n), id=n) for n in range(10, 20)])
    leases = queues.lease("w1", 20, ROOM, 0.0)
    kinds = [int(lease.task.id, 16) >= 10 for lease in leases]
    assert all(sum(kinds[:n]) in (n // 2, (n + 1) // 2) for n in range(20))


def test_a_helped_result_goes_back_under_the_owners_lease():
    queues, log = make_queues()
    queues.help("b2", [m.Lease(task=make_task(2), id=77)])
    (lease,) = queues.lease("w1", 1, ROOM, 0.0)
    queues.accept("w1", [success(lease)], 1.0)
    (accepted,) = queues.results.helped["b2"].values()
    assert accepted.result.lease_id == 77
    again, _ = make_queues()
    for kind, payload in log:
        replay(again, kind, payload)
    assert list(again.results.helped["b2"]) == [lease.task.id]
    queues.results.given_back("b2", [lease.task.id])
    assert not queues.has_of("b2")


def test_a_task_that_is_lent_again_goes_on_where_it_is_under_the_newer_lease():
    queues, _ = make_queues()
    queues.help("b2", [m.Lease(task=make_task(2), id=77)])
    (runs,) = queues.lease("w1", 1, ROOM, 0.0)
    queues.help("b2", [m.Lease(task=make_task(2), id=78)])
    assert [report.lease_id for report in queues.helping("b2")] == [78]
    queues.accept("w1", [success(runs)], 1.0)
    (accepted,) = queues.results.helped["b2"].values()
    assert accepted.result.lease_id == 78


def test_a_task_that_is_being_stopped_does_not_take_a_newer_lease():
    """Its result, CANCELLED, must not count for the owner, who still wants it."""
    queues, _ = make_queues()
    queues.help("b2", [m.Lease(task=make_task(2), id=77)])
    queues.lease("w1", 1, ROOM, 0.0)
    queues.drop_helped("b2", [make_task(2).id])
    queues.help("b2", [m.Lease(task=make_task(2), id=78)])
    assert [report.lease_id for report in queues.helping("b2")] == [77]


def test_a_helped_task_that_its_owner_no_longer_wants_is_stopped():
    queues, _ = make_queues()
    queues.help("b2", [m.Lease(task=make_task(n), id=n) for n in (1, 2)])
    (runs,) = queues.lease("w1", 1, ROOM, 0.0)
    queues.drop_helped("b2", [make_task(1).id, make_task(2).id])
    assert [report.task_id for report in queues.helping("b2")] == [runs.task.id]
    assert queues.renew("w1", [report_of(runs)], 1.0) == {runs.task.id: m.STOP}


def test_a_restart_remembers_what_was_withdrawn_and_how_far_tasks_came():
    queues, log = make_queues()
    queues.submit("one", [make_task(1), make_task(2)], 10)
    leases = {lease.task.id: lease for lease in queues.lease("w1", 2, ROOM, 0.0)}
    queues.cancel("one", [make_task(1).id])
    lease = leases[make_task(2).id]
    back = result_of(lease, m.HANDED_BACK, checkpoint="here")
    queues.accept("w1", [back], 1.0)
    queues.lease("w2", 1, ROOM, 1.0)
    queues.lapse(LEASE_S / 2)
    queues.lose("w2", 6.0, 0.5)
    queues.lapse(7.0)
    again, _ = replayed(log)
    assert again.lease("w1", 9, ROOM, 0.5) == []  # for a moment they wait for their workers
    again.lapse(1.5)
    again.lapse(1.5)
    (result,) = outcome_of(again)
    assert (result.task_id, result.outcome) == (make_task(1).id, m.CANCELLED)
    (found,) = again.lease("w1", 9, ROOM, 1.5)
    assert (found.task.checkpoint, found.task.deaths) == ("here", 1)


def test_a_worker_goes_on_with_its_task_over_a_restart():
    queues, log, lease = leased()
    again, _ = replayed(log)
    assert again.renew("w1", [report_of(lease)], 0.5) == {}
    again.lapse(2.0)
    assert again.lease("w2", 1, ROOM, 2.0) == []
    again.accept("w1", [success(lease)], 3.0)
    assert [r.outcome for r in outcome_of(again)] == [m.SUCCEEDED]


def test_a_model_that_sends_more_than_there_is_room_for_is_told():
    queues, _ = make_queues()
    known, came = queues.submit("one", [make_task(n) for n in range(5)], 3)
    assert (len(known), came) == (3, 3)


def test_payloads_and_values_are_counted_over_a_restart():
    queues, log = make_queues()
    queues.submit("one", [make_task(n, payload=b"x" * 100) for n in range(3)], 10)
    (lease,) = queues.lease("w1", 1, ROOM, 0.0)
    result = success(lease)
    result.value = b"x" * 1000
    queues.accept("w1", [result], 1.0)
    again, _ = replayed(log)
    for each in (queues, again):
        assert (each.tasks.payload_bytes, each.results.value_bytes) == (200, 1000)


def test_what_was_counted_goes_on_over_restarts():
    queues, log = make_queues()
    queues.submit("one", [make_task(1), make_task(2), make_task(3), make_task(4)], 10)
    first, second, third = queues.lease("w1", 3, ROOM, 0.0)
    queues.lease(PEER + "b2", 1, ROOM, 0.0, lend=True)
    queues.accept("w1", [success(first), success(first)], 1.0)
    queues.results.forget("one", 1)
    failed = result_of(second, m.FAILED)
    queues.accept("w1", [failed], 1.0)
    queues.accept("w1", [failed], 1.0)
    again, more = replayed(list(snapshot(queues)))
    assert again.counts == {"accepted": 2, "failed": 1, "dropped": 2, "lent": 1}
    assert replayed(log)[0].counts == again.counts
    again.accept("w1", [success(third)], 0.5)
    once_more, _ = replayed([*snapshot(queues), *more])
    assert once_more.counts == {"accepted": 3, "failed": 1, "dropped": 2, "lent": 1}


def test_what_is_leased_at_once_fits_into_a_message():
    queues, _ = make_queues()
    queues.submit("one", [make_task(n, payload=b"x" * (15 << 20)) for n in range(5)], 10)
    assert len(queues.lease("w1", 5, ROOM, 0.0)) == 2


def test_deaths_at_a_broker_that_helps_count_at_the_owner():
    owner, _ = make_queues()
    helper, _ = make_queues()
    owner.submit("one", [make_task(1)], 10)
    for _ in range(MOST_DEATHS - 1):
        (lent,) = owner.lease(f"{PEER}helper", 1, ROOM, 0.0, lend=True)
        helper.help("owner", [lent])
        assert helper.lease("w1", 1, ROOM, 0.0)
        assert helper.lapse(LEASE_S + 1) == 1
        helper.hand_back_helped()
        back = [each.result for each in helper.results.helped["owner"].values()]
        helper.results.given_back("owner", [result.task_id for result in back])
        assert owner.accept(f"{PEER}helper", back, 0.0)
    assert owner.lease("w1", 1, ROOM, 0.0)
    assert owner.lapse(LEASE_S + 1) == 0
    (ended,) = owner.results.mailbox("one").accepted
    assert ended.result.outcome == m.KILLED_WORKERS


def test_a_task_that_waited_at_a_worker_that_died_has_no_death_and_waits_there_no_more():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    ahead = dataclasses.replace(ROOM, ahead=True)
    assert queues.lease("w1", 1, ahead, 0.0)
    queues.lapse(LEASE_S + 1)
    assert queues.tasks[make_task(1).id].task.deaths == 0
    assert queues.lease("w1", 1, ahead, LEASE_S + 1) == []
    now = LEASE_S + 1
    for number in range(MOST_DEATHS):  # it kills each worker: three deaths are counted all the same
        (lease,) = queues.lease("w1", 1, ROOM, now)
        assert lease.task.deaths == number
        now += LEASE_S + 1
        queues.lapse(now)
    assert [result.outcome for result in outcome_of(queues)] == [m.KILLED_WORKERS]


def run_at_a_helper() -> tuple[Queues, list[tuple[int, bytes]], Queues, m.Lease]:
    """Let w1 run, at a helper, a task that its owner lent: the owner, its log, helper, lease."""
    owner, log = make_queues()
    helper, _ = make_queues()
    owner.submit("one", [make_task(1)], 10)
    (lent,) = owner.lease(f"{PEER}helper", 1, ROOM, 0.0, lend=True)
    helper.help("owner", [m.Lease.FromString(lent.SerializeToString())])
    (lease,) = helper.lease("w1", 1, ROOM, 0.0)
    return owner, log, helper, lease


def test_deaths_at_a_broker_that_helps_are_not_lost_with_it():
    owner, log, helper, lease = run_at_a_helper()
    helper.lapse(LEASE_S + 1)
    owner.renew(f"{PEER}helper", helper.helping("owner"), LEASE_S - 1)
    assert owner.tasks[make_task(1).id].task.deaths == 1
    assert [e.task.deaths for e in replayed(log)[0].tasks.values()] == [1]
    helper.renew("w1", [report_of(lease)], LEASE_S + 2)  # its worker had not died
    owner.renew(f"{PEER}helper", helper.helping("owner"), LEASE_S - 1)
    assert owner.tasks[make_task(1).id].task.deaths == 0


def test_a_task_that_a_worker_hands_back_to_a_helper_keeps_the_deaths_counted_there():
    helper, _ = make_queues()
    helper.help("owner", [m.Lease(task=make_task(1), id=77)])
    helper.lease("w1", 1, ROOM, 0.0)
    helper.lapse(LEASE_S + 1)
    (lease,) = helper.lease("w1", 1, ROOM, LEASE_S + 1)
    back = result_of(lease, m.HANDED_BACK)
    helper.accept("w1", [back], LEASE_S + 2)
    assert [each.result.deaths for each in helper.results.helped["owner"].values()] == [1]


def test_a_report_at_a_broker_that_helps_reaches_the_model_once_with_its_step():
    owner, _, helper, lease = run_at_a_helper()
    report = report_of(lease, step=9, metrics={"loss": 0.5})
    helper.renew("w1", [report], 1.0)
    box = owner.results.mailbox("one")
    owner.renew(f"{PEER}helper", helper.helping("owner"), 1.0)
    assert [(r.step, dict(r.metrics)) for r in box.take_reports()] == [(9, {"loss": 0.5})]
    owner.renew(f"{PEER}helper", helper.helping("owner"), 2.0)
    assert not box.has_reports


def test_what_a_task_reports_last_comes_to_the_model_with_its_result():
    owner, _, helper, lease = run_at_a_helper()
    result = success(lease)
    result.report.MergeFrom(m.Report(task_id=lease.task.id, step=9, metrics={"loss": 0.5}))
    helper.accept("w1", [result], 1.0)
    (helped,) = helper.results.helped["owner"].values()
    owner.accept(f"{PEER}helper", [helped.result], 1.0)
    box = owner.results.mailbox("one")
    assert [dict(each.metrics) for each in box.accepted] == [{"loss": 0.5}]
    assert [(r.step, dict(r.metrics)) for r in box.take_reports()] == [(9, {"loss": 0.5})]


def test_another_models_tasks_can_not_be_cancelled():
    queues, _ = make_queues()
    queues.submit("one", [make_task(1)], 10)
    queues.cancel("two", [make_task(1).id])
    assert queues.status().owned == 1


class Broker(RuleBasedStateMachine):
    """A broker, workers that are slow, lost or twice there, and a restart at any moment."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.incarnation = 1
        self.log: list[tuple[int, bytes]] = []
        self.queues = Queues(1, LEASE_S, self.record)
        self.acknowledged: dict[str, set[str]] = {model: set() for model in MODELS}
        self.got: dict[str, list[str]] = {model: [] for model in MODELS}
        self.cursors = dict.fromkeys(MODELS, 0)
        self.leases: list[tuple[str, m.Lease]] = []
        self.numbers = 0

    def record(self, kind: int, payload: bytes) -> None:
        self.log.append((kind, payload))

    @rule(model=st.sampled_from(MODELS), count=st.integers(1, 4), room=st.integers(0, 4))
    def submit(self, model: str, count: int, room: int) -> None:
        tasks = []
        for _ in range(count):
            self.numbers += 1
            tasks.append(make_task(self.numbers, priority=self.numbers % 3, payload=b"four"))
        known, _ = self.queues.submit(model, tasks, room)
        self.acknowledged[model].update(known)

    @rule(model=st.sampled_from(MODELS))
    def submit_again(self, model: str) -> None:
        done = set(self.got[model])
        tasks = [m.Task(id=i, type="python") for i in sorted(self.acknowledged[model] - done)]
        _, came = self.queues.submit(model, tasks, 100)
        assert came == 0

    @rule(worker=st.sampled_from(WORKERS), want=st.integers(1, 3))
    def lease(self, worker: str, want: int) -> None:
        leases = self.queues.lease(worker, want, ROOM, self.now)
        self.leases += [(worker, m.Lease.FromString(each.SerializeToString())) for each in leases]

    @rule(data=st.data(), outcome=st.sampled_from([m.SUCCEEDED, m.FAILED, m.HANDED_BACK]))
    def result(self, data: st.DataObject, outcome: m.Outcome) -> None:
        if not self.leases:
            return
        worker, lease = data.draw(st.sampled_from(self.leases))  # it may be sent twice, or late
        result = result_of(lease, outcome)
        assert self.queues.accept(worker, [result], self.now) == [lease.task.id]

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if self.leases:
            worker, lease = data.draw(st.sampled_from(self.leases))
            report = report_of(lease, metrics={"loss": 1.0})
            self.queues.renew(worker, [report], self.now)

    @rule(model=st.sampled_from(MODELS), data=st.data())
    def cancel(self, model: str, data: st.DataObject) -> None:
        if self.acknowledged[model]:
            self.queues.cancel(
                model, [data.draw(st.sampled_from(sorted(self.acknowledged[model])))]
            )

    @rule(worker=st.sampled_from(WORKERS))
    def lose(self, worker: str) -> None:
        self.queues.lose(worker, self.now, 0.5)

    @rule(seconds=st.sampled_from([0.3, 1.0, LEASE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.queues.lapse(self.now)

    @rule(model=st.sampled_from(MODELS), most=st.integers(1, 3))
    def take(self, model: str, most: int) -> None:
        self.queues.results.forget(model, self.cursors[model])
        box = self.queues.results.mailbox(model)
        found = box.read(most, 1000)
        self.got[model] += [each.result.task_id for each in found]
        self.cursors[model] = box.cursor + len(found)

    @rule(whole=st.booleans())
    def restart(self, whole: bool) -> None:
        self.incarnation += 1
        log, self.log = self.log, []
        self.queues = Queues(self.incarnation, LEASE_S, self.record)
        for kind, payload in log:
            replay(self.queues, kind, payload)
        self.log = list(snapshot(self.queues))
        if whole:  # the snapshot alone makes the same state
            self.queues = Queues(self.incarnation, LEASE_S, self.record)
            for kind, payload in self.log:
                replay(self.queues, kind, payload)
        begin(self.queues, self.now, 1.0)

    @invariant()
    def each_task_is_in_one_queue(self) -> None:
        if hasattr(self, "queues"):
            status, tasks = self.queues.status(), self.queues.tasks.values()
            assert status.processing == sum(bool(entry.holder) for entry in tasks)
            assert status.owned + status.helper + status.processing == len(tasks)

    @invariant()
    def no_result_comes_twice(self) -> None:
        for model, ids in getattr(self, "got", {}).items():
            waiting = [each.result.task_id for each in self.queues.results.mailbox(model).accepted]
            seen = ids[: self.queues.results.mailbox(model).cursor] + waiting
            assert len(seen) == len(set(seen))
            assert set(ids) <= self.acknowledged[model]

    def teardown(self) -> None:
        """In the end every acknowledged task has exactly one result."""
        if not hasattr(self, "queues"):
            return
        for _ in range(200):
            self.wait(LEASE_S + 1)
            for lease in self.queues.lease("last", 100, ROOM, self.now):
                self.queues.accept("last", [success(lease)], self.now)
            for model in MODELS:
                self.take(model, 100)
            if all(set(self.got[x]) == self.acknowledged[x] for x in MODELS):
                break
        for model in MODELS:
            assert sorted(self.got[model]) == sorted(self.acknowledged[model])
        assert not self.queues.tasks
        self.queues.results.forget("one", self.cursors["one"])
        self.queues.results.forget("two", self.cursors["two"])
        assert (self.queues.tasks.payload_bytes, self.queues.results.value_bytes) == (0, 0)


Broker.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBroker = Broker.TestCase


def test_a_worker_gets_only_tasks_of_the_types_that_it_runs():
    queues, _ = make_queues()
    tasks = [make_task(1), make_task(2), make_task(3)]
    tasks[1].type, tasks[2].type = "node", "exec"
    queues.submit("one", tasks, 10)
    free = m.Needs(cpus=9)
    node = Room.of(free, m.ExchangeRequest(types=["node"]))
    ours = Room.of(free, m.ExchangeRequest())
    assert [lease.task.type for lease in queues.lease("w1", 9, node, 0.0)] == ["node"]
    assert [lease.task.type for lease in queues.lease("w2", 9, ours, 0.0)] == ["python", "exec"]


def test_a_task_goes_only_where_there_is_room():
    fits = m.Needs(cpus=8, gpus=1, memory_bytes=9, labels=["a100"])
    room = Room.of(fits, m.ExchangeRequest(seconds_left=600.0))
    assert room.fits(Shape(8, 1, 9, ("a100",), 600.0, "python"))
    for change in ({"cpus": 9}, {"gpus": 2}, {"memory_bytes": 10}, {"labels": ("a100", "fast")},
                   {"time_limit_s": 601.0}):  # fmt: skip
        assert not room.fits(Shape(8, 1, 9, ("a100",), 600.0, "python")._replace(**change)), change
