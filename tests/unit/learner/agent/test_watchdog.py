"""The watchdog: how it judges an exit, and its status file."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from repository import REPOSITORY
from scheduler_plan import make_plan

from dlctl.contract import Directive, State, Status, attempt_dir, read_record
from learner.agent import watchdog
from learner.agent.stacks import Stacks
from learner.agent.watchdog import Program, Stop, Watchdog, conclude, decode_exit
from learner.frameworks import COMMAND
from learner.frameworks import LOOP as BUILT_IN
from learner.job import status as heartbeat
from learner.job.metrics import finished_file
from learner.job.status import STUCK, Heartbeat, last_lines
from learner.supervisor.explanation import explain
from learner.supervisor.worker_group.worker import is_too_slow
from learner.system import processes
from learner.system.signals import HaltFlag

SHELL, LOOP = COMMAND.traits, BUILT_IN.traits


@pytest.fixture(autouse=True)
def _attempt(tmp_path):
    (tmp_path / attempt_dir(1)).mkdir(parents=True)


@pytest.fixture(autouse=True)
def _spares_what_was_there(monkeypatch):
    """A watchdog ends all descendants of its process; it must not end pytest's, like the zygote."""
    find = processes.descendants
    before = frozenset(find(os.getpid()))
    monkeypatch.setattr(
        processes, "descendants", lambda pid, without=frozenset(): find(pid, without | before)
    )


class Silent:
    """An outside that requests nothing."""

    def directive(self):
        return None

    def abandoned(self):
        return ""

    def expelled(self):
        return ""


@pytest.mark.parametrize(
    ("returncode", "traits", "stop", "killed", "state"),
    [
        (0, SHELL, Stop.NONE, False, State.COMPLETED),
        (3, SHELL, Stop.NONE, False, State.FAILED),
        (-9, LOOP, Stop.NONE, False, State.FAILED),
        (85, LOOP, Stop.NONE, False, State.HALTED),
        (0, SHELL, Stop.HALT, False, State.HALTED),
        (-9, SHELL, Stop.HALT, True, State.HALTED),
        (0, LOOP, Stop.HALT, False, State.COMPLETED),
        (-9, LOOP, Stop.HALT, True, State.FAILED),
        (-signal.SIGUSR2, LOOP, Stop.HALT, False, State.HALTED),
        (1, LOOP, Stop.HALT, False, State.FAILED),
        (0, SHELL, Stop.ENDED, False, State.HALTED),
        (85, SHELL, Stop.ENDED, False, State.CANCELLED),
        (85, LOOP, Stop.ENDED, False, State.HALTED),
        (-15, SHELL, Stop.ENDED, False, State.CANCELLED),
        (0, SHELL, Stop.CANCEL, False, State.CANCELLED),
    ],
)
def test_exit_code_and_request_decide_the_state(returncode, traits, stop, killed, state):
    assert conclude(returncode, traits, stop, killed)[0] is state


def test_a_shells_exit_code_shows_the_signal():
    assert decode_exit(137, SHELL) == (137, 9)
    assert decode_exit(137, LOOP) == (137, None)
    assert decode_exit(-11, SHELL) == (None, 11)


def test_last_lines_are_read_from_odd_logs(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == []
    log.write_bytes(b"x" * 100_000 + b"\n\xff\xfe\r\n\n" + b"line\n" * 30)
    assert last_lines(log) == ["line"] * 20
    assert last_lines(log, 31)[0] == "\ufffd\ufffd"


def test_a_full_disk_keeps_the_heartbeat_going(tmp_path, monkeypatch):
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    assert heart.set(state=State.TRAINING)
    os.utime(heart.path, (1, 1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heartbeat, "write_whole", full)
    assert not heart.set(step=5)
    assert "No space left" in heart.warning
    assert heart.path.stat().st_mtime > 1
    monkeypatch.undo()
    assert heart.set()
    assert (heart.warning, read_record(Status, heart.path).step) == ("", 5)


def test_progress_of_the_loop_is_merged_and_halt_waits_for_its_handler(tmp_path):
    progress = tmp_path / "progress.json"
    code = (
        "import json, os, signal, sys\n"
        "from learner.errors import EXIT_HALTED\n"
        "from learner.system.signals import HaltFlag\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n"  # comes before the handler
        "flag = HaltFlag().install()\n"
        "told = {'step': 7, 'epoch': 2, 'metrics': {'loss': 0.5}, 'done': 1.5}\n"
        f"json.dump(told, open({str(progress)!r}, 'w'))\n"
        "sys.exit(EXIT_HALTED if flag else 1)\n"
    )
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    program = Program([sys.executable, "-c", code], env, tmp_path, tmp_path / "log", LOOP, progress)
    assert Watchdog(program, heart, Silent(), HaltFlag()).run() == 0
    status = read_record(Status, heart.path)
    assert (status.state, status.exit_code) == (State.HALTED, 85), last_lines(tmp_path / "log")
    assert (status.step, status.epoch, status.metrics) == (7, 2, {"loss": 0.5})
    assert status.done == 1.0


@pytest.mark.parametrize(("handles", "state"), [(False, State.FAILED), (True, State.HALTED)])
@pytest.mark.parametrize("end", ["", "\nexit 85"])
def test_a_shell_says_of_a_program_that_hung_in_mpi_that_it_was_halted(
    tmp_path, monkeypatch, handles, state, end
):
    """Only with `exec` the watchdog saw the signal: else a chain of jobs repeated the hang."""
    monkeypatch.setattr(watchdog, "STUCK_S", 0.0)
    monkeypatch.setattr(watchdog, "POLL_S", 0.05)
    monkeypatch.setattr(Watchdog, "_has_mpi", lambda _: True)

    class Halts(Silent):
        def directive(self):
            hangs = "in MPI" in read_record(Status, heart.path).reason
            return Directive("halt", "the time limit is near", 0.0, grace_s=5) if hangs else None

    code = "import signal, time, threading; signal.signal(signal.SIGUSR2, signal.SIG_DFL)\n"
    if handles:  # it saves, and ends
        code = "import os, signal, time, threading\n"
        code += "signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))\n"
    code += "threading.Thread(target=time.sleep, args=[9]).start(); raise ValueError('no labels')"
    shell = f"trap 'exit 85' USR2; {sys.executable} -c \"$CODE\"{end}"
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    program = Program(["/bin/sh", "-c", shell], {**os.environ, "CODE": code}, tmp_path,
                      tmp_path / "log", SHELL, tmp_path / "progress.json")  # fmt: skip
    Watchdog(program, heart, Halts(), HaltFlag()).run()
    status = read_record(Status, heart.path)
    assert status.state is state, last_lines(tmp_path / "log")
    assert (status.reason == STUCK) is (state is State.FAILED)


def test_a_loop_that_does_not_save_in_time_is_reported_as_too_slow(tmp_path):
    class Halts(Silent):
        def directive(self):
            ready = (tmp_path / "log").read_text()
            return Directive("halt", "halted on request", 0.0, grace_s=0.1) if ready else None

        def expelled(self):
            return ""

    code = (
        "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: None)\n"
        "print('ready', flush=True); time.sleep(20); time.sleep(20)"
    )
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    program = Program(
        [sys.executable, "-c", code], os.environ, tmp_path, tmp_path / "log", LOOP,
        tmp_path / "progress.json",
    )  # fmt: skip
    assert Watchdog(program, heart, Halts(), HaltFlag()).run() == 128 + signal.SIGTERM
    status = read_record(Status, heart.path)
    assert is_too_slow(status) and status.signal == signal.SIGTERM
    outcome = explain(make_plan(), status)
    told, hint = outcome.reason, outcome.hint
    assert told.endswith("did not save its state within the grace period and was killed.")
    assert hint.startswith("Let it save more often, by itself, so that less is lost.")


class SignalledLate:
    """A flag that the launcher's SIGTERM sets once the program is dead, by a look or two later."""

    def __init__(self, looks):
        self.looks = looks

    def __bool__(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(("code", "looks", "ended"), [
    ("kill -TERM $$", 0, (State.CANCELLED, 143)),
    ("kill -TERM $$", 3, (State.CANCELLED, 143)),
    ("kill -TERM $$", 10_000, (State.FAILED, 143)),
    ("exit 1", 0, (State.CANCELLED, 1)),  # it handles SIGTERM
    ("exit 1", 3, (State.FAILED, 1)),
    ("exit 0", 0, (State.HALTED, 0)),  # it may have saved: after scancel it was COMPLETED
    ("exit 0", 3, (State.COMPLETED, 0)),
])  # fmt: skip
def test_a_program_that_dies_of_the_launchers_sigterm_first_is_a_victim(
    tmp_path, code, looks, ended
):
    """The launcher signals the program and its watchdog, in any order."""
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    program = Program(["sh", "-c", f"sh -c '{code}'; exit"], os.environ, tmp_path,
                      tmp_path / "log", SHELL, tmp_path / "progress.json")  # fmt: skip
    Watchdog(program, heart, Silent(), SignalledLate(looks)).run()
    status = read_record(Status, heart.path)
    assert (status.state, status.exit_code) == ended


def test_an_exit_code_is_noted_before_all_else_ends(tmp_path, monkeypatch):
    """Slurm's PMIx kills the watchdog, too, once a program has left MPI's world without a word."""
    heart = Heartbeat(tmp_path, "learner", 0, 1)
    program = Program(["sh", "-c", "exit 3"], os.environ, tmp_path, tmp_path / "log", SHELL,
                      tmp_path / "progress.json")  # fmt: skip
    watchdog = Watchdog(program, heart, Silent(), HaltFlag())
    noted = []
    monkeypatch.setattr(watchdog, "_end_leftovers",
                        lambda: noted.append(read_record(Status, heart.path)))  # fmt: skip
    watchdog.run()
    assert [(each.state, each.exit_code) for each in noted] == [(State.TRAINING, 3)]


def status_after(path, *, finished=True, code=0):
    """Watch a loop that ends at once and has left this file of progress."""
    heart = Heartbeat(path.parent, "learner", 0, 1)
    program = Program(["true"], os.environ, path.parent, path.with_name("log"), LOOP, path)
    if finished:
        finished_file(path).touch()
    assert Watchdog(program, heart, Silent(), HaltFlag()).run() == code
    assert "NaN" not in heart.path.read_text()
    return read_record(Status, heart.path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", json.dumps({"step": "x"}), '{"done": []}', '{"metrics": 3}', "[" * 100_000,
     '{"step": Infinity}', f'{{"metrics": {{"loss": 1{"0" * 400}}}}}'],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_unreadable_progress_is_ignored(tmp_path, text):
    path = tmp_path / "progress.json"
    path.write_text(text)
    assert status_after(path).step is None


def test_what_is_no_number_becomes_null_so_that_the_status_is_json(tmp_path):
    """json.dumps of a user's program writes NaN and Infinity, which are no JSON."""
    path = tmp_path / "progress.json"
    path.write_text('{"metrics": {"loss": NaN, "rate": -Infinity, "top": 1}, "done": NaN}')
    status = status_after(path)
    assert status.metrics == {"loss": None, "rate": None, "top": 1.0}
    assert status.done is None


@pytest.mark.parametrize(
    ("finished", "state", "reason"),
    [
        (True, State.COMPLETED, "the loss is nan since step 1"),
        (False, State.FAILED, "ended before the training loop had finished"),
    ],
)
def test_exit_code_0_of_the_loop_counts_once_it_has_finished(tmp_path, finished, state, reason):
    path = tmp_path / "progress.json"
    path.write_text('{"metrics": {"loss": null}, "warning": "the loss is nan since step 1"}')
    status = status_after(path, finished=finished, code=0 if finished else 1)
    assert (status.state, status.reason, status.metrics) == (state, reason, {"loss": None})


@pytest.mark.parametrize(
    ("quiet_s", "told", "rate", "waits"),
    [(2, 20.0, 20.0, 0.03), (20, 20.0, 0.05, None), (20, 0.06, 0.05, 0.03), (20, 0.04, 0.04, 0.03)],
)
def test_a_silent_learners_push_rate_falls(tmp_path, quiet_s, told, rate, waits):
    """A learner may wait for others or for a long chunk, or others may wait for it."""
    path = tmp_path / "progress.json"
    told_last = {"pushes_per_s": told, "wait_share": 0.03, "loss": 1.0}
    path.write_text(json.dumps({"metrics": told_last}))
    os.utime(path, (time.time() - quiet_s,) * 2)
    metrics = status_after(path).metrics
    slowed = pytest.approx(rate, rel=0.1)
    assert metrics == {"pushes_per_s": slowed, "wait_share": waits, "loss": 1.0}


def test_descendants_and_handled_signals_are_found():
    code = (
        "import signal, sys; signal.signal(signal.SIGUSR2, print); print(1, flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert child.pid in processes.descendants(os.getpid())
        assert processes.takes(child.pid, signal.SIGUSR2)
        assert not processes.takes(child.pid, signal.SIGUSR1)
        child.stdin.close()
    assert child.pid not in processes.descendants(os.getpid())


def test_a_halt_flag_restores_the_handlers():
    before = signal.getsignal(signal.SIGUSR2)
    flag = HaltFlag().install()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert flag.is_set
    assert flag.received == [signal.SIGUSR2]
    flag.restore()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_signal_at_the_very_end_does_no_harm():
    code = (
        "import os, signal; from learner.system.signals import HaltFlag\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 12)\n"
        "flag = HaltFlag(12).install(); late = Late(); late.me = late\n"
    )
    root = REPOSITORY
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


REGISTERED = """\
import sys, time
sys.path.insert(0, {path!r})
from learner.job.stacks import register
register()
def stall():
    print("ready", flush=True)
    time.sleep(600)
stall()
"""


@pytest.fixture
def started():
    """Start a program, and return it once it has printed a line."""
    running = []

    def start(program, *arguments, **env):
        argv = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env)
        running.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_blocked_program_shows_its_stack_and_lives_on(tmp_path, started):
    own, saved = tmp_path / "own.txt", tmp_path / "stacks/0.txt"
    program = REGISTERED.format(path=str(REPOSITORY))
    pid = started(program, DLCTL_STACKS_FILE=str(own))
    for _ in range(2):  # may be asked again
        Stacks(own, saved).save([pid])
        text = saved.read_text()
        assert text.count("in stall") == 1, text
        assert f"== process {pid}: " in text


def test_of_other_programs_linux_tells_and_secrets_are_masked(tmp_path, started):
    program = "import time; print('ready', flush=True); time.sleep(600)"
    pid = started(program, "--token=hunter2")
    Stacks(tmp_path / "own.txt", tmp_path / "stacks/0.txt").save([pid, 2**22 + 1], ["hunter2"])
    text = (tmp_path / "stacks/0.txt").read_text()
    assert f"== process {pid}: " in text and "1 threads" in text
    assert "--token=***" in text and "hunter2" not in text


def test_py_spy_is_asked_where_it_is_installed(tmp_path, started, monkeypatch):
    spy = tmp_path / "py-spy"
    spy.write_text('#!/bin/sh\necho "Python stack of $3 by $1"\n')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    pid = started("import time; print('ready', flush=True); time.sleep(600)")
    Stacks(tmp_path / "own.txt", tmp_path / "stacks/0.txt").save([pid])
    assert f"Python stack of {pid} by dump" in (tmp_path / "stacks/0.txt").read_text()
