"""Another version of dlctl adds workers to a search: they run the hub's version, which is there."""

from __future__ import annotations

import json
import shutil

from test_searches import start
from trainings import REPOSITORY, wait_for_state

from dlctl.contract import search as names


def test_workers_that_a_newer_dlctl_adds_run_the_version_of_the_hub(dlctl, local_site):
    search_id = start(dlctl, local_site, 30)
    newer = dlctl.cwd / "newer"
    for package in ("dlctl", "learner", "psrv", "search", "templates", "site_configs"):
        shutil.copytree(REPOSITORY / package, newer / package)
    with (newer / "search/errors.py").open("a") as file:
        file.write("# newer\n")
    added = ("search", "scale", search_id, "--workers", "3")
    with dlctl.start(*added, env={"PYTHONPATH": str(newer)}) as command:
        told = command.communicate(timeout=60)
    assert command.returncode == 0, told
    job_dir = local_site.job_dir(search_id)
    runtime_dir = json.loads((job_dir / "plan.json").read_text())["runtime_dir"]
    script = (job_dir / names.WORKERS / "w/worker.sbatch").read_text()
    assert f"runtime_dir={runtime_dir}\n" in script
    wait_for_state(dlctl, search_id, "COMPLETED")
