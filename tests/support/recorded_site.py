"""What real sites have answered, in the files of `tests/recorded/`."""

from dataclasses import replace

from repository import RECORDED

from dlctl.scheduler import SCHEDULERS, make_scheduler
from dlctl.scheduler.offer import Answers
from dlctl.site_admin.discovery import read_answers

ALL = [make_scheduler(kind) for kind in SCHEDULERS]
_MARK = "==dlctl== "


def answers(text):
    """Return each answer, between `==dlctl== NAME` and the next: errors stand behind `! `."""
    found, name = Answers(), ""
    for line in text.splitlines():
        before = found[name]
        if line.startswith(f"{_MARK}rc "):
            found[name] = replace(before, exit_code=int(line.split()[-1]))
        elif line.startswith(_MARK):
            name = line.removeprefix(_MARK)
        elif line.startswith("! "):
            found[name] = replace(before, errors=f"{before.errors}{line[2:]}\n")
        else:
            found[name] = replace(before, text=f"{before.text}\n{line}".strip("\n"))
    return found


def text_of(name):
    return (RECORDED / f"discovery-{name}.txt").read_text()


def recorded(name="slurm-22.05", schedulers=ALL):
    return read_answers(answers(text_of(name)), schedulers)
