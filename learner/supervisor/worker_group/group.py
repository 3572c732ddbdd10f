"""The learners and servers of one attempt, each in a step of its own, watched as one group.

Only the learner that died is restarted, and no other waits for it. A node that Slurm has taken
away, or on which no step can be started, is given up with its learners; the training continues
while `min_learners` are left. A user error ends all learners. Servers end after the last learner.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from dlctl import contract
from dlctl.contract import Homes, Plan, State, Status
from learner.errors import EXIT_NO_RESTART, UserFault
from learner.job.context import ranks_of
from learner.job.directives import is_gone
from learner.job.outcome import Outcome, says_full, says_lost
from learner.job.status import has_saved
from learner.supervisor.control import EndRequest
from learner.supervisor.statuses import Statuses
from learner.supervisor.steps import Step, learner_step, server_step, step_log
from learner.supervisor.worker_group.failures import learner_failure, server_failure
from learner.supervisor.worker_group.nodes import Cleaning, Nodes
from learner.supervisor.worker_group.shard_placement import (
    ShardPlacement,
    at_the_end,
    make_secret,
    remove_what_is_of_no_use,
    without_learner,
    without_node,
)
from learner.supervisor.worker_group.worker import (
    VANISHED,
    LearnerWorker,
    ServerWorker,
    Worker,
    how_it_died,
    is_too_slow,
    is_user_error,
)
from psrv.cursor.base import CursorError
from psrv.cursor.overseer import expel

_TERM_S = 30.0
"""From SIGTERM to SIGKILL; the watchdogs give their learners 20 s."""
_STOP_S = 10.0
"""How long servers may take to remove their shared memory, and clean-up steps to remove it for
them, before SIGTERM; and how long from SIGTERM to SIGKILL."""


class WorkerGroup:
    """Starts the servers and learners of a plan; `poll` does all the work."""

    def __init__(
        self, plan: Plan, job_dir: Path, statuses: Statuses, nodes: Nodes,
        say: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        assert plan.parameter_server is not None
        self.plan = plan
        self.failure: Outcome | None = None
        """Why the group ended all, if no process's status says it."""
        self._unless_saved: Outcome | None = None
        """Becomes `failure` unless learner 0 still saves a checkpoint while halting."""
        self._server = plan.parameter_server
        self._statuses, self._job_dir, self._attempt = statuses, job_dir, statuses.attempt
        self._nodes, self._say, self._clock = nodes, say, clock
        self._placement = ShardPlacement(plan, job_dir, self._attempt)
        self._ending = self._halting = self._terminated = False
        self._kill_at = self._stop_by = float("inf")
        self._to_expel: list[int] = []
        self._irregular: list[LearnerWorker] = []
        self._leaving: list[tuple[Step, float]] = []
        self._cleaning: Cleaning | None = None
        self._done = False
        self.learners = [self._learner(rank) for rank in range(plan.resources.learners)]
        self.servers = [self._node_server(node) for node in range(plan.resources.nodes)]
        make_secret(job_dir, self._attempt)
        self._placement.publish()
        for server in self.servers:
            self._start(server, clock())

    def _learner(self, rank: int) -> LearnerWorker:
        node = ranks_of(self.plan, rank).node_rank
        host = self._nodes.hosts[node]
        log = step_log(self._job_dir, self._attempt, f"launcher-{rank}")

        def start(starts: int) -> Step:
            return learner_step(
                self.plan, "learner.agent", self._job_dir, self._attempt, rank, host, log,
                starts, overlaps=bool(self._homes.lost_nodes),
            )  # fmt: skip

        return LearnerWorker(rank, node, host, start, self._statuses, self._job_dir)

    def _node_server(self, node: int) -> ServerWorker:
        host = self._nodes.hosts[node]

        def start(_starts: int) -> Step:
            has_learners = any(each.runs for each in self.learners if each.node == node)
            takes_over = server.has_served and has_learners
            return server_step(self.plan, self._job_dir, self._attempt, node, host, takes_over)

        server = ServerWorker(node, host, start, self._statuses)
        return server

    def _start(self, worker: Worker, now: float) -> str:
        """Start a worker if it is due; return why to give it up, or "" to keep it.

        A step that can't be started, for example because memory is short, is retried.
        """
        try:
            worker.start_if_due(now)
        except UserFault as fault:
            wait_s = worker.restarts.died(progress=False)
            if wait_s is None:
                return fault.message.rstrip(".")
            self._say(f"{worker.name} waits {wait_s:g} s: {fault.message}")
            worker.wait(now, wait_s)
        return ""

    @property
    def _homes(self) -> Homes:
        return self._placement.homes

    # What the supervisor calls ------------------------------------------------------------------

    @property
    def exit_code(self) -> int | None:
        """Return 0 (1 after a failure) once all learners and servers have ended; None before."""
        return None if not self._done else int(self.failure is not None)

    @property
    def lost(self) -> dict[int, str]:
        """Return why each learner that was given up was given up, by rank."""
        return {learner.rank: learner.lost for learner in self.learners if learner.lost}

    def words(self) -> list[str]:
        """Return the last lines that the learners' launchers printed."""
        return [line for learner in self.learners for line in learner.words()][-20:]

    def terminate(self) -> None:
        """Ask the learners to end; the servers end once the learners are gone."""
        self._ending = True
        self._kill_at = min(self._kill_at, self._clock() + _TERM_S)
        for learner in self.learners:
            if learner.step is not None:
                learner.step.terminate()

    def kill(self) -> None:
        """Kill the learners."""
        self._ending = True
        for learner in self.learners:
            if learner.step is not None:
                learner.step.kill()

    def close(self) -> None:
        """Remove the files that no later attempt needs."""
        with contextlib.suppress(OSError):
            remove_what_is_of_no_use(self._job_dir, self._attempt)

    def poll(self, request: EndRequest | None, silent: bool) -> None:
        """Restart workers that died, give up lost ones, stop servers after the last learner.

        Args:
            silent: whether the heartbeats of learners are missing.
        """
        now, self._halting = self._clock(), request is not None
        self._terminated = request is not None and request.terminated
        if silent:
            self._nodes.ask()
        for node in self._nodes.gone() - set(self._homes.lost_nodes):
            self._lose_node(node, "Slurm took it out of the job")
        for learner in self.learners:
            self._tend_learner(learner, now)
        for server in self.servers:
            self._tend_server(server, now)
        self._retry_unfinished(now)
        if all(learner.over for learner in self.learners):
            self._stop_servers(now)

    # Learners -----------------------------------------------------------------------------------

    def _tend_learner(self, learner: LearnerWorker, now: float) -> None:
        if learner.over or learner.runs:
            return
        # Learner 0 writes the checkpoint, so a halt needs it, too.
        wanted = not (self._ending or self._terminated) and (learner.rank == 0 or not self._halting)
        if learner.step is None:
            if not wanted:
                self._leave_out(learner)
            elif why := self._start(learner, now):
                self._give_up(learner, f"could not be started: {why}", None)
            return
        status = learner.status()
        lost = says_lost(learner.words())
        if lost and learner.node and learner.node not in self._homes.lost_nodes:
            self._lose_node(learner.node, lost)
        elif learner.is_settled(status, now):
            self._judge(learner, status, now, wanted)

    def _judge(
        self, learner: LearnerWorker, status: Status | None, now: float, wanted: bool
    ) -> None:
        state = status.state if status is not None and status.state.final else None
        stopped = state is State.CANCELLED and self._halting
        slow = status is not None and self._halting and learner.rank == 0 and is_too_slow(status)
        if self._ending or stopped or slow or state in (State.COMPLETED, State.HALTED):
            learner.over = True
        elif status is not None and is_user_error(status):
            self._say(f"{learner.name} failed ({status.reason}): ending the others.")
            learner.over = True
            self.terminate()
        elif not wanted:
            self._leave_out(learner)
        else:
            self._restart(learner, status, now)

    def _leave_out(self, learner: LearnerWorker) -> None:
        """Don't restart a learner that died: its unfinished chunks were given back."""
        learner.over = True
        end = State.CANCELLED, "ended with the others"
        if self._halting and not self._terminated:
            end = State.HALTED, "died while the others were stopping"
        status = learner.status()
        if status is not None and status.state.final:
            learner.close(*end)
        else:
            learner.presume(*end)

    def _restart(self, learner: LearnerWorker, status: Status | None, now: float) -> None:
        how = how_it_died(status) + ", out of memory" * bool(says_full(learner.words()))
        wait_s = learner.died(progress=learner.did_something(status))
        in_vain = learner.dies_in_vain(status, now)
        self._nodes.ask()  # perhaps it died with its node
        if wait_s is None or in_vain:
            times = f"{learner.restarts.limit} times in a row without finishing a chunk"
            self._give_up(learner, f"{how}, {in_vain or times}", status)
            return
        number = learner.take_number()
        if how.startswith(VANISHED):
            self._to_expel.append(number)
        self._irregular.append(learner)
        self._say(f"{learner.name} {how}: restarting it in {wait_s:g} s.")
        learner.say_waiting(f"{how}; restarting")
        learner.wait(now, wait_s)

    def _give_up(self, learner: LearnerWorker, why: str, status: Status | None) -> None:
        """Continue without a learner if enough are left; a halt needs only learner 0."""
        self._say(f"Giving up {learner.name}: it {why}.")
        learner.lost, learner.over = why, True
        self._irregular.append(learner)
        learner.close(State.FAILED, why)
        self._to_expel.append(learner.take_number())
        if learner.step is not None:
            self._dismiss(learner.step)
        left, needed = len(self.learners) - len(self.lost), self._server.min_learners
        if learner.node not in self._homes.lost_nodes:
            self._placement.change(without_learner(self._homes, learner.rank))
        too_few = left < needed and not self._halting
        if (learner.rank == 0 or too_few) and not self._ending:
            self._fail(learner_failure(self.plan, learner, status, left))

    # Servers ------------------------------------------------------------------------------------

    def _tend_server(self, server: ServerWorker, now: float) -> None:
        if server.over or self._stop_by < float("inf"):
            return
        if self._terminated:  # the job is ending: no step can be started any more
            server.over = not server.runs
        elif why := self._start(server, now):
            self._without_server(server, [], None, why)
            return
        if server.over or not server.has_ended:
            return
        words, code = server.words(), server.exit_code
        lost = says_lost(words)
        if lost and server.node:
            self._lose_node(server.node, lost)
            return
        self._nodes.ask()
        progress = server.did_something(now)
        wait_s = None if code == EXIT_NO_RESTART else server.died(progress=progress)
        if wait_s is None:
            self._without_server(server, words, code)
            return
        last = f": {words[-1]}" if words else ""
        self._say(f"{server.name} ended ({code}), restarting it in {wait_s:g} s{last}")
        server.say_waiting(f"ended with exit code {code}; restarting")
        server.wait(now, wait_s)

    def _without_server(
        self, server: ServerWorker, words: list[str], code: int | None, why: str = ""
    ) -> None:
        """Give up a node on which no step can start; fail if only the node's server can't."""
        alone = not any(each.runs for each in self.learners if each.node == server.node)
        if code != EXIT_NO_RESTART and server.node and alone:
            cause = f": {words[-1] if words else why}" if words or why else ""
            self._lose_node(server.node, f"no step can be started there{cause}")
            return
        server.over = True
        if server.step is not None:
            self._dismiss(server.step)
        failure = server_failure(self.plan, server, words, code, why)
        server.presume(State.FAILED, failure.reason)
        if self._halting and not self._ending:
            self._say(failure.reason)
            self._unless_saved = failure
        else:
            self._fail(failure)

    def _fail(self, failure: Outcome) -> None:
        if self.failure is None:
            self.failure = failure
            self._say(failure.reason)
        self.terminate()

    # Nodes --------------------------------------------------------------------------------------

    def _lose_node(self, node: int, why: str) -> None:
        """Continue without a node; first announce to all processes that the node is out."""
        if node in self._homes.lost_nodes or node == 0:
            return  # the supervisor itself runs on node 0
        host = self._nodes.hosts[node]
        self._say(f"Node {host} is lost: {why.rstrip('.')}.")
        self._placement.change(without_node(self._homes, node, len(self._nodes.hosts)))
        why = f"was lost with node {host}"
        server = self.servers[node]
        server.lost, server.over = why, True
        server.close(State.FAILED, why)
        if server.step is not None:
            self._dismiss(server.step)
        for learner in self.learners:
            if learner.node == node and not learner.over:
                self._give_up(learner, why, None)

    def _dismiss(self, step: Step) -> None:
        step.terminate()
        self._leaving.append((step, self._clock() + _TERM_S))

    # The end ------------------------------------------------------------------------------------

    def _retry_unfinished(self, now: float) -> None:
        self._placement.retry()
        self._statuses.retry()
        self._to_expel = [number for number in self._to_expel if not self._expel(number)]
        self._irregular = [each for each in self._irregular if not each.tell_irregular()]
        for step, until in self._leaving:
            if now >= until:
                step.kill()
        self._leaving = [each for each in self._leaving if each[0].exit_code is None]
        if now >= self._kill_at:
            self.kill()

    def _expel(self, number: int) -> bool:
        """Have a learner's chunks given out again, even if it still lives; False: try again."""
        with contextlib.suppress(CursorError):
            return not number or expel(self._job_dir / contract.cursor_file(self._attempt), number)
        return False

    def _stop_servers(self, now: float) -> None:
        if self._stop_by == float("inf"):
            self._stop_by = now + _STOP_S
            self._placement.change(at_the_end(self._homes))
            if not has_saved(self.learners[0].status()):
                self.failure = self.failure or self._unless_saved
        serving = [s.step for s in self.servers if s.runs and not s.over and s.step is not None]
        late, cleaners = now >= self._stop_by, self._cleaning.running if self._cleaning else []
        for step in [*serving, *cleaners, *(step for step, _ in self._leaving)] if late else []:
            step.kill() if now >= self._stop_by + _STOP_S else step.terminate()
        if serving:
            return
        if self._cleaning is None:
            for server in self.servers:
                server.presume(State.CANCELLED, "ended with the others")
            about = self.plan, self._job_dir, self._attempt
            self._cleaning = Cleaning(*about, self._unclean(), self._say)
            self._stop_by = now + _STOP_S * (not self._terminated)
        self._done = self._cleaning.poll(now, late=now >= self._stop_by) and not self._leaving

    def _unclean(self) -> list[str]:
        """Return the hosts where servers were killed, without lost nodes."""
        if is_gone(self._job_dir / contract.attempt_dir(self._attempt)):
            return []  # somebody removed the job directory: don't create it again
        ended = [server for server in self.servers if server.step and server.step.exit_code == 0]
        unclean = {server.node for server in self.servers if server not in ended}
        return [self._nodes.hosts[node] for node in sorted(unclean - set(self._homes.lost_nodes))]
