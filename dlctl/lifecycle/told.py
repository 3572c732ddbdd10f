"""What the files of a training tell besides its state: plans, processes, verdict, orders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dlctl import contract
from dlctl.contract import State, understood
from dlctl.files.small_files import read_texts
from dlctl.lifecycle.orders import Ordered, given_orders
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import last_lines
from dlctl.record import Record
from dlctl.request.attempts import read_all


@dataclass(frozen=True)
class Attempt:
    """What an attempt was to run."""

    attempt: int
    resources: contract.Resources
    code_digest: str
    code_changes: list[str]
    """Of the files that were sent, since the attempt before."""


@dataclass(frozen=True)
class Told:
    """What the files of a training tell; of the newest attempt, if nothing else is said."""

    plan: contract.Plan
    attempts: list[Attempt]
    verdict: contract.Verdict | None
    learners: list[contract.Status]
    servers: list[contract.Status]
    homes: contract.Homes | None
    job_output: list[str]
    """The last lines of a failed job without a verdict, which would name the process at fault."""
    orders: list[Ordered]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"orders": [asdict(o) | {"text": str(o)} for o in self.orders]}


def told_by_site(session: Session, record: Record) -> Told:
    """Return what the files of a training tell.

    Raises:
        RecordError: they are lost, or of another version of dlctl.
        TransportError
    """
    files_of, n = read_all(session.transport, record), record.attempt
    plan, digests = files_of[-1].plan, [files.plan.code_digest for files in files_of]
    nodes = plan.resources.nodes if plan.parameter_server else 0
    learners = [contract.status_file(n, "learner", r) for r in range(plan.resources.learners)]
    servers = [contract.status_file(n, "server", node) for node in range(nodes)]
    about = [contract.verdict_file(n), contract.homes_file(n), contract.rulings_file(n)]
    names = [*about, *learners, *servers]
    texts = read_texts(session.transport, [f"{record.job_dir}/{name}" for name in names])
    verdict, homes, rulings, *statuses = (texts[f"{record.job_dir}/{name}"] for name in names)
    ruled = understood(contract.Rulings, rulings) or contract.Rulings()

    def known(role: str, files: list[bytes | None]) -> list[contract.Status]:
        own = (understood(contract.Status, text) for text in files)
        found = (ruled.on(role, rank, status) for rank, status in enumerate(own))
        return [status for status in found if status is not None]

    # A plan is taken over by the attempts after it, until one gets other code.
    attempts = [
        Attempt(files.attempt, files.plan.resources, files.plan.code_digest,
                files.plan.code_changes if digest != files.plan.code_digest else [])
        for files, digest in zip(files_of, ["", *digests], strict=False)
    ]  # fmt: skip
    is_unexplained = record.state is State.FAILED and not verdict
    return Told(
        plan, attempts, understood(contract.Verdict, verdict),
        known("learner", statuses[: len(learners)]), known("server", statuses[len(learners) :]),
        understood(contract.Homes, homes),
        last_lines(session, [record])[0] if is_unexplained else [], given_orders(session, record),
    )  # fmt: skip
