"""Programs that import dlctl: many threads, forks, Ctrl-C; searches and stored models."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from repository import REPOSITORY
from rest_server import serving
from test_searches import write as write_search
from trainings import ON_THE_CLUSTER, write_counter, write_training
from user_program import run_program

pytestmark = pytest.mark.slow

SHARED = """
import multiprocessing, os, signal, threading
import dlctl

MANIFEST = {
    "name": "count", "memory": "512MiB", "time": "5m",
    "framework": {"name": "pytorch", "command": "exec python3 counter.py 3000"},
}

def in_a_child(answers, training):
    answers.put((training.state, sum(1 for _ in training.logs(tail=3)) > 0))

def main():
    training = dlctl.submit(MANIFEST, token="once")
    assert training.wait(until="TRAINING") == "TRAINING"

    # More follow than there are connections for calls: some left after a line, some held.
    held, failed = [], []
    def follow(holds):
        try:
            lines = training.logs(follow=True)
            next(lines)
            if holds:
                held.append(lines)
            else:
                lines.close()
        except BaseException as error:
            failed.append(error)
    def call():
        try:
            assert training.state == "TRAINING"
            assert dlctl.training(training.id).metrics(names="loss")["step"] is not None
            assert [line for line in training.logs(tail=1)]
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=follow, args=(n % 2,)) for n in range(12)]
    threads += [threading.Thread(target=call) for _ in range(32)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert not failed and len(held) == 6, failed
    print("shared")

    for way in ("fork", "spawn"):
        context = multiprocessing.get_context(way)
        answers = context.Queue()
        child = context.Process(target=in_a_child, args=(answers, training))
        child.start()
        assert answers.get(timeout=100) == ("TRAINING", True)
        child.join()
        print(way)

    poke = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    poke.start()
    try:
        training.wait()
    except KeyboardInterrupt:
        print("interrupted", training.state)
    for lines in held:
        lines.close()
    same = dlctl.submit(MANIFEST, token="once")
    assert same == training
    training.halt()
    assert training.wait(timeout_s=120) == "HALTED", training.reason
    print("the same", training._repr_html_().count("HALTED"))

if __name__ == "__main__":
    main()
"""


def test_threads_forks_and_an_interrupted_wait_share_a_training(dlctl, site):
    write_counter(dlctl.cwd, 3000)
    (dlctl.cwd / "manifest.yml").unlink()
    told = run_program(dlctl, site, SHARED)
    assert told.split("\n")[:-1] == [
        "shared",
        "fork",
        "spawn",
        "interrupted TRAINING",
        "the same 1",
    ]


SEARCHED = """
import time
import dlctl
from dlctl.errors import ResultsError

search = dlctl.start_search("job/search.yml")
try:
    search.best()
except ResultsError as error:
    assert error.exit_code == 9, error
assert search.wait(until="TRAINING", timeout_s=200) == "TRAINING"
while search.status()["ended"] < 3:
    time.sleep(0.5)
search.scale(1, 2)
assert search.halt().wait() == "HALTED"
assert search.best()["metric"] == min(t["metric"] for t in search.trials() if t["outcome"])
search.resume()
assert search.wait(until="COMPLETED", timeout_s=200) == "COMPLETED"
assert [each["number"] for each in search.trials()] == list(range(12))
assert dlctl.searches(state="COMPLETED") == dlctl.trainings() == [dlctl.search_of(search.id)]
shown = search._repr_html_()
assert "COMPLETED" in shown and "as last known" not in shown, shown
print(type(dlctl.trainings()[0]).__name__, (search.fetch() / "best.json").exists())
"""


def test_a_search_is_started_halted_resumed_and_read(dlctl, site):
    write_search(dlctl, 12, seconds=2)
    assert run_program(dlctl, site, SEARCHED) == "Search True\n"


STORED = """
import dlctl
from dlctl.errors import Misused, RecordError

training = dlctl.submit()
assert training.wait() == "COMPLETED", training.reason
first = dlctl.store_model(".", "count", tags="kept")
second = first.update(training, alias="best", description="counted")
assert (first.version.version, second.version.version) == (1, 2)
assert second.label == dlctl.model("count@best").label == dlctl.stored_models(tag="kept")[0].label
assert [str(each) for each in dlctl.stored_models(all_versions=True)] == [str(first), str(second)]
first.update(alias="first", remove_tags="kept")
assert first.show()["aliases"]["first"] == 1 and dlctl.stored_models(tag="kept") == []
try:
    first.delete()
except RecordError as error:
    assert "can't be deleted" in error.message, error
try:
    first.copy(first.site)
except Misused as error:
    print(error.exit_code)
first.update(remove_aliases="first")
print(sorted(each.name for each in second.pull().iterdir()))
second.update(remove_aliases="best")
second.delete(all_versions=True)
print(dlctl.stored_models())
"""


def test_models_are_stored_changed_and_deleted(dlctl, site):
    program = {"train.py": "import os; open(os.environ['RESULT_DIR'] + '/w', 'w').write('1')"}
    write_training(dlctl.cwd, {"command": "exec python3 train.py"}, program)
    told = run_program(dlctl, site, STORED)
    assert told == "2\n['.dlctl-model', 'manifest.yml', 'train.py', 'trained']\n[]\n"


def blocks(page: str, language: str) -> str:
    text = (REPOSITORY / "docs" / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return "\n".join(found)


def copied(folder):
    shutil.copytree(REPOSITORY / "examples/digits", folder, dirs_exist_ok=True)
    manifest = folder / "manifest.yml"
    text = (
        manifest.read_text()
        .replace("epochs: 20", "epochs: 2")
        .replace("learners: 2", "learners: 1")
    )
    manifest.write_text(text.replace("5 epochs", "1 epochs"))


@ON_THE_CLUSTER
def test_the_examples_of_python_run(dlctl, site):
    copied(dlctl.cwd)
    told = run_program(dlctl, site, blocks("python.md", "python"))
    assert "learner-0 | " in told and "model.pt" in told
    assert "no training 'nobody' is known here" in told


@ON_THE_CLUSTER
def test_the_lines_of_curl_run(dlctl, site):
    copied(dlctl.cwd)
    with serving(dlctl, site) as server:
        script = blocks("serve.md", "sh").replace(":8470", f":{server.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=dlctl.cwd, env=dlctl.env, text=True,
            capture_output=True, timeout=500, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done
    assert '"deleted":true' in done.stdout and "event: end" in done.stdout
    assert (dlctl.cwd / "begin.pt").stat().st_size == 100
