"""Slurm 20 to 26, by its commands. Pure: writes scripts and parses answers, runs nothing.

The listings ask for fixed `--format` fields rather than a version's JSON.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import ClassVar

from dlctl import contract
from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.programs.slurm_words import ANSWER_LOST
from dlctl.errors import SchedulerUnavailable, SubmitRejected, SubmitUnknown
from dlctl.package_data import data_path
from dlctl.scheduler import slurm_answers
from dlctl.scheduler.base import Job, JobState, Scheduler, Usage
from dlctl.scheduler.rows import RECORD, UNIT, job_state, parse_rows, plain, unavailable
from dlctl.scheduler.sbatch import sbatch_options, where

# A variable like SBATCH_PARTITION or SLURM_NNODES would change the job, SQUEUE_FORMAT the answer.
# Variables that only name the controller and the caller stay.
# Once for a script that asks more than once: each process costs as much as a small answer of Slurm.
CLEAN_ENVIRONMENT = r"""[ -n "${dlctl_user_id-}" ] || for v in $(
  env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $v in
    SLURM_CONF|SLURM_CONF_SERVER|SLURM_JWT) ;;
    SBATCH_*|SLURM_*|SQUEUE_*|SACCT_*|SCANCEL_*) unset "$v" ;;
  esac
done
dlctl_user_id=${dlctl_user_id:-$(id -u)}
"""

# In --output a `%` begins a pattern (`%%` is a literal one), also in the folder. No version keeps
# a backslash in it intact.
OUTPUT_FOLDER = r"""case $PWD in *\\*)
  echo "sbatch: error: Slurm can't write to a folder with a backslash in its name: $PWD" >&2
  exit 1 ;;
esac
case $PWD in
  *%*) folder=$(printf '%s' "$PWD" | sed 's/%/%%/g') ;;
  *) folder=$PWD ;;
esac
"""

QUEUE_FORMAT = RECORD + UNIT.join(["%i", "%j", "%T", "%r", "%N", "%k", "", "%S", "%P"])
HISTORY_FIELDS = "JobID,JobName,State,ExitCode,NodeList,Submit,Start"
HISTORY_LIMIT_S = 30
"""A slow slurmdbd must not delay a status: a later answer of sacct is ignored."""

_EXTRA_OF_SRUN = ("--reservation=", "--exclude=", "--nodelist=", "--licenses=", "--wckey=")
"""Further sbatch options that restrict where a step runs; others are about output and mail."""

_ANSWER = re.compile(r"^(\d+)(?:;[\w.-]+)?\s*$|^Submitted batch job (\d+)", re.MULTILINE)
"""A sed command that prints the id of `sbatch --parsable`, and no banner."""
_NOT_REACHED = re.compile(r"unable to contact slurm controller|configuration source", re.IGNORECASE)
_GONE = re.compile(r"invalid job id specified|already complet", re.IGNORECASE)
_HINTS = [
    (re.compile(r"not found|no such file", re.I), "Set the site's scheduler path to the folder"
     " of sbatch (`dlctl sites show SITE`)."),
    (re.compile(r"policy|limit .*(reached|exceeded)", re.I), "Ask for less, or wait until some of"
     " your jobs end; `sacctmgr show associations user=$USER` lists your limits."),
    (re.compile(r"account", re.I), "Set scheduler.account in the manifest or the site;"
     " `sacctmgr show associations user=$USER` lists yours."),
    (re.compile(r"qos", re.I), "Set scheduler.qos in the manifest to one that your account may"
     " use, or ask for less."),
    (re.compile(r"partition", re.I), "Set scheduler.partition in the manifest;"
     " `dlctl sites show SITE` lists the site's."),
    (re.compile(r"gres|generic resource", re.I), "Ask for other gpus, or set scheduler.gres;"
     " `sinfo -o '%P %G'` lists what there is."),
    (re.compile(r"feature", re.I), "Set scheduler.constraint to a feature of the nodes;"
     " `sinfo -o '%P %f'` lists them."),
    (re.compile(r"memory|node configuration|node count|cpu count", re.I), "Ask for fewer learners,"
     " gpus or less memory, or for another partition."),
    (re.compile(r"time", re.I), "Set `time` in the manifest to less than the partition's limit."),
    (re.compile(r"unrecognized|invalid option|ambiguous", re.I), "Correct scheduler.extra in the"
     " manifest or the site."),
]  # fmt: skip


# Nodes that have failed this training, or others lately, are avoided while enough others are left:
# for those that were lost, and may be back, one more than needed, as the next one may be lost, too.
# On the command line `--exclude` replaces the script's own, so those of the script are added.
AVOID_BAD_NODES = r"""bad='' avoid='' now=''
lost=__LOST__
for file in __NODES__/*.json; do
  host=${file##*/} host=${host%.json}
  case $host in ''|*[!A-Za-z0-9._-]*) continue ;; esac
  [ -f "$file" ] || continue
  now=${now:-$(date +%s)}
  until=$(sed -n 's/.*"expires_at": *\([0-9]*\).*/\1/p' "$file" 2>/dev/null)
  [ "${until:-0}" -gt "$now" ] && bad=$bad${bad:+,}$host
done
choose() { # NODES: avoid those of them that there are, and count the others
  avoid='' others=0
  for host in $(sinfo -hNr__PARTITION__ -o %N 2>/dev/null | sort -u); do
    case ,$1, in *,"$host",*) avoid=$avoid${avoid:+,}$host ;; *) others=$((others + 1)) ;; esac
  done
}
if [ -n "$lost$bad" ]; then
  choose "$lost,$bad"
  [ "$others" -gt __NEEDED__ ] || choose "$bad"
  [ "$others" -ge __NEEDED__ ] || avoid=''
fi
if [ -n "$avoid" ]; then
  theirs=$(sed -n -e "s/^#SBATCH ['\"]*--exclude[= ]\([^'\"]*\).*/\1/p" \
    -e "s/^#SBATCH ['\"]*-x *\([^'\"]*\).*/\1/p" __SCRIPT__ | tr '\n' ',')
  [ -z "$theirs" ] || avoid=$avoid,${theirs%,}
fi
"""


def _avoid_bad_nodes(plan: contract.Plan, script: str, attempt: int | str) -> str:
    """Return shell that sets `avoid` to a list of nodes for `--exclude`, or to nothing."""
    lost = shlex.quote(",".join(plan.batch.exclude))
    if attempt == contract.NEXT:  # whose script knows more than this plan
        lost = f"$(sed -n 's/^{contract.AVOID}//p' {script} 2>/dev/null | tail -n 1)"
    partition = plan.batch.partition
    parts = {
        "__NODES__": shlex.quote(f"{plan.root}/{contract.NODES}"),
        "__PARTITION__": f" -p {shlex.quote(partition)}" if partition else "",
        "__NEEDED__": str(plan.resources.nodes),
        "__SCRIPT__": script,
        "__LOST__": lost,
    }
    text = AVOID_BAD_NODES
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


@dataclass(frozen=True)
class Slurm(Scheduler):
    """sbatch, squeue, sacct and scancel."""

    path: str | None = None
    """Folder of the commands, if they are not on PATH."""
    accounting: bool = True
    kind = "slurm"
    allocates = True
    not_now: ClassVar[str] = (
        f"MaxSubmitJob|GrpSubmitJob|Resource temporarily unavailable|{_NOT_REACHED.pattern}"
    )
    answer_lost: ClassVar[str] = ANSWER_LOST.pattern
    read_offer = staticmethod(slurm_answers.read_offer)

    @staticmethod
    def header(plan: contract.Plan) -> list[str]:
        """Return sbatch's options, and the nodes that this attempt avoids, if enough are left."""
        avoided = plan.batch.exclude
        lines = [f"#SBATCH {option}" for option in sbatch_options(plan)]
        return [*lines, contract.AVOID + ",".join(avoided)] if avoided else lines

    def questions(self) -> tuple[str, dict[str, str]]:
        """Return Slurm's commands; `slurm-site.sh` looks in the site's folder for them first."""
        file = data_path("templates") / "schedulers" / "slurm-site.sh"
        before = f"given={shlex.quote(self.path or '')}\n{file.read_text(encoding='utf-8')}"
        return before, slurm_answers.QUESTIONS

    def chaining_script(self, partition: str | None, account: str | None) -> str:
        """Return a submission that Slurm only tests, and a question about the job itself."""
        chosen = {"partition": partition, "account": account}
        options = shlex.join(f"--{name}={value}" for name, value in chosen.items() if value)
        return (
            f"job=$SLURM_JOB_ID\n{self.prologue()}"
            f"tell submit sbatch --test-only --time=2 {options} --wrap=true\n"
            'tell control scontrol show job "$job"\n'
        )

    def submit_script(self, plan: contract.Plan, attempt: int | str) -> str:
        """Return the sbatch call; options that don't depend on the attempt are in the script."""
        token = contract.token(plan.training_id, attempt)
        arguments = ["--parsable", f"--job-name={token}", f"--comment=dlctl:{token}"]
        output = shlex.quote("/" + contract.job_output(attempt))
        script = shlex.quote(contract.script_file(attempt))
        return (
            self.prologue()
            + OUTPUT_FOLDER
            + _avoid_bad_nodes(plan, script, attempt)
            + f'sbatch {shlex.join(arguments)} --chdir="$PWD" --output="$folder"{output}'
            + f' --open-mode=append ${{avoid:+"--exclude=$avoid"}} {script} {attempt} </dev/null\n'
        )

    def workers_script(self, plan: contract.Plan, script: str, output: str) -> str:
        """Return one sbatch call for an array."""
        token = shlex.quote(contract.token(plan.training_id, ""))
        return (
            self.prologue()
            + OUTPUT_FOLDER
            + f'sbatch --parsable --array="0-$((count - 1))" --job-name={token}"$group"'
            + f' --comment=dlctl:{token}"$group" --chdir="$PWD"'
            + f' --output="$folder"{shlex.quote(f"/{output}/")}"$group"/%a.out'
            + f' --open-mode=append {shlex.quote(script)} "$group" </dev/null\n'
        )

    def workers_alive_script(self, plan: contract.Plan) -> str:
        """Return the squeue call; a site's plugin may rename jobs, but the comment stays."""
        token = shlex.quote("dlctl:" + contract.token(plan.training_id, ""))
        return (
            self.prologue()
            + "found=$(squeue --noheader --array --user=\"$dlctl_user_id\" --format='%k %i %T'"
            + " </dev/null) || exit\n"
            + f"token={token}\n"
            + """printf '%s\\n' "$found" | while IFS= read -r row; do
  case $row in "$token"[a-z][0-9]*) printf '%s\\n' "${row#"$token"}" ;; esac
done
"""
        )

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:
        """Return the job id; banner lines and warnings around it are skipped."""
        answers = _ANSWER.findall(stdout)
        if answers:
            return str(answers[-1][0] or answers[-1][1])
        why = _sentences(stderr) or _sentences(stdout)
        refused = exit_code in (126, 127) or "sbatch:" in stderr
        if exit_code in (0, *range(128, 255)) or ANSWER_LOST.search(stderr) or not refused:
            raise SubmitUnknown(
                f"sbatch's answer was lost (exit code {exit_code}): {why or 'it printed nothing'}",
                hint="The job may be running or start later; dlctl looks for it by name.",
            )
        if _NOT_REACHED.search(why):
            raise SchedulerUnavailable(f"Slurm's controller is down: {why}")
        hint = next((text for pattern, text in _HINTS if pattern.search(why)), "")
        raise SubmitRejected(f"Slurm refused the job: {why}", hint=hint)

    def queue_script(self, root: str) -> str:  # noqa: ARG002 - Slurm's queue has no folder
        """Return the squeue call: this user's jobs, including recently ended ones."""
        return (
            f"{self.prologue()}export SLURM_TIME_FORMAT=%s\n"
            'squeue --noheader --states=all --user="$dlctl_user_id"'
            f" --format='{QUEUE_FORMAT}' </dev/null\n"
        )

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return the jobs, array and heterogeneous ones as squeue names them (`4_[1-3]`, `9+0`)."""
        if exit_code != 0 or ANSWER_LOST.search(stderr) or _NOT_REACHED.search(stderr):
            raise unavailable("squeue", exit_code, stderr)
        return parse_rows(stdout)

    def history_script(self, job_ids: list[str]) -> str | None:
        """Return the sacct call, or None where the site has no accounting or nothing is asked."""
        if not self.accounting or not job_ids:
            return None
        return self.prologue() + self._sacct(f"--jobs={shlex.quote(','.join(job_ids))}")

    def parse_history(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:  # noqa: ARG002
        """Return the newest row of each job, of all that sacct printed, whatever its exit code."""
        newest: dict[str, tuple[tuple[str, str], Job]] = {}
        for line in stdout.split("\n"):
            cells = line.split(UNIT)
            if len(cells) != HISTORY_FIELDS.count(",") + 1 or not cells[0][:1].isdecimal():
                continue  # a banner, or a name with a newline, which is not one of our jobs
            job_id, name, word, exit_text, nodes, submitted, started = cells
            # Who cancelled is always told: `CANCELLED by 1000`.
            state = JobState.DROPPED if word.strip() == "CANCELLED" else job_state(word)
            job = Job(job_id, name, state, word.strip(), nodes=plain(nodes), exit_code=exit_text)
            order = (plain(submitted), plain(started))  # ISO 8601: text order is time order
            if job_id not in newest or order >= newest[job_id][0]:
                newest[job_id] = (order, job)
        return [job for _, job in newest.values()]

    def usage_script(self, job_ids: list[str]) -> str | None:
        """Return the sacct call for jobs and their steps, or None as `history_script`."""
        if not self.accounting or not job_ids:
            return None
        option = f"--jobs={shlex.quote(','.join(job_ids))}"
        call = self._sacct(option, slurm_answers.USAGE_FIELDS, "")
        return f"{self.prologue()}export SLURM_TIME_FORMAT=%s\n{call}"

    def parse_usage(self, stdout: str) -> dict[str, Usage]:
        """Return what sacct printed, whatever its exit code."""
        return slurm_answers.parse_usage(stdout, UNIT)

    def start_script(self, plan: contract.Plan) -> str | None:
        """Return a submission that Slurm only tests; its answer is in UTC."""
        return (
            f"{self.prologue()}export TZ=UTC0\ndate +%Y-%m-%dT%H:%M:%S\n"
            f"sbatch --test-only {' '.join(sbatch_options(plan))} --wrap=true </dev/null\n"
        )

    def parse_start(self, stdout: str, stderr: str) -> tuple[float | None, str]:
        """Return what `sbatch --test-only` said, on standard error."""
        return slurm_answers.parse_start(stdout, stderr), f"Slurm says: {_sentences(stderr)}"

    def cancel_script(self, job_id: str, root: str) -> str:  # noqa: ARG002
        """Return the scancel call."""
        return f"{self.prologue()}scancel {shlex.quote(job_id)}\n"

    def halt_script(self, job_id: str, root: str) -> str | None:  # noqa: ARG002
        """Return the scancel call with the signal that Slurm sends before the time limit."""
        return f"{self.prologue()}scancel --batch --signal=USR2 {shlex.quote(job_id)}\n"

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:  # noqa: ARG002
        """Accept a job that is gone; scancel's exit code is the last error's number."""
        if exit_code != 0 and not _GONE.search(stderr):
            raise unavailable("scancel", exit_code, stderr)

    def node_script(self, plan: contract.Plan, script: str) -> str:
        """Return an srun call with the plan's partition, account and time, for one task."""
        chosen = {
            "job-name": "dlctl", "nodes": 1, "ntasks": 1,
            "cpus-per-task": plan.resources.cpus_per_learner,
            **where(plan, plan.resources.memory_bytes_per_learner),
        }  # fmt: skip
        options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
        options += [option for option in plan.batch.extra if option.startswith(_EXTRA_OF_SRUN)]
        argv = ["srun", "--input=none", "--mpi=none", *options, "/bin/sh", "-c", script]
        return f"{self.prologue()}exec {shlex.join(argv)}\n"

    def prologue(self) -> str:
        """Return what the scripts of one call have in common."""
        prefix = f"PATH={shlex.quote(self.path)}:$PATH; export PATH\n" if self.path else ""
        return prefix + CLEAN_ENVIRONMENT

    @staticmethod
    def _sacct(selection: str, fields: str = HISTORY_FIELDS, rows: str = "--allocations") -> str:
        return (
            "limit=; if command -v timeout >/dev/null 2>&1; then"
            f" limit='timeout {HISTORY_LIMIT_S}'; fi\n"
            "# shellcheck disable=SC2086\n"
            f"$limit sacct {rows} --noheader --parsable2 --delimiter='{UNIT}'"
            f" --format={fields} {selection} </dev/null\n"
        )


def _sentences(text: str) -> str:
    """Return sbatch's own messages (or else all) on one line, without the repeated prefix."""
    lines = [line.strip() for line in lines_of(text) if line.strip()]
    own = [line for line in lines if line.startswith("sbatch: ")]
    return "; ".join(re.sub(r"^sbatch: (error: |fatal: )?", "", line) for line in own or lines)
