"""What a type checker knows of a program that uses the Python interface."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from repository import REPOSITORY

import dlctl
from dlctl import api

USER = """
import asyncio
from pathlib import Path
from typing import Any

import dlctl
from dlctl.errors import DlctlError, TrainingFailed


def train(lr: float) -> dlctl.Training:
    training = dlctl.submit(
        Path("manifest.yml"), site="mycluster", learners=4, memory="4GiB", time="1h",
        arguments={"lr": lr, "layers": [1, 2]}, set={"training.seed": 1}, tags="night",
        token=f"night-{lr}",
    )
    state: str = training.wait(until=["TRAINING", "HALTED"], timeout_s=60, on_look=print)
    training.halt().resume(learners=2, new_code=True).cancel().tag("a", remove="b").refresh()
    training.note("odd").resume(epochs="+10")
    print(dlctl.submit(training, learners=2).diff(training)["plan"])
    said: str = training.tune(lr=0.1) + training.save() + state
    for line in training.logs(follow=True, rank="0,2-3", since="1h", tail=10, grep="loss"):
        said += line.upper()
    columns = training.metrics(names="loss", since_step=5)
    steps: list[Any] = columns["step"]
    folder: Path = training.fetch(to="results", what="all", include="*.pt")
    print(training.id, training.name, training.site, training.tags[0], training.reason, steps)
    print(folder.name, training.show()["state"], training.record.step)
    training.delete(forget=True)
    return training


def search() -> None:
    mine = dlctl.start_search("search.yml", site="mycluster")
    number: int = mine.best()["number"]
    print(mine.status()["trials"], mine.trials()[number], mine.wait(), mine.fetch())
    mine.scale(2, 4, partition="long")
    again: dlctl.Search = mine.halt().resume()
    all_: list[dlctl.Search] = dlctl.searches(state="COMPLETED")
    print(again == dlctl.search_of(mine.id), all_)


def models(training: dlctl.Training) -> None:
    model: dlctl.StoredModel = dlctl.store_model(training, "digits", alias="best", tags=["a"])
    newer = model.update(Path("folder"), alias="best", remove_tags="a")
    print(newer.version.version, newer.site, newer.label, newer.show()["files"])
    newer.copy("other", alias="best").delete(all_versions=True)
    pulled: Path = dlctl.model("digits@best", site="mycluster").pull()
    dlctl.submit(model=dlctl.stored_models(tag="a", all_versions=True)[0].label)
    print(pulled)


async def all_of(tag: str) -> list[str]:
    waits = [asyncio.to_thread(each.wait) for each in dlctl.trainings(tag=tag, state=["PENDING"])]
    return await asyncio.gather(*waits)


try:
    models(train(0.1))
    search()
    print(asyncio.run(all_of("night")), dlctl.training("digits-1"), dlctl.__version__)
except TrainingFailed as error:
    print(error.hint)
except DlctlError as error:
    print(error.message, error.hint, error.exit_code)
"""
WRONG = """
import dlctl
dlctl.submit("m.yml", learner=2)
dlctl.submit("m.yml", learners="two")
dlctl.training("a").stat
dlctl.nonsense
"""


def test_the_module_offers_what_its_stub_does():
    assert "from dlctl.api import *" in (REPOSITORY / "dlctl/__init__.pyi").read_text()
    assert sorted(dlctl._API) == sorted(api.__all__)
    assert (REPOSITORY / "dlctl/py.typed").exists()


@pytest.mark.slow
def test_a_strict_type_checker_takes_a_users_program_and_finds_its_mistakes(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py", "wrong.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(REPOSITORY)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    told = re.findall(r"^(\S+): error: .*\[(\S+)\]$", done.stdout, re.MULTILINE)
    kinds = ["call-arg", "arg-type", "attr-defined", "attr-defined"]
    assert told == [(f"wrong.py:{line}", kind) for line, kind in enumerate(kinds, 3)], done.stdout
