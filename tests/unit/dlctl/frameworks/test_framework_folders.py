"""Frameworks are folders: found, checked, described, and rendered into train.sh."""

import re

import pytest
from login_side import make_manifest, make_site
from repository import REPOSITORY

from dlctl.contract import StoredWeights
from dlctl.contract.programs.options import as_options
from dlctl.errors import ManifestError, PlanError
from dlctl.frameworks import list_frameworks
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.package_data import data_path
from dlctl.request.build import look_over, prepare
from dlctl.request.request import runtime_entries

KNOWN = [framework.name for framework in list_frameworks()[0]]
PAGE = REPOSITORY / "docs/frameworks.md"


def prepared(folder, framework, extra="", **files):
    (folder / "m.yml").write_text(f"name: a\nframework: {framework}\n{extra}")
    for name in ("train.py", *files):
        (folder / name.replace("__", ".")).write_text(files.get(name, "x = 1\n"))
    return prepare(folder / "m.yml", Overrides(), make_site())


def recipe(folder, framework, extra="", **files):
    return prepared(folder, framework, extra, **files).plan.framework.recipe


def write_framework(folder, name, settings, template="{{ program }}\n"):
    place = folder / "templates/frameworks" / name
    place.mkdir(parents=True)
    (place / "framework.yml").write_text(settings)
    (place / "train.sh.j2").write_text(template)


@pytest.mark.parametrize("name", KNOWN)
def test_every_framework_is_small_and_on_the_page(name):
    folder = data_path(f"templates/frameworks/{name}")
    lines = sum(path.read_text().count("\n") for path in folder.glob("*.*") if path.suffix != ".py")
    assert lines <= 40
    assert re.search(rf"^\|.*`{name}`", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("framework", list_frameworks()[0], ids=lambda f: f.name)
def test_every_framework_renders_a_job_and_a_command(framework, tmp_path):
    suffix = framework.settings.job.suffix if framework.settings.job else None
    (tmp_path / "train.prototxt").touch()
    if suffix:
        job = f"job: train{suffix}, arguments: {{n: 1}}"
        made = recipe(tmp_path, f"{{name: {framework.name}, {job}}}")
        assert made.loop or "train.py --n 1" in made.script
    made = recipe(tmp_path, f"{{name: {framework.name}, command: 'echo \"$RANK\"'}}")
    assert made.script.startswith("#!/bin/bash")
    assert made.script.endswith('echo "$RANK"\n')
    made = recipe(tmp_path, "{name: something, command: run me}")
    assert (made.origin, made.signal) == ("custom (package)", "USR2"), "a command of any name"


@pytest.mark.parametrize(("framework", "said"), [
    ("{name: tensorflw, job: train.py}", "m.yml:2:19: framework.name: there is no framework "
     "'tensorflw'; did you mean 'tensorflow'? There are caffe"),
    ("{name: lua, job: train.py}", "there is no framework 'lua'"),
    ("{name: jax, job: train.sh}", "m.yml:2:29: framework.job: 'train.sh' does not end with .py"),
    ("{name: custom, job: train.py}", "framework.job: custom takes none"),
])  # fmt: skip
def test_a_job_that_no_framework_runs_is_one_sentence(tmp_path, framework, said):
    with pytest.raises(ManifestError) as caught:
        prepared(tmp_path, framework)
    assert said in caught.value.message


def test_arguments_become_options_that_are_quoted():
    said = {"lr": 0.1, "big": True, "small": False, "none": None, "layers": [64, 10], "n": "a b; c"}
    assert as_options({"sizes": {"a": [1, 2]}}) == """--sizes '{"a": [1, 2]}'"""
    assert as_options(said) == "--lr 0.1 --big --layers 64 10 --n 'a b; c'"


def test_a_framework_is_added_as_the_page_says(tmp_path):
    """The two files are the page's own."""
    text = PAGE.read_text().partition("## Adding a framework")[2]
    block = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    parts = re.split(r"^# (templates/frameworks/\S+)\n", block, flags=re.MULTILINE)[1:]
    for path, content in zip(parts[::2], parts[1::2], strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    made = prepared(tmp_path, "{name: Lua, job: train.lua, arguments: {n: 3}}", train__lua="")
    assert made.plan.framework.recipe.signal == "TERM"
    assert "${LUA:-lua} train.lua --n 3\n" in made.plan.framework.recipe.script
    assert made.plan.checkpoint.files == "state-*.txt"


def test_a_module_for_the_loop_travels_with_the_code_or_in_the_runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = "title: t\njob: {suffix: .net}\nloop: {module: reads.py}\n"
    write_framework(tmp_path / "config/dlctl", "mine", settings)
    with pytest.raises(ManifestError, match=r"loop: module: there is no 'reads.py' beside it"):
        recipe(tmp_path, "{name: mine, job: a.net}", a__net="")
    name = "templates/frameworks/mine/reads.py"
    (tmp_path / "config/dlctl" / name).write_text("x = 1\n")
    assert recipe(tmp_path, "{name: Mine, job: a.net}", a__net="").loop_module == name
    sent = {entry.path for entry in runtime_entries.__wrapped__()[1]}
    assert sent >= {name, "templates/frameworks/caffe/program.py"}


def test_the_nearest_folder_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for place, said in ((tmp_path / "config/dlctl", "mine"), (tmp_path, "theirs")):
        write_framework(place, "jax", f"title: {said}\n", f"echo {said}\n")
        assert f"echo {said}" in recipe(tmp_path, "{name: jax, command: x}").script


@pytest.mark.parametrize(("settings", "said"), [
    ("title: a\nsignall: TERM\n", "framework.yml:2:1: signall: unknown key; did you mean 'sign"),
    ("title: a\njob: {exampel: a.lua}\n", "2:7: job.exampel: unknown key; did you mean 'example'?"),
    ("title: a\nsignal: KILL\n", "framework.yml:2:9: signal: 'KILL' is unknown. Allowed: USR2"),
    ("job: {}\n", "title: is missing"),
    ("title: [\n", "not valid YAML"),
])  # fmt: skip
def test_a_wrong_folder_is_named_with_its_line(tmp_path, settings, said):
    write_framework(tmp_path, "mine", settings)
    with pytest.raises(ManifestError) as caught:
        prepared(tmp_path, "{name: mine, command: x}")
    assert said in caught.value.message


@pytest.mark.parametrize("template", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ nothing }}",
    "{% include '/etc/passwd' %}",
    "{{ arguments.update({'a': 1}) }}",
])  # fmt: skip
def test_a_template_reads_its_values_and_no_more(tmp_path, template):
    write_framework(tmp_path, "mine", "title: a\n", template)
    with pytest.raises(ManifestError, match=r"train\.sh\.j2: "):
        prepared(tmp_path, "{name: mine, command: x}")


def test_a_credential_is_not_in_train_sh(tmp_path):
    made = prepared(tmp_path, "{name: jax, command: x}", "env: {API_TOKEN: hunter2-hunter2}\n")
    assert "hunter2" not in made.plan.framework.recipe.script
    with pytest.raises(ManifestError, match="credential"):
        prepared(tmp_path, "{name: jax, job: train.py, arguments: {password: hunter2-hunter2}}")


@pytest.mark.parametrize(("command", "judged"), [
    ("python train.py", True), ("exec python3 train.py", True),
    ("module load tf && python train.py", False), ("pip install tensorflow; python a.py", False),
])  # fmt: skip
def test_modules_are_needed_where_the_nodes_python_runs(tmp_path, command, judged):
    made = recipe(tmp_path, f"{{name: tensorflow, command: '{command}'}}")
    assert bool(made.modules) == judged


@pytest.mark.parametrize(("start", "extra", "said"), [
    ("node", "learners: 2\n", "starts the processes of a node itself"),
    ("node", "nodes: 2\nlearners_per_node: 2\n", "a node has 2 learners"),
    ("own", "learners: 2\n", "starts all its processes itself"),
    ("node", "nodes: 2\n", ""), ("own", "", ""),
])  # fmt: skip
def test_one_that_starts_processes_itself_gets_whole_nodes(tmp_path, start, extra, said):
    write_framework(tmp_path, "mine", f"title: a\nstart: {start}\n")
    if said:
        with pytest.raises(PlanError, match=said):
            prepared(tmp_path, "{name: mine, command: x}", extra)
    else:
        assert recipe(tmp_path, "{name: mine, command: x}", extra).script


# The successor's dialect -------------------------------------------------------------------------


def test_dead_code_fixed_paths_versions_and_fractions_are_named(tmp_path):
    made = prepared(
        tmp_path,
        "{name: tensorflow, version: '1.4', command: python3 model.py --out /mnt/results/x}",
        "gpus: 0.5\n",
        model__py="import tensorflow as tf\nx = tf.contrib.layers\n# tf.contrib in a comment\n"
        "open('/job/log'); y = '/my/job/log'\n",
    )  # fmt: skip
    notes = made.plan.not_in_this_version
    places = [note.partition(":")[0] for note in notes]
    assert (places.count("framework.command"), places.count("model.py")) == (1, 2)
    text = " ".join(notes)
    assert "model.py:2 uses tf.contrib, which no longer exists: TensorFlow 2 has no contrib" in text
    assert "framework.command:1 uses /mnt/results" in text and "$RESULT_DIR works on all" in text
    assert "model.py:4 uses /job, a path" in text
    assert made.plan.framework.recipe.fixed_paths == ["/job", "/mnt/results"]
    assert "known in the versions 2, not in 1.4" in text
    assert "each learner gets 1 for gpus: 0.5" in text
    assert made.plan.resources.gpus_per_learner == 1
    prepared(tmp_path, "{name: pytorch, command: python3 a.py}", a__py="import caffe2\n")
    notes = look_over(load_manifest(tmp_path / "m.yml"), tmp_path)  # as `dlctl validate` does
    assert any(note.startswith("a.py:1 uses caffe2, which no longer exists") for note in notes)
    folded = "{name: custom, command: 'pip3 install einops; python3 train.py'}"
    own = "own=$JOB_STATE_DIR/packages/learner-$LEARNER_ID"
    assert own in recipe(tmp_path, folded).script, "pip installs into an environment of the learner"
    assert "own=" not in recipe(tmp_path, "{name: custom, command: python3 train.py}").script


def test_stored_weights_are_a_file_for_every_program(tmp_path):
    (tmp_path / "m.yml").write_text(
        "name: a\nframework:\n  name: jax\n  job: train.py\n"
        "  arguments: {weights: 'model:a@best', n: 1}\n"
    )
    (tmp_path / "train.py").write_text("")
    weights = StoredWeights("a-abcdefgh@1", "w.npz", "0" * 64, 1, "weights/w.npz")
    made = prepare(tmp_path / "m.yml", Overrides(), make_site(), find_weights=lambda _: weights)
    assert 'python train.py --weights "$WEIGHTS_FILE" --n 1\n' in made.plan.framework.recipe.script
    place = f"/data/dl/jobs/{made.plan.training_id}/weights/w.npz"
    assert made.plan.framework.arguments["weights"] == place


@pytest.mark.parametrize(("template", "said"), [
    ("echo a\nif true; then\n  {{ program }}\n", "line 3: bash can't read it: syntax error: unexp"),
    ("echo a\n{{ program }}\nfi\n", "line 3: bash can't read it: syntax error near unexpected"),
    ("{% for n in [1, 2, 3] %}\necho {{ n }}\n{% endfor %}\ndone\n", "line 4: bash can't read it:"),
    ("echo\n{{ program }\n", "line 2: unexpected"),
    ("shopt -s extglob\nrm -f !(keep)\n", ""),  # bash reads it only after an option: no fault
])  # fmt: skip
def test_validate_finds_a_fault_of_a_template_and_what_bash_cannot_read(tmp_path, template, said):
    write_framework(tmp_path, "mine", "title: a\n", template)
    manifest = make_manifest("name: a\nframework: {name: mine, command: x}\n")
    if said:
        with pytest.raises(ManifestError) as caught:
            look_over(manifest, tmp_path)
        assert f"mine/train.sh.j2: {said}" in caught.value.message
    else:
        look_over(manifest, tmp_path)
    text = "name: a\nframework:\n  name: any\n  command: |\n    for n in 1 2; do\n      echo $n\n"
    with pytest.raises(ManifestError, match=r":4:12: framework.command: line 2: bash can't"):
        look_over(make_manifest(text), tmp_path)
