"""A site whose only Python with packages is in a container, on both sites."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from trainings import (
    ON_THE_CLUSTER,
    change_site,
    run,
    search_of_digits,
    wait_for_state,
    write_training,
)
from wheels import make_wheel

BOX = Path(__file__).parents[1] / "support/box.sh"


@pytest.fixture
def boxed(site, xdg):
    """The site, with an image that the nodes see, and whose Python is nowhere else."""
    place = site.root.parent / f"{site.root.name}-images"
    place.mkdir(mode=0o755)
    base = Path(os.path.realpath(sys.executable)).parents[1]
    wheels = place / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "useful", "1.0", {"useful.py": ""})
    parts = [
        (wheels, "/opt/wheels"),
        ("/usr", "/usr"),
        ("/etc", "/etc"),
        (site.python.parents[1], "/opt/python"),
    ]
    parts += [] if base == Path("/usr") else [(base, base)]
    image = place / "torch.sif"
    image.write_text("".join(f"{here} {there}\n" for here, there in parts))
    image.with_name("torch.sif.root").mkdir()  # where it is mounted
    shutil.copy(BOX, place / "box")
    yield change_site(
        site, xdg.config,
        environment={"python": "/opt/python/bin/python",
                     "container": [str(place / "box"), "exec", str(image)]},
        launcher={} if site.is_cluster else {"executable": str(site.python.with_name("mpirun"))},
    )  # fmt: skip
    shutil.rmtree(place)


WHERE = """
import shutil, sys
from mpi4py.MPI import COMM_WORLD as world
import useful
print(shutil.which("srun"), sys.prefix, world.allreduce(world.rank + 1))
"""


@ON_THE_CLUSTER
def test_learners_run_inside_and_the_supervisor_outside(dlctl, site, boxed, tmp_path):
    """The supervisor was inside, where there is no srun, and the root could not be seen there."""
    done = dlctl("doctor", boxed.name, "--json")
    checks = {each["name"]: each for each in done.json}
    assert "sees the root; outside: /" in checks["container"]["evidence"]
    assert "broken" not in {each["state"] for each in checks.values()}, checks
    folder = write_training(
        tmp_path / "t", {"command": 'python where.py >"$RESULT_DIR/$RANK"'}, {"where.py": WHERE},
        learners=2, requirements=["--no-index", "--find-links /opt/wheels", "useful"],
    )  # fmt: skip
    _, training_id = run(dlctl, boxed, folder, *(("--nodes", "2") if site.is_cluster else ()),
                         ok=True)  # fmt: skip
    for rank in "01":
        srun, prefix, total = (site.job_dir(training_id) / "results" / rank).read_text().split()
        assert (srun, total) == ("None", "3")
        assert prefix.startswith(f"{site.root}/environments/")


@ON_THE_CLUSTER
def test_a_search_starts_its_workers_and_trainings_outside(dlctl, site, boxed):
    """The hub is inside, where there is no sbatch, and so is a trial, where there is no srun."""
    path = search_of_digits(dlctl.cwd, trials=1, jobs="0..1")
    started = dlctl("search", "start", path, "--site", boxed.name, ok=True)
    wait_for_state(dlctl, search_id := started.stdout.strip(), "COMPLETED", timeout_s=300)
    (trial,) = (site.job_dir(search_id) / "search/tasks").iterdir()
    files = (trial / "checkpoint/job/metrics").iterdir()
    assert {"0", "1"} <= {each.stem.split("-")[1] for each in files}


@ON_THE_CLUSTER
def test_a_container_that_does_not_see_the_root_is_named(dlctl, site, boxed, xdg):
    place = site.root.parent / f"{site.root.name}-images"
    words = ["env", "APPTAINER_BIND=", f"{place}/box", "exec", f"{place}/torch.sif"]
    blind = change_site(boxed, xdg.config, "blind", environment={"container": words})
    checks = inspected(dlctl, blind)
    assert checks["container"]["state"] == "broken"
    option, root = re.findall(r"(--bind) (\S+) to", checks["container"]["fix"])[0]
    words[-1:] = [option, root, words[-1]]
    blind = change_site(boxed, xdg.config, "blind", environment={"container": words})
    assert inspected(dlctl, blind)["container"]["state"] == "ok"


@ON_THE_CLUSTER
@pytest.mark.parametrize(
    ("lack", "link", "fix"),
    [
        ({"container": ["no-such-program", "exec"]}, "container", "correct environment.container"),
        ({"python": "/opt/nowhere/python"}, "python", "set environment.python to a Python inside"),
        ({"python": "/usr/bin/python3"}, "torch", "set environment.python to a Python inside"),
    ],
)
def test_what_a_container_lacks_is_not_installed_but_set(dlctl, boxed, xdg, lack, link, fix):
    """`dlctl sites setup` was to do it, which installs nothing there; or an option --bind."""
    broken = change_site(boxed, xdg.config, "lacking", environment=lack)
    checks = inspected(dlctl, broken)
    assert checks[link]["state"] == "broken" and checks[link]["fix"].startswith(fix), checks[link]
    assert "sites setup" not in " ".join(each["fix"] for each in checks.values())
    mended = change_site(boxed, xdg.config, "mended", environment={})
    assert inspected(dlctl, mended)[link]["state"] == "ok"


def inspected(dlctl, site):
    return {each["name"]: each for each in dlctl("doctor", site.name, "--json").json}
