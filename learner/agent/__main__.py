"""Start one learner: `python -m learner.agent <job dir> <attempt>`, once per rank.

The agent finds its rank in the launcher's variables, sets the learner's environment and then
watches over the learner. It imports neither torch nor MPI: the learner calls MPI_Init itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from dlctl import contract
from dlctl.contract import (
    Plan,
    Preflight,
    State,
    Status,
    VerdictKind,
    learner_log,
    preflight_file,
    stacks_file,
)
from dlctl.contract.launchers import LAUNCHERS, Ranks
from dlctl.contract.metrics import RESTARTS
from dlctl.contract.programs.mpi_words import PRINT_STACK
from dlctl.contract.programs.verdict_rules import GO_ON
from learner.agent.stacks import Stacks
from learner.agent.watchdog import Program, Watchdog
from learner.collect.companion import Companion
from learner.errors import UserFault
from learner.frameworks import framework_of
from learner.job.batch import BatchSystem, batch_system
from learner.job.context import (
    ATTEMPT_VARIABLE,
    JOB_VARIABLE,
    RESTARTS_VARIABLE,
    find_ranks,
    read_plan,
)
from learner.job.directives import Outside
from learner.job.environment import (
    ADDRESSES_VARIABLE,
    ARGUMENTS_VARIABLE,
    PROGRESS_FILE,
    learner_environment,
    own_gpus,
    quiet_mpi,
    resolve_secrets,
    visible_devices,
)
from learner.job.outcome import failed, last_verdict
from learner.job.stacks import STACKS_FILE
from learner.job.status import Heartbeat
from learner.system import processes
from learner.system.segments import make_segment_folder, remove_segment_folder
from learner.system.signals import HaltFlag

_STEP_ENDED_GRACE_S = 20.0
"""How long after SIGTERM a learner in its own step may keep saving: Slurm's KillWait is 30 s."""

_LOSS_KNOWN_S = 600.0
"""How long a lost node may stay unnoticed: SlurmdTimeout is 300 s by default."""
_ASK_EVERY_S = 5.0


def main(arguments: list[str]) -> int:
    """Run one learner; return its exit code (0 also for a halted learner)."""
    job_dir, attempt = Path(arguments[0]), int(arguments[1])
    # Slurm may send its warning signal to every process: it is meant for the supervisor.
    HaltFlag(signal.SIGUSR2).install()
    ended = HaltFlag(signal.SIGTERM, signal.SIGHUP, signal.SIGINT).install()
    try:
        plan = read_plan(job_dir, attempt)
        ranks = find_ranks(plan)
    except UserFault as fault:
        print(f"dlctl: {fault.message} {fault.hint}", file=sys.stderr)
        return 1
    logs = [learner_log(attempt, ranks.rank)]
    heart = Heartbeat(job_dir, "learner", ranks.rank, attempt, logs)
    per_learner = plan.resources.gpus_per_learner
    gpus = own_gpus(os.environ, _gpus_before(heart.path), per_learner, ranks.local_rank)
    heart.set(reason="starting", gpus=gpus)
    scratch = Path(tempfile.mkdtemp(prefix="dlctl-"))
    try:
        os.environ.update(visible_devices(os.environ, gpus))
        program = make_program(plan, job_dir, attempt, ranks, scratch)
        processes.adopt_orphans()
        node = ranks.node_rank if plan.launch.step_per_learner else None
        outside = Outside(job_dir, attempt, node=node)
        code = Watchdog(program, heart, outside, ended).run()
        if outside.supervisor_is_lost and plan.launch.step_per_learner and plan.launch.argv:
            _end_without_supervisor(plan, job_dir, attempt, ended)
        return code
    except (UserFault, OSError) as fault:
        heart.set(state=State.FAILED, exit_code=1, reason=str(fault), last_lines=[str(fault)])
        print(f"dlctl: learner {ranks.rank}: {fault}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if not plan.launch.step_per_learner:  # with a step per learner, the server owns the folder
            remove_segment_folder(plan.training_id, attempt)


def _gpus_before(path: Path) -> str:
    """Return which GPUs this learner had before its restart, "" if that is not known."""
    before = contract.readable_record(Status, path)
    return before.gpus if before else ""


def make_program(plan: Plan, job_dir: Path, attempt: int, ranks: Ranks, scratch: Path) -> Program:
    """Return the program to run for this rank."""
    meeting_point = contract.read_record(Preflight, job_dir / preflight_file(attempt, 0))
    if meeting_point is None:
        raise UserFault("The preflight's report of rank 0 is gone.", hint="Submit again.")
    secrets = resolve_secrets(plan, os.environ)
    framework, base = framework_of(plan), dict(os.environ)
    framework.adapt(base, plan)
    env = learner_environment(plan, job_dir, attempt, ranks, meeting_point, base, secrets)
    if not plan.launch.step_per_learner:
        env.update(make_segment_folder(plan.training_id, attempt))
    env.update({**PRINT_STACK, **env, **quiet_mpi(env)})
    env[PROGRESS_FILE] = str(scratch / "progress.json")
    env[STACKS_FILE] = str(scratch / "stacks.txt")
    env |= {JOB_VARIABLE: str(job_dir), ATTEMPT_VARIABLE: str(attempt)}
    env |= _recipe_variables(plan, job_dir, attempt)
    return Program(
        argv=framework.argv(plan, job_dir, attempt),
        env=env,
        cwd=framework.folder(plan, job_dir),
        log=job_dir / learner_log(attempt, ranks.rank),
        traits=framework.traits,
        progress=scratch / "progress.json",
        ended_grace_s=_ended_grace_s(plan),
        secrets=list(secrets.values()),
        metrics=_restarts(),
        warning=framework.warning(plan, job_dir) if ranks.rank == 0 else "",
        stacks=Stacks(scratch / "stacks.txt", job_dir / stacks_file(attempt, ranks.rank)),
        companion=Companion(job_dir, attempt, ranks.rank, env),
    )


def _recipe_variables(plan: Plan, job_dir: Path, attempt: int) -> dict[str, str]:
    """Return the variables that only some frameworks' train.sh need.

    Raises:
        UserFault: the preflight's report of a learner is gone.
    """
    recipe = plan.framework.recipe
    if recipe is None:
        return {}
    found = {ARGUMENTS_VARIABLE: str(job_dir / contract.arguments_file(attempt))}
    if recipe.addresses:
        ranks = range(plan.resources.learners)
        paths = (job_dir / preflight_file(attempt, rank) for rank in ranks)
        reports = [contract.read_record(Preflight, path) for path in paths]
        known = [f"{report.address}:{report.port}" for report in reports if report is not None]
        if len(known) < len(reports):
            raise UserFault("A preflight's report is gone.", hint="Submit again.")
        found[ADDRESSES_VARIABLE] = ",".join(known)
    return found


def _ended_grace_s(plan: Plan) -> float:
    if plan.launch.step_per_learner:
        return _STEP_ENDED_GRACE_S
    return LAUNCHERS[plan.launch.kind].ended_grace_s


def _restarts() -> dict[str, float]:
    count = int(os.environ.get(RESTARTS_VARIABLE) or 0)
    return {RESTARTS: float(count)} if count else {}


def _end_without_supervisor(plan: Plan, job_dir: Path, attempt: int, ended: HaltFlag) -> None:
    """End a job that is kept (--no-kill) although its first node, with the script, is lost.

    The batch system has to confirm the loss, which takes it a while: if only this node has lost
    the file system, the other nodes continue.
    """
    system, until = batch_system(plan), time.monotonic() + _LOSS_KNOWN_S
    while not _first_node_is_lost(system):
        if ended or time.monotonic() > until:
            return
        time.sleep(_ASK_EVERY_S)
    path = job_dir / contract.verdict_file(attempt)
    reason = "The first node of the job was lost, and the supervisor with it."
    hint = GO_ON.format(id=plan.training_id)
    with contextlib.suppress(OSError):
        if path.parent.is_dir() and not path.exists():
            outcome = failed(VerdictKind.NODE_LOST, reason, hint)
            verdict = last_verdict(job_dir, attempt, outcome, plan)
            contract.write_whole(path, contract.to_json(verdict))
    system.cancel()


def _first_node_is_lost(system: BatchSystem) -> bool:
    with contextlib.suppress(UserFault):
        left = system.left_hosts()
        return left is not None and system.hosts()[0] not in left
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
