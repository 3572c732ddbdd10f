"""Last words: why a job ended, the space kept for a verdict, and tracebacks in logs."""

import errno
import signal
import subprocess
from pathlib import Path

import pytest
from scheduler_plan import make_plan

from dlctl.contract.ground import processes
from dlctl.contract.programs.hidden_failures import failure_at_end
from dlctl.contract.programs.tracebacks import TracebackReader, place_before, shorten
from dlctl.contract.programs.verdict_rules import explain
from learner.system.files import SIZE_BYTES, Reserve, is_full


@pytest.mark.parametrize(
    ("line", "reason", "hint"),
    [
        (
            "slurmstepd-n1: error: StepId=1.batch exceeded memory limit (529694720 > 209715200), "
            "being killed",
            "more memory than it had asked for (505 MiB; asked for 200 MiB)",
            "--memory 4GiB",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "more memory", "--memory"),
        ("slurmstepd: error: *** JOB 7 CANCELLED AT x DUE TO NODE FAILURE ***", "node", "resume"),
        ("slurmstepd: error: *** JOB 7 CANCELLED AT x DUE TO TIME LIMIT ***", "time", "--time"),
        ("dlctl: cat: write error: No space left on device", "full", "dlctl du s`"),
    ],
)  # fmt: skip
def test_slurms_words_are_understood(line, reason, hint):
    told = explain(["12:00:00 TRAINING: train.py", line, "12:00:01 the last line"], make_plan())
    assert told is not None
    assert reason in told.reason
    assert hint in told.hint
    assert "dlctl resume t-1" in told.hint
    nothing = ["12:00:00 TRAINING: train.py", "slurmstepd: *** JOB 7 CANCELLED ***"]
    assert explain(nothing, make_plan()) is None and explain([], make_plan()) is None


def test_a_reserve_takes_space_until_it_is_freed(tmp_path):
    file = tmp_path / "new folder/reserve"
    reserve = Reserve(file)
    assert file.stat().st_size == SIZE_BYTES
    reserve.free()
    reserve.free()
    assert not file.exists()


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_disk_is_full_when_nothing_can_be_written(tmp_path, monkeypatch, number, full):
    assert not is_full(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def refuse(self, data):
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    Reserve(tmp_path / "reserve")
    assert is_full(tmp_path) is full


LEAVES = "sleep 600 & echo $!; exit 3"
STAYS = "trap '' TERM; sleep 600 & echo $!; wait"


@pytest.mark.parametrize(
    ("program", "leave_s", "code"), [(LEAVES, 60.0, 3), (STAYS, 0.1, -signal.SIGKILL)]
)
def test_a_group_gets_time_to_leave_and_nothing_of_it_stays(program, leave_s, code, wait_until):
    with subprocess.Popen(
        ["/bin/sh", "-c", program], start_new_session=True, stdout=subprocess.PIPE
    ) as child:
        beside = int(child.stdout.readline())
        assert processes.end_child(child, leave_s, ask=code < 0, group=True) == code
        wait_until(lambda: not processes.started(beside))


# Tracebacks: which frame is the user's, and what people are shown of the others -------------------

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules"
RUNTIME = "/home/me/dlctl/runtime/d693e6f25fcecd1ffcc7f6e69cbf5856/learner"
CODE = "/home/me/dlctl/jobs/digits-3k9f/code"
FULL = f"""\
Traceback (most recent call last):
  File "{RUNTIME}/train.py", line 40, in main
    finished = train_together(job)
               ^^^^^^^^^^^^^^^^^^^
  File "{TORCH}/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args)
  File "{CODE}/train.py", line 14, in forward
    return self.head(x)
           ^^^^^^^^^^^^
  File "{TORCH}/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args)
  File "{TORCH}/linear.py", line 134, in forward
    return F.linear(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x1024 and 1280x128)""".splitlines()
SHORT = """\
Traceback (most recent call last):
  File "train.py", line 14, in forward
    return self.head(x)
           ^^^^^^^^^^^^
  … 2 calls in packages, the last at torch/nn/modules/linear.py:134
RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x1024 and 1280x128)""".splitlines()


@pytest.mark.parametrize("prefix", ["", "[rank 1 on n2] ", "[rank1]: "])
def test_a_traceback_begins_at_the_users_program(prefix):
    full, short = ([prefix + line for line in lines] for lines in (FULL, SHORT))
    assert shorten(["before", *full, "after"]) == ["before", *short, "after"]
    assert shorten(shorten(full)) == short
    chained = "During handling of the above exception, another exception occurred:"
    assert shorten([*full, "", chained, "", *full]) == [*short, "", chained, "", *short]
    for lines in (FULL, SHORT):
        assert place_before(lines, lines[-1]) == "train.py:14"


def test_a_traceback_without_a_frame_of_the_user_says_where_it_ended_and_has_no_place():
    lines = [FULL[0], *FULL[4:6], *FULL[-3:]]
    assert shorten(lines) == [FULL[0], SHORT[-2], SHORT[-1]]
    assert place_before(lines, lines[-1]) == ""
    assert shorten(shorten(lines)) == shorten(lines)
    assert place_before(shorten(lines), lines[-1]) == ""


@pytest.mark.parametrize(("path", "place"), [
    (f"{CODE}/models/net.py", "models/net.py:7"),
    (f"{CODE}/venv/lib/python3.11/site-packages/x/y.py", ""),
    ("/usr/lib64/python3.9/json/decoder.py", ""),
    ("/usr/local/lib/python3.10/dist-packages/torch/__init__.py", ""),
    ("<frozen importlib._bootstrap>", ""),
    ("/venv/bin/torchrun", ""),
    ("<string>", "<string>:7"),
    ("train.py", "train.py:7"),
    ("/shared/project/train.py", "/shared/project/train.py:7"),
])  # fmt: skip
def test_which_files_are_the_users(path, place):
    lines = [FULL[0], f'  File "{path}", line 7, in f', "KeyError: 3"]
    assert place_before(lines, lines[-1]) == place


def test_the_submitted_program_comes_before_other_programs():
    other = '  File "/shared/library/x.py", line 3, in f'
    lines = [*FULL[:6], other, *FULL[6:9], other, FULL[-1]]
    assert place_before(lines, lines[-1]) == "train.py:14"
    assert other not in shorten(lines)


def test_an_unfinished_traceback_is_not_lost():
    assert shorten(FULL[:-1]) == SHORT[:-1]
    assert shorten(FULL[:1]) == FULL[:1]
    assert shorten([FULL[0], "no frame follows"]) == [FULL[0], "no frame follows"]
    mine = ["[rank 0 on n1] " + line for line in FULL]
    assert shorten([*mine[:9], "stray", "more"])[-2:] == ["stray", "more"], "of another process"
    # int() refuses more than 4,300 digits: the watchdog of such a program died.
    lines = [FULL[0], f'  File "a.py", line {"9" * 5000}', "E: x"]
    assert shorten(lines) == lines


def test_two_processes_that_fail_alike_are_recognized():
    def read(lines):
        reader = TracebackReader()
        (found,) = [each for line in lines for each in reader.feed(line)]
        return found

    same = [line.replace("32x1024", "31x1024") for line in FULL]
    other = [line.replace("train.py", "other.py") for line in FULL]
    assert read(FULL).failure == read(["[rank 1 on n2] " + line for line in same]).failure
    assert read(FULL).failure != read(other).failure


TRACED = ["Traceback (most recent call last):", '  File "train.py", line 14, in <module>',
          "    raise ValueError()", "    ^^^^^^^^^^^^^^^^^^", "ValueError: no labels"]  # fmt: skip
RESUMED = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize(("lines", "error"), [
    (["epoch 1", *TRACED], "ValueError: no labels"),
    ([*TRACED, "done"], "ValueError: no labels"),
    ([*TRACED, "", RESUMED, "", *TRACED[:-1], "KeyError: 'x'"], "KeyError: 'x'"),
    ([*TRACED, "epoch 2", "epoch 3", "epoch 4", "epoch 5"], ""),  # it was survived
    (["epoch 1", "Exception ignored in: <function A.__del__ at 0x7f>", *TRACED], ""),
    ([*TRACED[:-1]], ""),
    (["epoch 1", "loss 0.3"], ""),
    (["[rank1]: Traceback (most recent call last):", '[rank1]:   File "train.py", line 44, in <m>',
      "[rank1]:     step()", "[rank1]: ValueError: mine", "done"], "ValueError: mine"),
    ([], ""),
])  # fmt: skip
def test_the_error_with_which_a_log_ends_is_found(lines, error):
    assert failure_at_end(lines) == (error and f"a traceback ({error})")


@pytest.mark.parametrize(("line", "failure"), [
    ("Segmentation fault", "Segmentation fault"),
    ("Segmentation fault (core dumped)", "Segmentation fault (core dumped)"),
    ("run.sh: line 2: 26518 Killed                  python train.py",
     "run.sh: line 2: 26518 Killed python train.py"),
    ("/bin/sh: 1: pythn: not found", "/bin/sh: 1: pythn: not found"),
    ("run.sh: line 2: pythn: command not found", "run.sh: line 2: pythn: command not found"),
    ("/venv/bin/python: can't open file '/j/code/tran.py': [Errno 2] No such file or directory",
     "/venv/bin/python: can't open file '/j/code/tran.py': [Errno 2] No such file or directory"),
    ("Killed 3 weak samples", ""),
    ("epoch 3: key not found", ""),
    ("step: 100: best.pt not found", ""),
])  # fmt: skip
def test_what_a_shell_says_of_a_program_that_failed_is_found(line, failure):
    for lines in ([line], ["epoch 1", line, "done"]):
        assert failure_at_end(lines) == (failure and f"'{failure}'")
    assert failure_at_end([line, *["epoch"] * 4]) == ""
