"""search.yml: what becomes of it, and what is wrong with it, by line and column."""

import json
from types import SimpleNamespace

import pytest
import yaml

from dlctl.contract.search import Parameter
from dlctl.errors import ManifestError
from dlctl.lifecycle import many
from dlctl.manifest.load import parse_manifest
from dlctl.record import RecordStore
from dlctl.search import start
from dlctl.search.load import hub_manifest, load_search, worker_manifest
from dlctl.search.sent import task_again, training_again
from dlctl.search.trials import TrialRow
from dlctl.sites.files import load_site
from dlctl.tell import Tell

GOOD = """\
name: quad
space:
  x: {float: [1e-4, 1], log: true}
  n: {int: [16, 256], step: 16}
  optimizer: {choice: [sgd, adam]}
  momentum: {float: [0, 0.9], when: {optimizer: sgd}}
strategy: {name: genetic, seed: 1, population: 10, mutation: 1e-1}
metric: {name: loss}
budget: {trials: 40, time: 2h}
task: {python: "trials:Quadratic", time: 1m, memory: 256MiB, cpus: 2}
workers: {jobs: 2, slots: 4, time: 10m, partition: short}
hub: {partition: long}
"""
TRAINING = """\
name: digits
learners: 1
memory: 1GiB
framework: {name: pytorch, job: train.py}
training: {epochs: 2}
space:
  framework.arguments.lr: {float: [1e-4, 1e-1], log: true}
  training.batch_size: {choice: [32, 64]}
metric: {name: accuracy, goal: maximize}
budget: {trials: 8}
"""


@pytest.fixture
def load(tmp_path):
    def from_text(text):
        path = tmp_path / "search.yml"
        path.write_text(text)
        return load_search(path)

    return from_text


def problems(load, text):
    with pytest.raises(ManifestError) as wrong:
        load(text)
    return [line.partition("search.yml:")[2] for line in wrong.value.problems]


class _Sent(Exception):
    """The search would be submitted now."""


class _Said(Tell):
    def __init__(self):
        self.texts = []
        self.note = self.warn = self.texts.append


def said_before(monkeypatch, loaded):
    """Return what is said before anything is sent."""

    def send(*_):
        raise _Sent

    monkeypatch.setattr(many, "lacking", send)
    said = _Said()
    session = SimpleNamespace(site=load_site("local"), expect_jobs=lambda: None)
    with pytest.raises(_Sent):
        start.start(session, loaded, RecordStore(loaded.path.with_name("record.db")), said)
    return said.texts


@pytest.mark.parametrize(("text", "where"), [
    (TRAINING.replace("job: train.py", "job: train.py, arguments: {file: data/y.csv}"),
     ["framework.arguments.file names data/y.csv", "train.py:1 names data/x.csv"]),
    (GOOD.replace("cpus: 2", "cpus: 1").replace("slots: 4", "slots: 1"),
     ["trials.py:1 names data/x.csv"]),
], ids=["trainings", "tasks"])  # fmt: skip
def test_a_file_that_is_not_sent_is_told_before_a_search_begins(
    load, tmp_path, monkeypatch, text, where
):
    """`submit` warned of it, `search start` did not."""
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "data").mkdir()
    for name in ("data/x.csv", "data/y.csv"):
        (tmp_path / name).write_text("1")
    for name in ["train.py"] if "train.py" in text else ["trials.py"]:
        (tmp_path / name).write_text("import torch; open('data/x.csv')\n")
    told = [each for each in said_before(monkeypatch, load(text)) if "not sent" in each]
    assert [each.partition(", which is")[0] for each in told] == where


def test_trials_that_write_into_the_folder_they_share_are_told_of(load, tmp_path, monkeypatch):
    own = TRAINING.replace("job: train.py", 'command: "python train.py --lr $LR"')
    with pytest.raises(ManifestError, match="search a variable that stands in it, such as env.LR"):
        load(own)
    own = own.replace("framework.arguments.lr", "env.LR")
    for program, told in (("torch.save(m, 'model.pt')", 1), ("os.environ['RESULT_DIR']", 0)):
        (tmp_path / "train.py").write_text(program)
        said = said_before(monkeypatch, load(own))
        assert len([each for each in said if "all trials run in one folder" in each]) == told


@pytest.mark.parametrize(("strategy", "budget", "trials"), [
    ("grid", "trials: 40", 6), ("grid", "trials: 4", 4), ("grid", "time: 1h", 6),
    ("random", "trials: 40", 40),
])  # fmt: skip
def test_a_grid_has_no_more_trials_than_points(load, strategy, budget, trials):
    """A grid of 24 points was "14 of 40 ended", and 26 trials were left."""
    text = (
        "name: g\nspace: {a: {choice: [1, 2, 3]}, b: {choice: [x, y]}}\n"
        f"strategy: {{name: {strategy}}}\nbudget: {{{budget}}}\ntask: {{exec: cat}}\n"
    )
    assert load(text).spec.budget.trials == trials


def test_a_search_becomes_its_spec(load):
    loaded = load(GOOD)
    spec = loaded.spec
    assert spec.space[0] == Parameter("x", "float", 1e-4, 1.0, log=True)
    assert spec.space[3].when == {"optimizer": ["sgd"]}
    assert (spec.strategy, spec.options, spec.seed) == (
        "genetic",
        {"population": 10, "mutation": 0.1},
        1,
    )
    assert (spec.metric, spec.maximize, spec.budget.time_s) == ("loss", False, 7200)
    assert (spec.budget.trials, spec.budget.failures) == (40, 10)
    assert (spec.task.type, spec.task.target, spec.task.memory_bytes) == (
        "python", "trials:Quadratic", 256 << 20,
    )  # fmt: skip
    hub, worker = json.loads(hub_manifest(loaded)), json.loads(worker_manifest(loaded))
    assert hub["scheduler"] == {"partition": "long"} and hub["time"] == "2h"
    assert worker["scheduler"] == {"partition": "short"} and worker["time"] == "10m"
    assert (worker["cpus"], worker["memory"]) == (8, "1024MiB"), "four slots of two CPUs"


def test_without_a_task_a_trial_is_a_training(load):
    loaded = load(TRAINING)
    assert (loaded.spec.task.type, loaded.spec.task.memory_bytes) == ("training", 1 << 30)
    assert loaded.spec.maximize and loaded.manifest is not None
    assert loaded.manifest.training.epochs == 2 and loaded.manifest.name == "digits"


@pytest.mark.parametrize(("old", "new", "place", "says"), [
    ("[1e-4, 1]", "[1, 0.5]", "3:3", "the range begins at 1 and ends before that, at 0.5"),
    ("int: [16, 256]", "itn: [1, 2]", "4:7", "space.n.itn: unknown key; did you mean 'int'?"),
    ("[1e-4, 1]", "[0, 1]", "3:3", "`log` needs a range above 0"),
    ("step: 16", "step: 0.5", "4:3", "`step` of an int is a whole number, and 0.5 is none"),
    ("sgd, adam]", "sgd, adam], step: 2", "5:3", "`step` divides a range, and a choice has none"),
    ("{optimizer: sgd}", "{optimiser: sgd}", "6:3", "space.momentum.when: there is no 'optimis"),
    ("[0, 0.9]", "[0, .inf]", "6:3", "the range has no end; two numbers are allowed"),
    ("optimizer: sgd", "optimizer: sdg", "6:3", "optimizer is never 'sdg'; it is one of sgd, adam"),
    ("sgd, adam]", "sgd, adam], when: {optimizer: sgd}", "5:3", "when: it depends on itself"),
    ("name: genetic", "name: genetix", "7:18", "no strategy 'genetix'; did you mean 'genetic'?"),
    ("population: 10", "populaton: 10", "7:36", "strategy.populaton: genetic has no such option; "
     "did you mean 'population'? It has population, tournament, mutation, crossover"),
    ("mutation: 1e-1", "mutation: 1.5", "7:62", "a number from 0 to 1 is allowed, and not 1.5"),
    ("genetic, seed: 1, population: 10, mutation: 1e-1", "pbt, factor: 1", "7:31",
     "strategy.factor: a number above 1 is allowed, and not 1"),
    ("population: 10", "population: few", "7:48", "a whole number from 1 is allowed, and not 'few"),
    ("trials:Quad", "trials.Quad", "10:1", "'trials.Quadratic' names no class; write module:Class"),
    ("hub:", "worker: {}\nhub:", "12:1", "worker: unknown key; did you mean 'workers'?"),
    ("trials: 40, time: 2h", "", "9:1", "one of trials, time and node_hours is needed"),
    ("seed: 1", "deterministic: true", "7:1", "`deterministic` needs a `window`"),
    ("python: ", 'exec: "x", python: ', "10:1", "one of python, exec and type is allowed"),
    ("4, time: 10m", "4, time: 1m", "11:36", "1m is too short: a trial may take 1m, and"),
    ("hub:", "framework: {name: a}\nhub:", "12:1", "with `task` trials are no trainings"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(load, old, new, place, says):
    assert old in GOOD
    (only,) = problems(load, GOOD.replace(old, new))
    assert only.startswith(f"{place}: ") and says in only


@pytest.mark.parametrize(("old", "new", "says"), [
    ("training.batch_size", "memory", "training.<name>, env.<VARIABLE> and framework.job can be"),
    ("training.batch_size", "env.2X", "space.env.2X: in a training, framework.arguments.<name>,"),
    ("training.batch_size", "framework.job", "8:3: space.framework.job: there is no file 32 in"),
    ("training.batch_size: {choice: [32, 64]}", "framework.job: {int: [1, 2]}", "choice of files"),
    ("training.batch_size", "training.batchsize", "the built-in loop has no such setting"),
    ("framework: {name: pytorch, job: train.py}\n", "", "either `task` or a manifest's"),
    ("learners: 1", "nodes: 2", "the learners of a trial share the node of a worker"),
    ("epochs: 2", "epocs: 2", "search.yml:5:12: training.epocs: unknown key; did you mean"),
])  # fmt: skip
def test_what_is_wrong_with_a_trial_that_is_a_training(load, old, new, says):
    assert old in TRAINING
    with pytest.raises(ManifestError) as wrong:
        load(TRAINING.replace(old, new))
    assert says in str(wrong.value)


def test_a_file_that_was_sent_is_read_without_the_files_of_its_folder(tmp_path):
    path = tmp_path / "search.yml"
    path.write_text(TRAINING.replace("training.batch_size: {choice: [32, 64]}",
                                     "framework.job: {choice: [one.py, two.py]}"))  # fmt: skip
    with pytest.raises(ManifestError, match=r"there is no file one\.py in"):
        load_search(path)
    assert load_search(path, alone=True).spec.space[1].choices == ["one.py", "two.py"]


# The manifest that runs one trial again ---------------------------------------------------------

TRAINED = """\
name: digits
learners: 1
framework: {name: pytorch, job: train.py, arguments: {lr: 0.1, layers: [8, 8]}}
training: {epochs: 2, seed: 5}
env: {A: b}
space:
  framework.arguments.lr: {float: [1e-9, 1], log: true}
  training.batch_size: {choice: [32, 64]}
metric: {name: accuracy, goal: maximize}
budget: {trials: 3}
workers: {jobs: 2}
"""
SEARCHED = """\
name: quad
space:
  x: {float: [1e-12, 1], log: true}
  kind: {choice: [a, "no", 1]}
  m: {int: [1, 9], when: {kind: a}}
strategy: {name: genetic, seed: 7, population: 10}
metric: {name: loss}
budget: {trials: 40, time: 2h}
task: {python: "trials:Quadratic", arguments: {epochs: 3}, time: 1m, memory: 256MiB, cpus: 2}
workers: {jobs: 2, slots: 4, time: 10m, partition: short}
hub: {partition: long}
"""


def test_a_training_becomes_its_manifest():
    point = {"framework.arguments.lr": 1.2345678901234567e-08, "training.batch_size": 64}
    text = yaml.safe_dump(training_again(yaml.safe_load(TRAINED), TrialRow(3, "a", point)))
    manifest = parse_manifest(text.encode(), "best.yml")
    assert manifest.framework.arguments == {"lr": 1.2345678901234567e-08, "layers": [8, 8]}
    assert (manifest.training.epochs, manifest.training.seed) == (2, 5)
    assert manifest.training.batch_size == 64 and manifest.name == "digits"
    assert "env" in text and "space" not in text and "workers" not in text


@pytest.mark.parametrize("point", [
    {"x": 0.1 + 0.2, "kind": "no"}, {"x": 3.3e-12, "kind": "a", "m": 9}, {"x": 1.0, "kind": 1},
])  # fmt: skip
def test_another_task_becomes_a_search_of_one_point(tmp_path, point):
    (tmp_path / "search.yml").write_text(SEARCHED)
    spec = load_search(tmp_path / "search.yml").spec
    made = task_again(yaml.safe_load(SEARCHED), spec, TrialRow(3, "a", point))
    (tmp_path / "best.yml").write_text(yaml.safe_dump(made, sort_keys=False))
    again = load_search(tmp_path / "best.yml").spec
    assert {p.name: p.choices for p in again.space} == {k: [v] for k, v in point.items()}
    assert (again.strategy, again.budget.trials, again.task) == ("grid", 1, spec.task)
    assert (again.workers.slots, again.workers.partition, again.metric) == (1, "short", "loss")


OWN = GOOD.replace('python: "trials:Quadratic"', "type: node, target: valley").replace(
    "jobs: 2", "jobs: 0"
)


def test_a_type_of_the_users_own_is_for_workers_of_their_own(load):
    """Only a model in another language could send such tasks."""
    spec = load(OWN).spec
    assert (spec.task.type, spec.task.kind, spec.task.target) == ("node", "node", "valley")
    assert spec.workers.most == 0
    for old, new, said in (
        ("jobs: 0", "jobs: 2", "only your own workers run tasks of the type node; write workers:"),
        (", target: valley", "", "`type` and `target` belong together"),
        ("type: node", "type: exec", "the type exec is dlctl's own"),
        ("type: node", "type: node, exec: 'true'", "one of python, exec and type is allowed"),
    ):
        (problem,) = problems(load, OWN.replace(old, new))
        assert said in problem
