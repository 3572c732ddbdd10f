"""A site's environments: which one a framework's version selects, and what train.sh becomes."""

import json
import subprocess

import pytest
import typer
from login_side import make_manifest, make_site
from shell_check import check_script, check_syntax
from typer.testing import CliRunner

from dlctl.cli.plugins import show_framework
from dlctl.errors import PlanError, RecordError, SiteError
from dlctl.manifest.overrides import Overrides
from dlctl.plan.environments import chosen_environment
from dlctl.request.attempts import decide_again, of_request, with_code
from dlctl.request.build import prepare

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


def prepared(folder, framework, extra="", site=SITE, program="x = 1\n"):
    (folder / "m.yml").write_text(f"name: a\nframework: {framework}\n{extra}")
    (folder / "train.py").write_text(program)
    return prepare(folder / "m.yml", Overrides(), site).plan


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
    plan = prepared(tmp_path, "{name: tensorflow, version: 2.21, job: train.py}")
    assert plan.environment.python == "/opt/py/bin/python"
    assert plan.learner_environment.python == "/sw/tf/bin/python"
    assert 'export PATH="${DLCTL_PYTHON_FOLDER:+' in plan.framework.recipe.script
    plan = prepared(tmp_path, "{name: torch, version: 1.13, job: train.py}")
    assert plan.environment.python == "/sw/conda/envs/old/bin/python", "the built-in loop's job"
    assert plan.environment.setup == [". /sw/conda.sh", "conda activate old"]
    assert plan.learner_environment is None


def test_requirements_are_added_to_it(tmp_path):
    plan = prepared(tmp_path, "{name: tensorflow, command: x}", "requirements: [einops]\n")
    assert plan.environment.site_python is None
    assert plan.learner_environment.site_python == "/sw/tf/bin/python"
    assert plan.made_environment.python.startswith("/data/dl/environments/")
    with pytest.raises(PlanError, match="tf1 of the site testbed runs Python in a container"):
        prepared(tmp_path, "{name: tensorflow, version: 1.15, command: x}",
                 "requirements: [einops]\n")  # fmt: skip


STORE = """data_stores:
  - {id: a, type: mount_volume, connection: {path: /cos}, training_data: {container: mnist},
     training_results: {container: trained}}
"""


def test_a_container_is_entered_with_the_folders_that_the_program_needs(tmp_path):
    plan = prepared(tmp_path, "{name: tensorflow, version: 1.15, command: python a.py /mnt/data/x}",
                    STORE)  # fmt: skip
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
    one = prepared(tmp_path, "{name: tensorflow, version: 1.15, job: train.py}", program=dead)
    two = prepared(tmp_path, "{name: tensorflow, version: 1.4, job: train.py}", program=dead)
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
    script = prepared(tmp_path, framework, STORE).framework.recipe.script
    check_syntax(script, ["sh"])
    check_script(script, "bash", "SC1090,SC1091,SC2016")


def test_two_stores_of_the_successor_are_named(tmp_path):
    second = STORE.partition("\n")[2].replace("{id: a,", "{id: b,")
    both = (STORE + second).replace("{path:", "{type: host_mount, path:")
    (note,) = prepared(tmp_path, "{name: jax, command: x}", both).not_in_this_version
    assert note == ("DATA_DIR has a folder for each of 2 data stores; the service's successor "
                    "uses only the first, which is $DATA_DIR/a here.")  # fmt: skip
    script = prepared(tmp_path, "{name: jax, command: x /mnt/data/mnist}", both)
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
    plan = prepared(tmp_path, f"{{name: custom, command: {reads}}}", STORE, make_site())
    assert "uses /mnt/data, a path of the service's containers" in plan.not_in_this_version[0]
    done = run_script(tmp_path, plan, user=user)
    said = f"data of the store\n{user}\n{tmp_path}\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert (tmp_path / "results/y").read_text() == "1\n"
    assert (tmp_path / "state/z").read_text() == "2\n"
    assert [path.name for path in (tmp_path / "scratch/root").iterdir()] == []
    plan = prepared(tmp_path, f"{{name: custom, command: {READS}}}", STORE, make_site())
    done = run_script(tmp_path, plan, "echo 0 >/proc/sys/user/max_user_namespaces &&")
    assert done.stdout == f"{tmp_path}\n", "without user namespaces it runs, and the log says why"
    assert "can't show the program /mnt/data/mnist, /mnt/results/trained/t-1 and" in done.stderr
    assert "use $DATA_DIR, $RESULT_DIR and $JOB_STATE_DIR (unshare: " in done.stderr


def test_an_environment_without_its_python_ends_there(tmp_path):
    """Another Python is on the path, and would run the program."""
    framework = "{name: tensorflow, version: 2.21, command: python train.py}"
    plan = prepared(tmp_path, framework, program="print('ran')\n")
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
