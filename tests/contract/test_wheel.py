"""The wheel, installed into an empty environment: what it brings, and a submission from it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_ONLY = {"torch", "mpi4py", "numpy", "h5py", "watchdog"}
INSTALL_S = 600  # from the network
SITE = """\
transport: {{kind: local}}
root: {root}
scheduler: {{kind: local}}
launcher: {{kind: mpirun}}
environment: {{python: {python}}}
"""

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("wheel")]


def run(argv, *, env=None, cwd=None):
    done = subprocess.run(
        [str(word) for word in argv], env=env, cwd=cwd, capture_output=True, text=True,
        timeout=INSTALL_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{argv}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, "."],
        cwd=REPOSITORY)  # fmt: skip
    (found,) = folder.glob("dlctl-*.whl")
    return found


@pytest.fixture(scope="session")
def laptop(wheel, tmp_path_factory):
    """Return the Python of an environment that holds the wheel and what it declares, no more."""
    folder = tmp_path_factory.mktemp("laptop") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin/python"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel], env=env)
    return python


def test_the_wheel_holds_packages_data_and_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("templates", "site_configs"):
        mine = [p for p in (REPOSITORY / folder).rglob("*")
                if p.is_file() and p.suffix != ".pyc"]  # fmt: skip
        assert mine
        assert {f"dlctl/_data/{p.relative_to(REPOSITORY)}" for p in mine} <= names
    assert "dlctl/_data/constraints.txt" in names
    for package in ("dlctl", "learner", "psrv"):
        mine = {
            str(path.relative_to(REPOSITORY))
            for path in (REPOSITORY / package).rglob("*.*")
            if path.suffix in (".py", ".c")
        }
        assert mine <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert [name for name in names if name.endswith(".data/data/share/man/man1/dlctl.1")]
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {
        "dlctl",
        "learner",
        "psrv",
        "search",
    }
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name]


@pytest.mark.slow
def test_the_wheel_alone_submits_and_has_its_data(laptop, xdg, tmp_path):
    listed = run([sys.executable, "-m", "pip", "--python", laptop, "list", "--format", "json"])
    names = {item["name"].lower() for item in json.loads(listed)}
    assert "dlctl" in names
    assert not names & NODE_ONLY, "the login side pulls neither torch nor MPI"
    folder = tmp_path / "digits"
    shutil.copytree(
        REPOSITORY / "examples/digits", folder, ignore=shutil.ignore_patterns("results")
    )
    sites = xdg.config / "dlctl/sites"
    sites.mkdir(parents=True)
    python = Path(sys.executable)
    (sites / "wheel.yml").write_text(SITE.format(root=tmp_path / "root", python=python))
    env = {k: v for k, v in xdg.env.items() if k != "PYTHONPATH"}
    dlctl = laptop.with_name("dlctl")

    def call(*words):
        return run([dlctl, *words], env=env, cwd=folder)

    said = call("submit", "manifest.yml", "--site", "wheel", "--learners", "1",
                "--set", "training.epochs=1", "--follow")  # fmt: skip
    assert "epoch 1/1" in said
    record = json.loads(call("status", "--json"))
    assert record["state"] == "COMPLETED"
    assert record["site"] == "wheel"
    call("fetch", "results")
    assert (folder / "results" / record["training_id"] / "model.pt").is_file()
    call("init", "mine")
    assert (folder / "mine/manifest.yml").is_file()
    listed = json.loads(call("sites", "list", "--json"))
    assert {"local", "slurm-example"} <= {site["name"] for site in listed}
