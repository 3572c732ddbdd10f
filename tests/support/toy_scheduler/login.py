"""The login side of a scheduler that is made up: a job is a process in the background."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from dlctl import contract
from dlctl.scheduler.base import Job, Scheduler
from dlctl.scheduler.offer import Answers, FoundPartition, NodeGroup, Offer
from dlctl.scheduler.rows import parse_rows

SUBMIT = """mkdir -p {jobs}
setsid sh -c 'TOY_JOBID=$$; export TOY_JOBID; exec bash "$1" "$2" >>"$3" 2>&1' sh \
  {script} {attempt} {output} </dev/null >/dev/null 2>&1 &
printf %s {token} >{jobs}/$!
echo "toy: $!"
"""
QUEUE = r"""for file in {jobs}/*; do
  [ -e "$file" ] || continue
  if kill -0 "${{file##*/}}" 2>/dev/null; then state=RUNNING; else state=COMPLETED; fi
  printf '\036%s\037%s\037%s\037\037\037dlctl:%s' "${{file##*/}}" "$(cat "$file")" "$state" \
    "$(cat "$file")"
done
"""


@dataclass(frozen=True)
class Toy(Scheduler):
    """Runs each job at once."""

    kind = "toy"
    allocates = True

    @staticmethod
    def header(plan: contract.Plan) -> list[str]:
        return [f"#TOY tasks={plan.resources.learners}"]

    def questions(self) -> tuple[str, dict[str, str]]:
        return "", {"toy": "echo version=1"}

    def read_offer(self, answers: Answers) -> Offer | None:
        pairs = answers["toy"].pairs
        nodes = [NodeGroup(2, 4, None, 0, None, "idle"), NodeGroup(1, 4, None, 0, None, "down")]
        partition = FoundPartition("all", True, "up", 3600, None, nodes)
        return Offer(f"Toy {pairs['version']}", partitions=[partition]) if pairs else None

    def submit_script(self, plan: contract.Plan, attempt: int | str) -> str:
        return SUBMIT.format(
            jobs=self._jobs(plan.root), script=shlex.quote(contract.script_file(attempt)),
            attempt=attempt, output=shlex.quote(contract.job_output(attempt)),
            token=shlex.quote(contract.token(plan.training_id, attempt)),
        )  # fmt: skip

    def workers_script(self, plan: contract.Plan, script: str, output: str) -> str:
        raise NotImplementedError

    def workers_alive_script(self, plan: contract.Plan) -> str:
        raise NotImplementedError

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:  # noqa: ARG002
        return stdout.rpartition("toy: ")[2].strip()

    def queue_script(self, root: str) -> str:
        return QUEUE.format(jobs=self._jobs(root))

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:  # noqa: ARG002
        return parse_rows(stdout)

    def cancel_script(self, job_id: str, root: str) -> str:  # noqa: ARG002
        return f"kill -TERM -- -{shlex.quote(job_id)} 2>/dev/null || :\n"

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:
        pass

    def _jobs(self, root: str) -> str:
        return shlex.quote(f"{root}/toy")
