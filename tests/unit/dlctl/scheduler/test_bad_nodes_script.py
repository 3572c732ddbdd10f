"""Which nodes the script that submits a job has Slurm avoid."""

import json
import subprocess
import time
from types import SimpleNamespace

import pytest

from dlctl import contract
from dlctl.scheduler.slurm import _avoid_bad_nodes

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2\n"


def avoided(folder, nodes, script=SCRIPT, needed=2):
    """Return what the shell sets `avoid` to, on a cluster with the nodes n1 to n4."""
    (folder / "nodes").mkdir()
    for host, seconds in nodes.items():
        record = {"host": host, "expires_at": time.time() + seconds}
        (folder / f"nodes/{host}.json").write_text(json.dumps(record, indent=2))
    sinfo = folder / "sinfo"
    sinfo.write_text("#!/bin/sh\necho n1; echo n2; echo n3; echo n4; echo n2\n")
    sinfo.chmod(0o755)
    (folder / "job.sbatch").write_text(script)
    lost = [host for line in script.splitlines() if line.startswith(contract.AVOID)
            for host in line.removeprefix(contract.AVOID).split(",")]  # fmt: skip
    plan = SimpleNamespace(
        root=str(folder), batch=SimpleNamespace(partition="debug", exclude=lost),
        resources=SimpleNamespace(nodes=needed),
    )  # fmt: skip
    answers = set()
    for attempt in (2, contract.NEXT):  # whose plan is known, and whose plan is not
        shell = _avoid_bad_nodes(plan, "job.sbatch", attempt)
        text = f'PATH={folder}:$PATH\n{shell}\necho "$avoid"'
        done = subprocess.run(["sh", "-uc", text], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        answers.add(done.stdout.strip())
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, ""),
        ({"n2": 100}, "n2"),
        ({"n2": 100, "n3": -5}, "n2"),  # expired
        ({"n9": 100}, ""),  # no longer in the cluster: Slurm would refuse the job
        ({"n1": 100, "n2": 100, "n3": 100}, ""),  # too few would be left
        ({"n2 $(id)": 100}, ""),
    ],
)
def test_nodes_are_avoided_until_they_expire(tmp_path, nodes, expected):
    assert avoided(tmp_path, nodes) == expected


@pytest.mark.parametrize(("line", "needed", "expected"), [
    *((f"#SBATCH {option}", 2, "n2,n4")  # the script's own exclusions stay
      for option in ("--exclude=n4", "'--exclude=n4'", "--exclude n4", "-x n4")),
    ("# dlctl-avoid: n3", 1, "n2,n3"),
    ("# dlctl-avoid: n3", 2, "n2"),  # none would be left for the next loss
    ("# dlctl-avoid: n1,n3", 1, "n2"),
    ("# dlctl-avoid: n1,n3", 4, ""),
    ("# dlctl-avoid: n9", 2, "n2"),  # no longer there
])  # fmt: skip
def test_nodes_that_this_training_lost_are_avoided_more_rarely(tmp_path, line, needed, expected):
    """They come back: a training that avoids all that it ever lost would wait for ever."""
    assert avoided(tmp_path, {"n2": 100}, f"{SCRIPT}{line}\n", needed) == expected
