"""Slurm, as a job's own programs see it; `dlctl.scheduler.slurm` is the login side's half."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from dlctl.contract import AVOID, Plan, VerdictKind
from dlctl.contract.programs.slurm_words import DROPPED
from learner.errors import SiteFault
from learner.job.batch.base import REQUEUED, UNEXPLAINED, BatchSystem, Ending, Silent

HOSTS_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 20.0
ENDING_TIMEOUT_S = 5.0
"""Slurm's KillWait is 30 s, of which the learners get 20 s."""
ACCOUNTING_TRIES = 10
_NOT_OVER = ("PENDING", "CONFIGURING", "RUNNING")
_OPTION = "#SBATCH --"
_MEBIBYTE = 1 << 20


class Slurm(BatchSystem):
    """squeue, scontrol, sacct and scancel, in srun's folder if the plan names one."""

    kind = "slurm"
    job_variable = "SLURM_JOB_ID"
    node_variable = "SLURMD_NODENAME"
    allocates = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._job_id = os.environ.get(self.job_variable, "")

    def hosts(self) -> list[str]:
        """Return the host of each node; without a launcher that is this one."""
        wanted = self.plan.resources.nodes
        if not self.plan.launch.argv:
            return [socket.gethostname()] * wanted
        names, hosts = os.environ.get("SLURM_JOB_NODELIST", ""), []
        try:
            done = self._run("scontrol", "show", "hostnames", names, timeout_s=HOSTS_TIMEOUT_S)
            hosts, error_text = done.stdout.split(), done.stderr.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            error_text = str(error)
        if len(hosts) < wanted:
            raise SiteFault(
                f"The plan has {wanted} nodes, but the job's list {names!r} has {len(hosts)}. "
                f"{error_text}",
                hint=f"Check that scontrol works on the nodes: dlctl doctor {self.plan.site}",
            )
        return hosts[:wanted]

    def left_hosts(self) -> list[str] | None:
        """Ask squeue.

        A job with --no-kill continues when a node is lost; squeue then lists fewer nodes for it
        (Slurm 22.05, for a node that lost power and for one that lost its network).
        """
        if not self.plan.launch.argv or not self._job_id:
            return None
        try:
            names = self._run("squeue", "-h", "-j", self._job_id, "-o", "%N").stdout.strip()
            done = self._run("scontrol", "show", "hostnames", names) if names else None
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.split() if done and done.returncode == 0 else None

    def dead_hosts(self, hosts: Sequence[str]) -> list[str]:
        """Ask sinfo."""
        if not hosts:
            return []
        try:
            done = self._run("sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N %T")
        except (OSError, subprocess.TimeoutExpired):
            return []
        rows = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 2]
        down = {name for name, state in rows if state.startswith("down") or state.endswith("*")}
        return [host for host in hosts if host in down]

    def is_elsewhere(self) -> bool:
        """Compare the node of the batch script with this one."""
        here = os.environ.get(self.node_variable, "")
        if not self._job_id or not here:
            return False
        try:
            done = self._run("squeue", "-h", "-j", self._job_id, "-o", "%B")
        except OSError:  # a container without Slurm's commands
            return False
        except subprocess.TimeoutExpired as error:
            raise Silent(str(error)) from error
        if done.returncode and "Invalid job id" not in done.stderr:
            raise Silent(done.stderr.strip())
        return done.stdout.split() != [here]

    def ended_before(self, job_id: str) -> str:
        """Ask the accounting."""
        for _ in range(ACCOUNTING_TRIES):
            try:
                done = self._run("sacct", "-X", "-D", "-n", "-P", "-o", "State", "-j", job_id)
            except (OSError, subprocess.TimeoutExpired):
                return ""
            lines = filter(None, map(str.strip, done.stdout.splitlines()))
            words = [DROPPED if line == "CANCELLED" else line.split()[0] for line in lines]
            # It may not know yet that the job runs again, or that it has ended before.
            if ended := [word for word in words if word not in _NOT_OVER]:
                return ended[-1]
            if done.returncode:  # nodes that can't reach the accounting
                break
            time.sleep(1)
        return ""

    def ends_at(self) -> float | None:
        """Return the end that Slurm has told the job."""
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        return float(end) if end.isdecimal() else None

    def ending(self) -> Ending | None:
        """Ask scontrol."""
        try:
            done = self._run("scontrol", "-o", "show", "job", self._job_id,
                             timeout_s=ENDING_TIMEOUT_S)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return read_ending(done.stdout, int(os.environ.get("SLURM_RESTART_COUNT") or 0))

    def cancel(self) -> None:
        """Run scancel."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._run("scancel", self._job_id)

    def requeue(self) -> str:
        """Put this job back into the queue, where Slurm holds it for 2 minutes on most sites.

        The hold is left as it is: cut short without `ExcNodeList` of the old nodes, a requeued job
        that gets one of them dies ("Job credential revoked", Slurm 22.05), and nobody of this job
        is left to set that list once it is back in the queue.
        """
        try:
            done = self._run("scontrol", "requeue", self._job_id, timeout_s=60.0)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return done.returncode and (done.stderr.strip() or f"exit code {done.returncode}") or ""

    def submission(self, script: str) -> str:
        """Ignore SIGTERM: who ends a job signals its sbatch, too, which needs a moment more."""
        return f"trap '' TERM\n{script}"

    def script_of(self, script: str, plan: Plan, wait_s: float) -> str:
        """Change the options that differ from attempt to attempt."""
        memory, time_s = plan.resources.memory_bytes_per_node, plan.resources.time_s
        options = {
            "mem": None if memory is None else f"{-(-memory // _MEBIBYTE)}M",
            "time": None if time_s is None else _clock(time_s),
            "begin": f"now+{round(wait_s)}" if wait_s >= 1 else None,
        }
        lines = [each for each in script.splitlines(keepends=True) if not each.startswith(AVOID)]
        first = next(n for n, line in enumerate(lines) if line.startswith(_OPTION))
        old = tuple(f"{_OPTION}{name}=" for name in options)
        kept = [line for line in lines if not line.startswith(old)]
        new = [f"{_OPTION}{name}={value}\n" for name, value in options.items() if value is not None]
        avoided = plan.batch.exclude
        new += [f"{AVOID}{','.join(avoided)}\n"] if avoided else []
        return "".join([*kept[:first], *new, *kept[first:]])

    def _run(
        self, name: str, *arguments: str, timeout_s: float = ASK_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands.

        Raises:
            OSError, TimeoutExpired
        """
        argv = [self._command(name), *arguments]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout_s)  # fmt: skip

    def _command(self, name: str) -> str:
        """Return a command's path in srun's folder, or its bare name if srun has no folder."""
        program = self.plan.launch.argv[0] if self.plan.launch.argv else ""
        there = Path(program).parent / name
        return str(there) if "/" in program and there.exists() else name


def _clock(time_s: int) -> str:
    return f"{time_s // 3600}:{time_s % 3600 // 60:02}:{time_s % 60:02}"


def read_ending(text: str, restarts: int = 0) -> Ending | None:
    """Return what `scontrol show job` says of a job that got a signal; None if it says nothing.

    While Slurm ends a job its state is COMPLETING, whatever the cause. A preemption has a time of
    its own, unless the job is requeued, which counts its restarts; a time limit and a lost node
    have a reason; scancel has none of these.

    Args:
        restarts: how often Slurm had restarted the job when it began.
    """
    fields = dict(
        re.findall(
            r"\b(JobState|Reason|PreemptTime|Restarts|RunTime|TimeLimit|Priority)=(\S+)", text
        )
    )
    state, reason = fields.get("JobState", ""), fields.get("Reason", "None")
    if not state:
        return None
    kind, why = VerdictKind.SCHEDULER, ""
    if state == "PREEMPTED" or fields.get("PreemptTime", "None") not in ("None", "N/A"):
        kind, why = VerdictKind.PREEMPTED, "another job preempted it"
        state = "PREEMPTED"
    elif state in ("PENDING", "REQUEUED") or int(fields.get("Restarts", 0)) > restarts:
        kind = VerdictKind.PREEMPTED
        why = "it is in the queue again, preempted by another job or requeued by somebody"
        if fields.get("Priority") == "0":
            why = "somebody, perhaps an administrator, has requeued and held it"
        state = REQUEUED
    elif state in ("TIMEOUT", "DEADLINE") or reason == "TimeLimit":
        kind, why = VerdictKind.TIME_LIMIT, "its time limit was reached"
        state = "TIMEOUT"
    elif state == "NODE_FAIL" or re.search(r"Node(?:Down|Fail)", reason):
        kind, why = VerdictKind.NODE_LOST, "one of its nodes was lost"
        state = "NODE_FAIL"
    elif state in ("COMPLETING", "CANCELLED") and reason == "None":
        kind, why = VerdictKind.CANCELLED, "somebody cancelled it by scancel"
        state = "CANCELLED"
    sentence = f"the scheduler ended the job: {why}" if why else UNEXPLAINED
    ran_s, limit_s = (_seconds(fields.get(name, "")) for name in ("RunTime", "TimeLimit"))
    left_s = None if ran_s is None or limit_s is None else limit_s - ran_s
    return Ending(state, "" if reason == "None" else reason, kind, sentence, left_s)


def _seconds(text: str) -> float | None:
    """Return a duration in Slurm's form, `1-02:03:04`; None for another word, as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
