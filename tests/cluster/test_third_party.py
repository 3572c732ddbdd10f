"""Frameworks of others: halted and continued.

`make test-all` has XGBoost, `make test-frameworks` all of them.

Each test runs two attempts of a real framework, whose import alone takes seconds, and then the same
training undisturbed, to compare the final loss.
"""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from framework_runs import EXAMPLES, Learners
from third_party import OF_TEST_ALL, python_of
from trainings import ON_THE_CLUSTER, REPOSITORY, begin, change_site, halt, submit, wait_for_state
from waiting import wait_until

OWN = {
    "mpi": ("steps", 300, "    for step in range(first + 1, options.steps + 1):\n", "step == 40"),
    "sklearn": (
        "trees", 60, "    while forest.n_estimators < options.trees:\n", "forest.n_estimators == 20"
    ),
}  # fmt: skip
"""Examples that the nodes' own Python runs: what says how long they train, the line that begins
their loop, and when they have saved and wait there for the halt."""
HELD = """
    class Held(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            asked = signal.getsignal(signal.SIGUSR2).__self__
            while model.num_boosted_rounds() == 40 and not before and not asked.asked:
                time.sleep(0.05)

"""
"""What keeps XGBoost's learners in a round until they are asked to halt: they train quickly."""
LOSS = r"final loss ([\d.]+)"


@pytest.fixture
def undisturbed(tmp_path):
    """The final loss of an example that nobody disturbs, on this machine and without dlctl."""
    started = []

    def loss(name: str) -> float:
        started.append(Learners(name, tmp_path / "undisturbed"))
        assert set(started[-1].codes()) == {0}
        return float(started[-1].find_in_log(LOSS))

    yield loss
    for learners in started:
        learners.kill()


def prepare(name, folder, site):
    """Copy the examples; the manifest trains for as long as `EXAMPLES` says."""
    argument, value = OWN[name][:2] if name in OWN else EXAMPLES[name][1:3]
    shutil.copytree(REPOSITORY / "examples/frameworks", folder)
    if name in OWN:
        *_, loop, saved = OWN[name]
        text = (program := folder / f"train_{name}.py").read_text()
        assert loop in text
        wait = f"        while {saved} and not asked:\n            signal.sigtimedwait([], 0.05)\n"
        program.write_text(text.replace(loop, loop + wait))
    if name == "xgboost":
        text = (program := folder / "train_xgboost.py").read_text()
        for old, new in {
            "import os\n": "import os\nimport signal\nimport time\n",
            "    halt = xgboost.save_at_halt()\n": HELD + "    halt = xgboost.save_at_halt()\n",
            "callbacks=[halt]": "callbacks=[Held(), halt]",
        }.items():
            assert old in text
            text = text.replace(old, new)
        program.write_text(text)
    manifest = yaml.safe_load((folder / f"{name}.yml").read_text())
    framework = manifest["framework"]
    if "command" in framework:
        framework["command"] = f"python train_{name}.py --{argument} {value}"
    else:
        framework["arguments"] = {argument: value}
    if site.is_cluster and manifest["learners"] == 2:
        manifest["nodes"] = 2
    (folder / "manifest.yml").write_text(yaml.safe_dump(manifest))


def halt_and_resume(dlctl, site, training_id):
    """Halt a training that has saved, and resume it; return the saved step and the last command."""
    saved = site.job_dir(training_id) / "checkpoints"
    try:
        wait_until(lambda: any(path.is_file() for path in saved.rglob("*")), 150)
    except BaseException:
        print(dlctl("show", training_id, "--all").stdout, dlctl("logs", training_id).stdout[-3000:])
        raise
    dlctl("halt", training_id, ok=True)
    known = wait_for_state(dlctl, training_id, "HALTED", timeout_s=120)
    assert known["reason"] == "Halted on request."
    listed = dlctl("checkpoints", "list", training_id, "--json", ok=True).json
    assert listed[0]["complete"]
    assert listed[0]["step"] > 0
    dlctl("checkpoints", "verify", training_id, ok=True)
    done = dlctl("resume", training_id, "--follow", timeout_s=250, ok=True)
    assert float(re.findall(r"test accuracy ([\d.]+)", done.stdout)[-1]) > 0.9
    return listed[0]["step"], done


def named(name):
    return pytest.param(
        name, marks=[pytest.mark.frameworks] * (EXAMPLES[name].venv not in OF_TEST_ALL)
    )


@ON_THE_CLUSTER
@pytest.mark.parametrize("name", [named(name) for name in EXAMPLES])
def test_it_is_halted_and_goes_on_where_it_was(name, dlctl, site, xdg, undisturbed):
    example = EXAMPLES[name]
    python = python_of(example.venv, site)
    prepare(name, folder := dlctl.cwd / "frameworks", site)
    changed = change_site(site, xdg.config, environment={"python": str(python)})
    training_id = submit(dlctl, changed, folder)
    step, done = halt_and_resume(dlctl, site, training_id)
    if name != "tensorflow":  # whose checkpoints are counted, not named by their steps
        first = (site.job_dir(training_id) / "attempts/1/learner-0.log").read_text()
        (halted,) = re.findall(r"halted after (?:step|epoch) (\d+)", first)
        (went_on,) = set(re.findall(r"continuing (?:at step|after epoch) (\d+)", done.stdout))
        assert int(halted) == int(went_on) == step, "no step is lost"
    final = float(re.findall(LOSS, done.stdout)[-1])
    assert final == pytest.approx(undisturbed(name), rel=example.tolerance)


@ON_THE_CLUSTER
@pytest.mark.parametrize("name", OWN)
def test_what_the_nodes_python_runs_is_halted_and_goes_on(name, dlctl, site):
    prepare(name, folder := dlctl.cwd / "frameworks", site)
    step, done = halt_and_resume(dlctl, site, submit(dlctl, site, folder))
    assert f"continuing at step {step}" in done.stdout


@ON_THE_CLUSTER
def test_caffes_net_has_the_weights_of_an_undisturbed_training(dlctl, site):
    """Two trainings of Listing 1's net on dlctl's own caffe; the weights are equal to the bit."""
    shutil.copytree(REPOSITORY / "examples/frameworks", folder := dlctl.cwd / "caffe")
    manifest = (folder / "caffe.yml").read_text()
    nodes = "nodes: 2\n" if site.is_cluster else ""
    (folder / "manifest.yml").write_text(manifest + nodes)
    solver = folder / "caffe/lenet_solver.prototxt"
    text = solver.read_text().replace("max_iter: 300", "max_iter: 900")
    solver.write_text(text.replace("snapshot: 100", "snapshot: 20"))
    weights = []
    for disturbed in (True, False):
        training_id, job_dir = begin(dlctl, site, folder)
        if disturbed:
            wait_until(lambda at=job_dir / "checkpoints": list(at.glob("step-*")), 120)
            halt(dlctl, training_id)
            dlctl("resume", training_id, "--follow", timeout_s=250, ok=True)
        else:
            wait_for_state(dlctl, training_id, "COMPLETED")
        weights.append((job_dir / "results/lenet_iter_900.caffemodel").read_bytes())
    assert weights[0] == weights[1]
