"""Tracebacks in logs: which frame is the user's, and what people are shown of the others."""

import pytest

from dlctl.contract.programs.tracebacks import Traceback, TracebackReader, place_before, shorten

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


def test_the_place_is_the_users_last_line_before_and_after_shortening():
    assert place_before(FULL, FULL[-1]) == "train.py:14"
    assert place_before(SHORT, SHORT[-1]) == "train.py:14"


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


def test_chained_tracebacks_are_each_shortened():
    between = ["", "During handling of the above exception, another exception occurred:", ""]
    assert shorten([*FULL, *between, *FULL]) == [*SHORT, *between, *SHORT]


def test_an_unfinished_traceback_is_not_lost():
    assert shorten(FULL[:-1]) == SHORT[:-1]
    assert shorten(FULL[:1]) == FULL[:1]
    assert shorten([FULL[0], "no frame follows"]) == [FULL[0], "no frame follows"]


def test_lines_of_another_process_end_a_traceback():
    mine = ["[rank 0 on n1] " + line for line in FULL]
    assert shorten([*mine[:9], "stray", "more"])[-2:] == ["stray", "more"]


def test_two_processes_that_fail_alike_are_recognized():
    def read(lines: list[str]) -> Traceback:
        reader = TracebackReader()
        (found,) = [each for line in lines for each in reader.feed(line)]
        return found

    same = [line.replace("32x1024", "31x1024") for line in FULL]
    other = [line.replace("train.py", "other.py") for line in FULL]
    assert read(FULL).failure == read(["[rank 1 on n2] " + line for line in same]).failure
    assert read(FULL).failure != read(other).failure


def test_a_line_number_that_no_file_has_is_no_frame():
    """int() refuses more than 4,300 digits: the watchdog of such a program died."""
    lines = ["Traceback (most recent call last):", f'  File "a.py", line {"9" * 5000}', "E: x"]
    assert shorten(lines) == lines
