"""The login side of a scheduler that is made up: a job is a process in the background."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from dlctl import contract
from dlctl.scheduler.base import Job, Usage
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
class Toy:
    """Runs each job at once."""

    kind = "toy"
    allocates = True
    no_more: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def header(plan: contract.Plan) -> list[str]:
        return [f"#TOY tasks={plan.resources.tasks}"]

    def prologue(self) -> str:
        return ""

    def submit_script(self, plan: contract.Plan, attempt: int | str) -> str:
        return SUBMIT.format(
            jobs=self._jobs(plan.root), script=shlex.quote(contract.script_file(attempt)),
            attempt=attempt, output=shlex.quote(contract.job_output(attempt)),
            token=shlex.quote(contract.token(plan.training_id, attempt)),
        )  # fmt: skip

    def successors_script(self, plan: contract.Plan, attempt: int) -> str:  # noqa: ARG002
        return ""

    def workers_script(self, plan: contract.Plan, script: str, output: str) -> str:
        raise NotImplementedError

    def workers_alive_script(self, plan: contract.Plan) -> str:
        raise NotImplementedError

    def dismiss_script(self, job_dir: str) -> str:  # noqa: ARG002
        return ""

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:  # noqa: ARG002
        return stdout.rpartition("toy: ")[2].strip()

    def queue_script(self, root: str) -> str:
        return QUEUE.format(jobs=self._jobs(root))

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:  # noqa: ARG002
        return parse_rows(stdout)

    def history_script(self, job_ids: list[str]) -> str | None:  # noqa: ARG002
        return None

    def parse_history(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:  # noqa: ARG002
        return []

    def usage_script(self, job_ids: list[str]) -> str | None:  # noqa: ARG002
        return None

    def parse_usage(self, stdout: str) -> dict[str, Usage]:  # noqa: ARG002
        return {}

    def cancel_script(self, job_id: str, root: str) -> str:  # noqa: ARG002
        return f"kill -TERM -- -{shlex.quote(job_id)} 2>/dev/null || :\n"

    def halt_script(self, job_id: str, root: str) -> str | None:  # noqa: ARG002
        return None

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:
        pass

    def node_script(self, plan: contract.Plan, script: str) -> str:  # noqa: ARG002
        return script

    def _jobs(self, root: str) -> str:
        return shlex.quote(f"{root}/toy")
