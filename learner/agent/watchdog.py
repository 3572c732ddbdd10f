"""The watchdog beside each learner: heartbeat, halt and stop, last lines, exit reason.

It imports neither torch nor MPI: it must survive whatever happens to the learner. The learner's own
output goes straight to its log.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlctl.contract import STOPPING, State
from dlctl.contract.ground.safe_text import masked
from dlctl.contract.metrics import PUSHES_PER_S, WAIT_SHARE, finite
from dlctl.contract.programs.hidden_failures import failure_at_end
from dlctl.contract.programs.tracebacks import error_at_end
from learner.agent.stacks import Stacks
from learner.collect.companion import Companion
from learner.errors import EXIT_HALTED
from learner.frameworks.base import Traits
from learner.job.directives import POLL_S, STACKS, Outside, is_gone, is_there
from learner.job.metrics import finished_file
from learner.job.status import STUCK, UNFINISHED, UNHEEDED, UNSAVED, Heartbeat, end_line, last_lines
from learner.system import processes
from learner.system.files import FULL_DISK, Reserve, is_full
from learner.system.signals import HaltFlag

TICK_S = 0.1
STUCK_S = 60.0
"""After this long without another line, an exception at the end of a log was the last word."""
TERM_S = 5.0
"""Between SIGTERM and SIGKILL."""
EXPELLED_S = 0.5
"""Grace period of a learner that is out of the training: it must not save anything."""
QUIET_S = 5.0
"""After this long without a report, a learner's rate of pushes is lowered. (A learner reports each
push at once; of rapid pushes it skips some.)"""
ENDED_TOO_S = 0.5
"""How much later than its program a watchdog may get the SIGTERM with which the launcher ends both.
"""
LEFTOVER_S = 2.0
"""How long processes that the learner left behind may take to end after SIGTERM."""


class Stop(enum.Enum):
    """Why a learner is being ended early."""

    NONE = "none"
    HALT = "halt"
    CANCEL = "stop"
    ENDED = "ended"
    """The launcher ended this process: another learner failed, or the job is ending."""


@dataclass(frozen=True)
class Program:
    """The program that the watchdog runs."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    traits: Traits
    progress: Path
    ended_grace_s: float = 0.5
    """How long the learner may keep saving after the launcher ends this process."""
    secrets: list[str] = field(default_factory=list)
    """Values that must not reach a status file."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the status file holds beside the learner's own."""
    warning: str = ""
    """Written to the log at the start, and shown unless the learner has a warning of its own."""
    stacks: Stacks | None = None
    """Where the learner's stacks are found if the supervisor asks for them."""
    companion: Companion | None = None
    """The collector, which measures the learner and parses its output."""


def decode_exit(returncode: int, traits: Traits) -> tuple[int | None, int | None]:
    """Return (exit code, signal); a shell reports its program's signal as 128 + number."""
    if returncode < 0:
        return None, -returncode
    if traits.in_shell and 128 < returncode <= 128 + 64:
        return returncode, returncode - 128
    return returncode, None


def conclude(
    returncode: int, traits: Traits, stop: Stop, killed: bool, finished: bool = True
) -> tuple[State, str]:
    """Return a learner's final state, with the reason in a few words.

    Args:
        finished: whether the built-in loop marked its end; means nothing for a command.
    """
    if stop is Stop.CANCEL:
        return State.CANCELLED, "stopped on request"
    # The shell around a command exits with 85 however its program reacted to the signal.
    if stop is Stop.ENDED and traits.in_shell:
        # A program that handles SIGTERM may have saved and ended with 0: it need not be done.
        return (
            (State.CANCELLED, "ended by the launcher") if returncode else (State.HALTED, "stopped")
        )
    if returncode == EXIT_HALTED:
        return State.HALTED, "saved and stopped"
    if stop is Stop.HALT and not traits.is_our_loop:
        return State.HALTED, "did not stop in time and was killed" if killed else "stopped"
    if stop is Stop.HALT and returncode == -signal.SIGUSR2:
        # The built-in loop blocks the signal until it can handle it, so it was already ending.
        return State.HALTED, "stopped"
    if returncode == 0:
        done = finished or not traits.is_our_loop
        return (State.COMPLETED, "") if done else (State.FAILED, UNFINISHED)
    if stop is Stop.HALT and killed:
        return State.FAILED, UNSAVED
    if stop is Stop.ENDED:
        return State.CANCELLED, "ended by the launcher"
    code, number = decode_exit(returncode, traits)
    return State.FAILED, f"killed by signal {number}" if number else f"exit code {code}"


class Watchdog:
    """Runs one program to its end and records its state in the status file."""

    def __init__(self, program: Program, heart: Heartbeat, outside: Outside, flag: HaltFlag):
        self.program, self.heart, self.outside = program, heart, outside
        self.flag = flag
        """Set once the launcher ends this process."""
        self.stop = Stop.NONE
        self.killed = False
        self._has_ended = threading.Event()
        self._end_fd = -1
        self.overdue = False
        """Whether a halted program was still running at the end of the grace period."""
        self._child: subprocess.Popen[bytes]
        self._guard: processes.Guard
        self._reserve: Reserve
        self._halt_pids: list[int] = []
        self._halt_pids_gone_at: float | None = None
        self._term_at = self._kill_at = float("inf")
        self._expelled = False
        self._look_at = 0.0
        self._quiet_bytes, self._quiet_since = -1, 0.0
        self._stuck = ""
        """The error after which the program seems to hang in MPI."""
        self._stacks_of = 0.0
        """When the supervisor asked for the stacks that were saved last."""

    def run(self) -> int:
        """Run the program; return the exit code for the launcher.

        A halted learner returns 0: with any other code mpirun and srun would kill the other
        learners, which may still be saving.
        """
        self._guard = processes.Guard()
        self._reserve = Reserve(self.heart.path.with_suffix(".reserve"))
        self._start()
        self._guard.watch(self._child.pid)
        companion = self.program.companion
        if companion is not None:
            companion.start()
        self.heart.set(state=State.TRAINING, reason="")
        while (returncode := self._wait()) is None:
            self._tick()
        self._note_end(returncode)
        self._end_leftovers()
        if companion is not None:
            companion.finish()
        self._guard.dismiss()
        # The launcher may be ending this process, too: the status comes first.
        code = self._report(returncode)
        if companion is not None:
            companion.end()
        return code

    def _start(self) -> None:
        program = self.program
        with contextlib.suppress(OSError):  # a full disk
            how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._end_fd = os.open(self.heart.path.with_suffix(".end"), how, 0o666)
        # A halt stays pending until the built-in loop has installed its handler. A user's program
        # may not handle the signal at all: it gets the system's default.
        if program.traits.is_our_loop:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        program.log.parent.mkdir(exist_ok=True)
        with program.log.open("ab") as log:
            if program.warning:
                with contextlib.suppress(OSError):  # a full disk
                    log.write(f"dlctl: WARNING: {program.warning}\n".encode())
                    log.flush()
            self._child = subprocess.Popen(
                program.argv,
                cwd=program.cwd,
                env=dict(program.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # MPI libraries talk to their launcher over inherited descriptors (PMI_FD).
                close_fds=False,
                preexec_fn=_lead_group,  # `process_group=0` is new in Python 3.11
            )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        threading.Thread(target=self._await_child, name="await the program", daemon=True).start()

    def _await_child(self) -> None:
        """Note the end and wake the watchdog: because of it MPI may be about to kill all of them.

        A status takes a few milliseconds more, which a watchdog on a busy node does not have.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main one's
        with contextlib.suppress(OSError):
            end = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
            if end is not None and self.stop is Stop.NONE and not self.flag:
                returncode = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                os.write(self._end_fd, end_line(*decode_exit(returncode, self.program.traits)))
        self._has_ended.set()

    def _wait(self) -> int | None:
        self._has_ended.wait(TICK_S)
        return self._child.poll()

    def _note_end(self, returncode: int) -> None:
        """Write how the program ended before anything else, and whether the launcher ended it.

        The launcher sends SIGTERM to the program and to this process: the program may die first.
        """
        if self.stop is not Stop.NONE:
            return
        code, number = decode_exit(returncode, self.program.traits)
        self.heart.set(exit_code=code, signal=number)
        until = time.monotonic() + (ENDED_TOO_S if number == signal.SIGTERM else 0.0)
        while not self.flag and time.monotonic() < until:
            time.sleep(TICK_S / 10)
        if self.flag:
            self.stop = Stop.ENDED

    def _tick(self) -> None:
        processes.reap_orphans(self._child.pid)
        now = time.monotonic()
        if self.flag and self.stop is Stop.NONE:
            self._halt(Stop.ENDED, self.program.ended_grace_s, "the launcher ended it")
        if now >= self._look_at:
            self._look_at = now + POLL_S
            self._look_outside()
            if self.stop is Stop.NONE:  # a shell prints which signal has ended its program
                self._look_at_log(now)
        self._escalate(now)
        progress, warning = self._progress()
        if self._stuck:
            warning = f"its log ends with a traceback ({self._stuck}); it still runs, maybe in MPI"
        if self.stop is Stop.NONE:
            progress["reason"] = warning
        self.heart.beat(**progress)

    def _look_outside(self) -> None:
        if not self._expelled and (why := self.outside.expelled()):
            self._expelled = True
            self._cancel(EXPELLED_S, why)
        if self.stop is Stop.NONE and (why := self.outside.abandoned()):
            self._halt(Stop.ENDED, self.program.ended_grace_s, why)
        if self.stop is Stop.CANCEL or (directive := self.outside.directive()) is None:
            return
        if directive.action == STACKS:
            self._save_stacks(directive.issued_at)
        elif directive.action == Stop.CANCEL.value:
            self._cancel(directive.grace_s, directive.reason)
        elif self.stop is Stop.NONE:
            self._halt(Stop.HALT, directive.grace_s, directive.reason)

    def _look_at_log(self, now: float) -> None:
        """Notice that a program of MPI has printed an exception, and nothing else for long."""
        with contextlib.suppress(OSError):
            size_bytes = self.program.log.stat().st_size
            if size_bytes != self._quiet_bytes:
                self._quiet_bytes, self._quiet_since, self._stuck = size_bytes, now, ""
            elif now - self._quiet_since > STUCK_S:
                self._quiet_since = float("inf")
                if not self.program.traits.is_our_loop and self._has_mpi():
                    self._stuck = error_at_end(self._last_words(), 0)

    def _has_mpi(self) -> bool:
        return any(b"libmpi" in Path(f"/proc/{pid}/maps").read_bytes() for pid in self._everyone())

    def _save_stacks(self, issued_at: float) -> None:
        if self.program.stacks is not None and issued_at != self._stacks_of:
            self._stacks_of = issued_at
            self.program.stacks.save(self._everyone(), self.program.secrets)

    def _halt(self, stop: Stop, grace_s: float, reason: str) -> None:
        """Ask the program to save and stop within the grace period."""
        self.stop = stop
        self._term_at = time.monotonic() + grace_s
        number = self.program.traits.halt_signal
        self._halt_pids = [pid for pid in self._family() if processes.takes(pid, number)]
        if self._halt_pids:
            # The signal would kill other processes, like a `tee` behind the program, and lose
            # the program's output; they end when the program ends.
            processes.send([self._child.pid, *self._halt_pids], number)
        else:
            processes.send_group(self._child.pid, number)
        self.heart.set(reason=f"{STOPPING}{reason}")

    def _cancel(self, grace_s: float, reason: str) -> None:
        self.stop = Stop.CANCEL
        self._term(time.monotonic(), grace_s)
        self.heart.set(reason=f"{STOPPING}{reason}")

    def _family(self) -> list[int]:
        """Return the learner's processes, without the shell that dlctl puts around a command."""
        shell = {self._child.pid} if self.program.traits.in_shell else set()
        return [pid for pid in self._everyone() if pid not in shell]

    def _everyone(self) -> list[int]:
        companion = self.program.companion
        own = {self._guard.pid, companion.pid if companion is not None else 0}
        return processes.descendants(self.heart.status.pid, frozenset(own))

    def _escalate(self, now: float) -> None:
        if self._halt_pids and self._halt_pids_gone_at is None and not self._halt_pids_alive():
            self._halt_pids_gone_at = now
            self._term_at = min(self._term_at, now + LEFTOVER_S)
        if now >= self._kill_at:
            self.killed = True
            self._send(signal.SIGKILL)
        elif now >= self._term_at:
            left = self._child.returncode is not None  # the child ended; its descendants still run
            self.overdue = self.stop is Stop.HALT and self._halt_pids_gone_at is None and not left
            self._term(now, TERM_S if self.stop is Stop.HALT else LEFTOVER_S)

    def _halt_pids_alive(self) -> bool:
        alive = self._everyone()
        return any(pid in alive for pid in self._halt_pids)

    def _term(self, now: float, grace_s: float) -> None:
        self._term_at, self._kill_at = float("inf"), now + grace_s
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        processes.send_group(self._child.pid, number)
        processes.send(self._everyone(), number)

    def _end_leftovers(self) -> None:
        """End processes that the program left running; in a halt, after the grace period."""
        if self.stop is not Stop.HALT or not self._halt_pids_alive():
            self._term_at = min(self._term_at, time.monotonic())
        while self._everyone():
            processes.reap_orphans(0)
            self._escalate(time.monotonic())
            self.heart.beat()
            time.sleep(TICK_S / 2)

    def _progress(self) -> tuple[dict[str, Any], str]:
        """Return the program's progress and warning; none if the file can't be read."""
        try:
            found = json.loads(self.program.progress.read_bytes())
            changed_at = self.program.progress.stat().st_mtime
            quiet_s = time.time() - changed_at
            numbers: dict[str, Any] = {
                k: int(found[k]) for k in ("step", "epoch") if found.get(k) is not None
            }
            numbers["progressed_at"] = changed_at
            done = found.get("done")
            if done is not None and finite(float(done)) is not None:
                numbers["done"] = min(1.0, max(0.0, float(done)))
            metrics = {
                str(k): None if v is None else finite(float(v))
                for k, v in (found.get("metrics") or {}).items()
            }
            _slow_down(metrics, quiet_s)
            warning = str(found.get("warning") or "")
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            numbers, metrics, warning = {}, {}, ""
        report = {**numbers, "metrics": {**metrics, **self.program.metrics}}
        return report, warning or self.program.warning

    def _report(self, returncode: int) -> int:
        traits = self.program.traits
        finished = is_there(finished_file(self.program.progress))
        # Unlike a command, the built-in loop does not handle SIGTERM.
        killed = self.killed or (
            self.overdue and traits.is_our_loop and returncode == -signal.SIGTERM
        )
        state, reason = conclude(returncode, traits, self.stop, killed, finished)
        code, number = decode_exit(returncode, traits)
        # The shell around a command hides by which signal its program ended.
        ended_by_signal = number is not None or self.overdue or not self._halt_pids
        if self._stuck and ended_by_signal and state is State.HALTED:
            state, reason = State.FAILED, STUCK
        words = self._last_words() if state in (State.FAILED, State.CANCELLED) else []
        progress, warning = self._progress()
        if state is State.COMPLETED:
            reason = "; ".join(filter(None, (self._unheeded_error(), warning)))
        if state is State.FAILED and is_full(self.heart.path.parent):
            words.append(FULL_DISK)
        self._reserve.free()
        for _ in range(10):
            if self.heart.set(
                state=state, reason=reason, exit_code=code, signal=number,
                last_lines=words, **progress,
            ) or is_gone(self.heart.path.parent):  # fmt: skip
                break
            time.sleep(0.5)
        if state in (State.COMPLETED, State.HALTED):
            return 0
        return 128 + number if number else code or 1

    def _unheeded_error(self) -> str:
        """Return the error with which a program's log ends whose exit code does not tell of it."""
        failure = "" if self.program.traits.is_our_loop else failure_at_end(self._last_words())
        return f"{UNHEEDED} {self.heart.status.rank} ends with {failure}" if failure else ""

    def _last_words(self) -> list[str]:
        return [masked(line, self.program.secrets) for line in last_lines(self.program.log)]


def _slow_down(metrics: dict[str, float | None], quiet_s: float) -> None:
    """Lower a learner's rate of pushes if it has not reported for long.

    Such a learner is stopped, or waits for another. Its last report would otherwise show forever a
    high rate and a small share of waiting.
    """
    rate = metrics.get(PUSHES_PER_S)
    if rate is not None and quiet_s > QUIET_S:
        metrics[PUSHES_PER_S] = min(rate, 1 / quiet_s)
        if rate * quiet_s > 2 and WAIT_SHARE in metrics:
            metrics[WAIT_SHARE] = None


def _lead_group() -> None:
    """Make the child the leader of a process group before it can start other processes."""
    os.setpgid(0, 0)
