"""Frameworks are folders, rendered into train.sh; a site's environments that they select."""

import json
import re
import subprocess

import pytest
import typer
from login_side import make_manifest, make_site
from repository import REPOSITORY
from shell_check import check_script, check_syntax
from typer.testing import CliRunner

from dlctl.cli.plugins import show_framework
from dlctl.contract import StoredWeights
from dlctl.contract.programs.options import as_options
from dlctl.errors import ManifestError, PlanError, RecordError, SiteError
from dlctl.frameworks import list_frameworks
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.package_data import data_path
from dlctl.plan.environments import chosen_environment
from dlctl.request.attempts import decide_again, of_request, with_code
from dlctl.request.build import look_over, prepare
from dlctl.request.request import runtime_entries

KNOWN = [framework.name for framework in list_frameworks()[0]]
PAGE = REPOSITORY / "docs/frameworks.md"


def prepared(folder, framework, extra="", site=None, **files):
    (folder / "m.yml").write_text(f"name: a\nframework: {framework}\n{extra}")
    for name in ("train.py", *files):
        (folder / name.replace("__", ".")).write_text(files.get(name, "x = 1\n"))
    return prepare(folder / "m.yml", Overrides(), site or make_site())


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


MINE = "{name: mine, command: x}"


@pytest.mark.parametrize(("framework", "settings", "template", "said"), [
    ("{name: tensorflw, job: train.py}", "", "", "m.yml:2:19: framework.name: there is no "
     "framework 'tensorflw'; did you mean 'tensorflow'? There are caffe"),
    ("{name: lua, job: train.py}", "", "", "there is no framework 'lua'"),
    ("{name: jax, job: train.sh}", "", "",
     "m.yml:2:29: framework.job: 'train.sh' does not end with .py"),
    ("{name: custom, job: train.py}", "", "", "framework.job: custom takes none"),
    (MINE, "title: a\nsignall: TERM\n", "",
     "framework.yml:2:1: signall: unknown key; did you mean 'sign"),
    (MINE, "title: a\njob: {exampel: a.lua}\n", "",
     "2:7: job.exampel: unknown key; did you mean 'example'?"),
    (MINE, "title: a\nsignal: KILL\n", "",
     "framework.yml:2:9: signal: 'KILL' is unknown. Allowed: USR2"),
    (MINE, "job: {}\n", "", "title: is missing"),
    (MINE, "title: [\n", "", "not valid YAML"),
    # A template reads its values and no more.
    *((MINE, "title: a\n", template, "train.sh.j2: ") for template in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ nothing }}",
        "{% include '/etc/passwd' %}", "{{ arguments.update({'a': 1}) }}",
    )),
])  # fmt: skip
def test_a_wrong_framework_is_one_sentence(tmp_path, framework, settings, template, said):
    if settings:
        write_framework(tmp_path, "mine", settings, template)
    with pytest.raises(ManifestError) as caught:
        prepared(tmp_path, framework)
    assert said in caught.value.message


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
            prepared(tmp_path, MINE, extra)
    else:
        assert recipe(tmp_path, MINE, extra).script


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


# A site's environments ----------------------------------------------------------------------------

ENVIRONMENTS = """environments:
  tf:
    frameworks: {tensorflow: [2.21, latest]}
    python: /sw/tf/bin/python
  tf1:
    frameworks: {tensorflow: 1.15}
    container: apptainer exec --nv /sw/tf 1.sif
    modules: [apptainer]
    variables: {TF_CPP_MIN_LOG_LEVEL: 1}
  old:
    frameworks: {pytorch: ["1.13"], custom: [someone/pytorch:0917mpi]}
    setup: [. /sw/conda.sh, conda activate old]
    python: /sw/conda/envs/old/bin/python
"""
SITE = make_site(more=ENVIRONMENTS)


def planned(folder, framework, extra="", site=SITE, program="x = 1\n"):
    return prepared(folder, framework, extra, site, train__py=program).plan


@pytest.mark.parametrize(("framework", "name", "is_it", "said"), [
    ("{name: tensorflow, version: 2.21, command: x}", "tf", True, ""),
    ("{name: tensorflow, version: 2.21.0, command: x}", "tf", True, ""),
    ("{name: tensorflow, version: '2', command: x}", "tf", True, ""),
    ("{name: TensorFlow, version: 1.15.0-py3, command: x}", "tf1", True, ""),
    ("{name: tensorflow, version: 2.1, command: x}", "tf", False, "not in 2.1"),
    ("{name: tensorflow, version: 1.5.0-gpu-py3, command: x}", "tf", False,
     "has tensorflow in 2.21, latest (tf); 1.15 (tf1), not in 1.5.0-gpu-py3: it runs in the "
     "environment tf."),
    ("{name: tensorflow, version: '9', image_tag: latest, command: x}", "tf", True, ""),
    ("{name: tensorflow, command: x}", "tf", True, ""),
    ("{name: custom, version: 'someone/pytorch:0917mpi', command: x}", "old", True, ""),
    ("{name: jax, version: '0.4', image_tag: 0.4-py3, command: x}", None, False,
     "no environment for the image_tag 0.4-py3"),
    ("{name: jax, version: '0.4', command: x}", None, False, ""),
])  # fmt: skip
def test_the_version_selects_the_environment(framework, name, is_it, said):
    manifest = make_manifest(f"name: a\nframework: {framework}\n")
    chosen, really, told = chosen_environment(manifest, SITE, manifest.framework.name)
    assert (chosen and chosen.name, really) == (name, is_it)
    assert said in " ".join(told)
    assert bool(told) == bool(said)


def test_the_learners_run_in_it_and_dlctl_does_not(tmp_path):
    plan = planned(tmp_path, "{name: tensorflow, version: 2.21, job: train.py}")
    assert plan.environment.python == "/opt/py/bin/python"
    assert plan.learner_environment.python == "/sw/tf/bin/python"
    assert 'export PATH="${DLCTL_PYTHON_FOLDER:+' in plan.framework.recipe.script
    plan = planned(tmp_path, "{name: torch, version: 1.13, job: train.py}")
    assert plan.environment.python == "/sw/conda/envs/old/bin/python", "the built-in loop's job"
    assert plan.environment.setup == [". /sw/conda.sh", "conda activate old"]
    assert plan.learner_environment is None


def test_requirements_are_added_to_it(tmp_path):
    plan = planned(tmp_path, "{name: tensorflow, command: x}", "requirements: [einops]\n")
    assert plan.environment.site_python is None
    assert plan.learner_environment.site_python == "/sw/tf/bin/python"
    assert plan.made_environment.python.startswith("/data/dl/environments/")
    with pytest.raises(PlanError, match="tf1 of the site testbed names no Python"):
        planned(tmp_path, "{name: tensorflow, version: 1.15, command: x}",
                 "requirements: [einops]\n")  # fmt: skip


def test_no_container_is_entered_from_the_sites_own(tmp_path):
    own = "{python: /p, container: [apptainer, exec, a.sif]}"
    boxed = make_site(environment=own, more=ENVIRONMENTS)
    with pytest.raises(PlanError, match="no program can enter it from the site's own container"):
        planned(tmp_path, "{name: tensorflow, version: 1.15, command: x}", site=boxed)


STORE = """data_stores:
  - {id: a, type: mount_volume, connection: {path: /cos}, training_data: {container: mnist},
     training_results: {container: trained}}
"""


def test_a_container_is_entered_with_the_folders_that_the_program_needs(tmp_path):
    framework = "{name: tensorflow, version: 1.15, command: python train.py /mnt/data/x}"
    plan = planned(tmp_path, framework, STORE)
    script = plan.framework.recipe.script
    enter = 'apptainer exec --nv /sw/tf 1.sif /bin/sh -c "$DLCTL_AGAIN"\nexit\n'
    assert enter in script
    before = script.partition(enter)[0]
    assert "module load apptainer || " in before
    assert "export TF_CPP_MIN_LOG_LEVEL=1\n" in before
    assert "for folder in /data/dl /cos " in before
    assert "DLCTL_DATA_PATH=/mnt/data/mnist " in before
    assert "DLCTL_RESULT_PATH=/mnt/results/trained/$TRAINING_ID" in before


def test_a_version_that_the_site_has_is_not_old_there(tmp_path):
    """tf.contrib is in TensorFlow 1."""
    dead = "import tensorflow as tf\ntf.contrib.layers\n"
    one = planned(tmp_path, "{name: tensorflow, version: 1.15, job: train.py}", program=dead)
    two = planned(tmp_path, "{name: tensorflow, version: 1.4, job: train.py}", program=dead)
    assert one.not_in_this_version == []
    assert "not in 1.4: it runs in the environment tf" in " ".join(two.not_in_this_version)
    assert "tf.contrib, which no longer exists" in " ".join(two.not_in_this_version)


@pytest.mark.parametrize("framework", [
    "{name: tensorflow, version: 1.15, command: pip install a; python /job/a.py}",
    "{name: tensorflow, version: 2.21, command: python /mnt/results/a.py}",
    "{name: tensorflow, version: 2.21, job: train.py}",
    "{name: custom, version: 'someone/pytorch:0917mpi', command: 'python a'}",
    "{name: jax, command: python /mnt/data/a}",
])  # fmt: skip
def test_bash_and_shellcheck_find_no_fault_in_train_sh(tmp_path, framework):
    script = planned(tmp_path, framework, STORE).framework.recipe.script
    check_syntax(script, ["sh"])
    check_script(script, "bash", "SC1090,SC1091,SC2016")


def test_two_stores_of_the_successor_are_named(tmp_path):
    second = STORE.partition("\n")[2].replace("{id: a,", "{id: b,")
    both = (STORE + second).replace("{path:", "{type: host_mount, path:")
    (note,) = planned(tmp_path, "{name: jax, command: x}", both).not_in_this_version
    assert note == ("DATA_DIR has a folder for each of 2 data stores; the service's successor "
                    "uses only the first, which is $DATA_DIR/a here.")  # fmt: skip
    script = planned(tmp_path, "{name: jax, command: x /mnt/data/mnist}", both)
    assert 'readlink -f "$DATA_DIR"/a)' in script.framework.recipe.script


@pytest.mark.parametrize(("more", "said"), [
    ("environments: {a: {python: /x}}", "environments.a.frameworks"),
    ("environments: {a: {frameworks: {jax: 1}, python: auto}}", "an absolute path or null"),
    ("environments: {a: {frameworks: {jax: 1}, pyton: /x}}", "pyton"),
])  # fmt: skip
def test_a_wrong_environment_is_one_sentence(more, said):
    with pytest.raises(SiteError) as caught:
        make_site(more=more)
    assert said in caught.value.message


def test_frameworks_show_tells_what_the_sites_have(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "dlctl/sites/mine.yml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "transport: {kind: local}\nroot: /data/dl\nscheduler: {kind: slurm}\n"
        f"launcher: {{kind: srun}}\nenvironment: {{python: /opt/py/bin/python}}\n{ENVIRONMENTS}"
    )
    commands = typer.Typer()
    commands.command()(show_framework)
    shown = CliRunner().invoke(commands, ["tensorflow"]).stdout
    assert "mine: 2.21, latest (environment tf)" in shown
    assert "mine: 1.15 (environment tf1)" in shown
    as_json = CliRunner().invoke(commands, ["pytorch", "--json"]).stdout
    assert json.loads(as_json)["environments"] == [
        {"site": "mine", "environment": "old", "versions": ["1.13"]}
    ]


def run_script(tmp_path, plan, before="", user=0):
    """Run train.sh with what a learner has, as train.sh's users do."""
    for name in ("data", "results", "state", "scratch"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "data/x").write_text("data of the store\n")
    script = plan.framework.recipe.script
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "DATA_DIR": str(tmp_path / "data"),
           "RESULT_DIR": str(tmp_path / "results"), "JOB_STATE_DIR": str(tmp_path / "state"),
           "DLCTL_PROGRESS_FILE": str(tmp_path / "scratch/progress"), "TRAINING_ID": "t-1",
           "SCRIPT": script, "DLCTL_AGAIN": 'exec bash -c "$SCRIPT"'}  # fmt: skip
    who = ("--map-root-user",) if user == 0 else (f"--map-user={user}", f"--map-group={user}")
    command = ["unshare", "--user", *who, "sh", "-c", f'{before} exec bash -c "$SCRIPT"']
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)


READS = """'cat /mnt/data/mnist/x; echo 1 >/mnt/results/trained/t-1/y; pwd'"""


@pytest.mark.parametrize("user", [0, 1234])
def test_a_program_sees_the_paths_of_the_containers_as_the_user_it_is(tmp_path, user):
    """One without rights, too; of the node's own root nothing is left beside its folders."""
    more = "echo 2 >/job/z; test ! -e /.before && test -r /proc/self/status && id -u; "
    reads = READS.replace("pwd", f"{more} pwd")
    plan = planned(tmp_path, f"{{name: custom, command: {reads}}}", STORE, make_site())
    assert "uses /mnt/data, a path of the service's containers" in plan.not_in_this_version[0]
    done = run_script(tmp_path, plan, user=user)
    said = f"data of the store\n{user}\n{tmp_path}\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert (tmp_path / "results/y").read_text() == "1\n"
    assert (tmp_path / "state/z").read_text() == "2\n"
    assert [path.name for path in (tmp_path / "scratch/root").iterdir()] == []
    plan = planned(tmp_path, f"{{name: custom, command: {READS}}}", STORE, make_site())
    done = run_script(tmp_path, plan, "echo 0 >/proc/sys/user/max_user_namespaces &&")
    assert done.stdout == f"{tmp_path}\n", "without user namespaces it runs, and the log says why"
    assert "can't show the program /mnt/data/mnist, /mnt/results/trained/t-1 and" in done.stderr
    assert "use $DATA_DIR, $RESULT_DIR and $JOB_STATE_DIR (unshare: " in done.stderr


def test_an_environment_without_its_python_ends_there(tmp_path):
    """Another Python is on the path, and would run the program."""
    framework = "{name: tensorflow, version: 2.21, command: python train.py}"
    plan = planned(tmp_path, framework, program="print('ran')\n")
    done = run_script(tmp_path, plan, f"DLCTL_PYTHON_FOLDER={tmp_path}/gone")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the environment tf has no python in {tmp_path}/gone on " in done.stderr
    (tmp_path / "gone").symlink_to("/usr/bin")
    done = run_script(tmp_path, plan, f"DLCTL_PYTHON_FOLDER={tmp_path}/gone")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.parametrize("framework", [
    "{name: tensorflow, version: 2.21, command: x}", "{name: torch, version: 1.13, job: train.py}",
])  # fmt: skip
def test_a_later_attempt_stays_in_the_environment_of_the_first(tmp_path, framework):
    """Whatever the site's file says by then."""
    (tmp_path / "m.yml").write_text(
        f"name: a\nframework: {framework}\nrequirements: [einops]\nmemory: 1GiB\n"
    )
    (tmp_path / "train.py").write_text("def build(arguments): ...\n")
    first = of_request(prepare(tmp_path / "m.yml", Overrides(), SITE))
    later = decide_again(first, Overrides(learners=2), make_site())
    assert later.plan.resources.learners == 2
    assert later.plan.learner_environment == first.plan.learner_environment
    assert later.plan.environment == first.plan.environment
    assert later.plan.made_environment.site_python.startswith("/sw/")


def test_new_code_can_not_bring_another_environment(tmp_path):
    """train.sh stays the first attempt's."""

    def asked(version, requirements):
        (tmp_path / "m.yml").write_text(
            f"name: a\nframework: {{name: tensorflow, version: {version}, command: x}}\n"
            f"requirements: [{requirements}]\n"
        )
        return prepare(tmp_path / "m.yml", Overrides(), SITE)

    first = of_request(asked("2.21", "einops"))
    later = with_code(first, again := asked("2.21", "tqdm"), None)
    assert later.plan.learner_environment == again.plan.learner_environment
    assert later.plan.learner_environment != first.plan.learner_environment
    with pytest.raises(
        RecordError, match="ran in the environment tf, and its manifest selects tf1"
    ):
        with_code(first, asked("1.15", ""), None)
