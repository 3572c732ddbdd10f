"""Run one module of a job's runtime at its site, with the Python of the job.

The runtime travels with each job, so laptop and site never differ. A module answers with one JSON
value (`dlctl.contract.programs.answers`), framed by a random word, so that output of a login
shell, a module system or the user's own code is not taken for the answer. Its standard error is
progress.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.programs.advice import with_id
from dlctl.errors import RemoteCommandError, ResultsError
from dlctl.site_admin.setup import shell_environment, site_template, under_bash

if TYPE_CHECKING:
    from dlctl.contract import Environment, Plan
    from dlctl.lifecycle import Session
    from dlctl.transport import Transport


@dataclass(frozen=True)
class SiteRuntime:
    """This version's runtime at a site, and the site's own Python: no training is needed."""

    site: str
    root: str
    runtime_dir: str
    umask: str
    environment: Environment

    @property
    def folders(self) -> list[str]:
        """Return the folders that a container has to see."""
        return [self.root]


def run_module(
    session: Session, plan: Plan | SiteRuntime, module: str, arguments: Sequence[str] = (), *,
    timeout_s: float = 900.0, on_node: bool = False, on_line: Callable[[str], None] | None = None,
) -> Any:  # fmt: skip
    """Run `python -m MODULE ARGUMENTS` in the folder of a training's runtime; return its JSON.

    Args:
        on_node: In a job step of its own on a compute node (it waits in the queue), instead of
            where the transport's shell runs.
        on_line: Called with each line of standard error as it arrives.

    Raises:
        ResultsError: the module reported what is wrong, in one sentence.
        RemoteCommandError: it ended without an answer.
        TransportError
    """
    mark = f"dlctl-answer-{secrets.token_hex(8)}"
    script = module_script(plan, module, arguments, mark)
    if on_node and not isinstance(plan, SiteRuntime):
        script = session.scheduler.node_script(plan, script)
    lines = _Lines(on_line)
    end = session.transport.run(script, timeout_s=timeout_s, on_stderr=lines.add)
    lines.finish()
    found = _find(end.text, mark)
    if found is None:
        raise _unanswered(session.transport, module, end.exit_code, end.text, lines.newest, on_node)
    if "fault" in found:
        hint = str(found.get("hint", ""))
        hint = hint if isinstance(plan, SiteRuntime) else with_id(hint, plan.training_id)
        raise ResultsError(str(found["fault"]), hint=hint)
    return found.get("value")


def module_script(
    plan: Plan | SiteRuntime, module: str, arguments: Sequence[str], mark: str
) -> str:  # fmt: skip
    """Return the POSIX shell script that runs a module as the training's job would. Pure."""
    head = [
        f"umask {plan.umask}",
        f"runtime_dir={shlex.quote(plan.runtime_dir)}",
        f"python={shlex.quote(plan.environment.python)}",
        f"site={shlex.quote(plan.site)}",
        f"mark={mark}",
        f'node_module() {{ "$@" -m {shlex.join([module, *arguments])}; }}',
        site_template("host_python.sh"),
    ]
    environment = shell_environment(plan.environment, plan.folders)
    return under_bash("\n".join([*head, environment, site_template("node_side.sh")]))


class _Lines:
    """Standard error as lines: passed on as they arrive, the last ones kept for messages."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._rest = b""
        self.newest: list[str] = []

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._tell(line.decode(errors="replace").rstrip("\r"))

    def finish(self) -> None:
        if self._rest:
            self.add(b"\n")

    def _tell(self, line: str) -> None:
        if line.strip():
            self.newest = [*self.newest[-19:], line.strip()]
            if self._on_line is not None:
                self._on_line(line)


def _find(text: str, mark: str) -> dict[str, Any] | None:
    """Return the framed answer; None if it is missing or incomplete."""
    for line in reversed(lines_of(text)):
        before, found, rest = line.partition(f"{mark} ")
        if found and not before:
            try:
                value = json.loads(rest)
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


def _unanswered(
    transport: Transport, module: str, exit_code: int, text: str, newest: list[str], on_node: bool
) -> RemoteCommandError:
    words = {kind: rest for kind, _, rest in (line.partition(" ") for line in lines_of(text))}
    if why := words.get("dlctl-failed"):
        hint = words.get("dlctl-hint", "")
        return RemoteCommandError(f"{transport.name}: {why}", hint=hint)
    last = newest[-1] if newest else "it printed nothing"
    if re.search(r"No module named '?(learner|psrv|search|dlctl)\b", last):
        hint = "another version of dlctl has submitted this training: submit it again with this one"
    elif on_node:
        hint = "check the training's partition and account (dlctl show ID), then try again"
    else:
        hint = "check the site's Python (`dlctl doctor`); if it only works on compute nodes, add --on-node"  # noqa: E501
    return RemoteCommandError(
        f"{transport.name}: python -m {module} ended with exit code {exit_code} and no answer: "
        f"{last[:300]}",
        hint=hint,
    )
