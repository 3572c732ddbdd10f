"""Names, paths and values with every odd character travel unharmed through ssh, sh and Slurm."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest
import yaml
from trainings import (
    ON_THE_CLUSTER,
    change_site,
    command_lines,
    run,
    submit,
    wait_for_file,
    wait_for_state,
    write_training,
)

ODD = (
    "a b  'single' \"double\" $(echo no) `echo no` $HOME \\back\\n %j %% * ? [x] ~ ! # ; & | < >"
    " ü 日本 é"
)
MULTILINE = f"first line\n\tsecond {ODD}\n\n--fourth\n"
ODD_FILE = "-n $(touch pwned) `id` 'q' \"d\" ü%j\nsecond line.txt"
DESCRIPTION = f"{MULTILINE}#SBATCH --partition=nowhere\n"

# The training tells what it sees; the user's own modules have the names of ours and Python's.
PROBE = """\
import json, os, pathlib, sys
code = pathlib.Path(os.environ["MODEL_DIR"])
seen = {
    "argv": sys.argv[1:],
    "env": {name: text for name, text in os.environ.items() if name.startswith("ODD_")},
    "files": sorted(str(p.relative_to(code)) for p in code.rglob("*") if p.is_file()
                    and "__pycache__" not in p.parts),
    "cwd": os.getcwd(),
    "arguments": SEEN_ARGUMENTS,
}
path = pathlib.Path(os.environ["RESULT_DIR"], "seen " + os.environ["RANK"] + " $(x) ü.json")
path.write_text(json.dumps(seen))
"""
JOB = """\
import torch

def build(arguments):
    probe(arguments)
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loss": torch.nn.functional.mse_loss, "train": data}

def probe(SEEN_ARGUMENTS):
""" + "".join(f"    {line}\n" for line in PROBE.splitlines())
BOMB = "raise RuntimeError('the file of the user was imported by a process of dlctl')\n"
BOMBS = {
    name: BOMB
    for name in (
        "typing.py", "learner.py", "json.py", "dlctl.py", "watchdog.py", "logging.py",
        "sitecustomize.py", "usercustomize.py",
    )
}  # fmt: skip


@pytest.fixture
def odd_site(site, xdg):
    """The site with a root folder whose name is as odd as Slurm allows."""
    root = site.root.parent / 'it\'s a "root" $(x) ü%j %% &'
    return change_site(site, xdg.config, root=str(root))


def fetch(dlctl, training_id, cwd, name):
    done = dlctl("fetch", "results", training_id, "--to", "brought $(x) ü", cwd=cwd, ok=True)
    assert "Traceback" not in done.stderr
    return json.loads((cwd / "brought $(x) ü" / name).read_text())


@ON_THE_CLUSTER
def test_a_command_and_its_world(dlctl, odd_site):
    folder = dlctl.cwd / "-a folder 'with' \"all\" $(touch pwned) `x` ü\nand a line"
    command = f"""\
python3 'pro be.py' "$ODD_VALUE" '--two  words' \\
   "$(cat <<'END'
{ODD}
END
)"
"""
    write_training(
        folder,
        {"command": command},
        {"pro be.py": f"SEEN_ARGUMENTS = None\n{PROBE}", ODD_FILE: ODD, "sub ü/-rf": "x"},
        name=ODD, description=DESCRIPTION, version="-1 $(v)",
        env={"ODD_VALUE": ODD, "ODD_LINES": MULTILINE, "ODD_DASH": "--help", "ODD_EMPTY": ""},
    )  # fmt: skip
    done, training_id = run(dlctl, odd_site, folder, ok=True)
    seen = fetch(dlctl, training_id, folder, "seen 0 $(x) ü.json")
    assert seen["argv"] == [ODD, "--two  words", ODD]
    assert seen["env"] == {
        "ODD_VALUE": ODD, "ODD_LINES": MULTILINE, "ODD_DASH": "--help", "ODD_EMPTY": "",
    }  # fmt: skip
    assert seen["files"] == sorted([".dlctl-index", "pro be.py", ODD_FILE, "sub ü/-rf"])
    assert seen["cwd"] == str(odd_site.job_dir(training_id) / "code")
    shown = dlctl("show", training_id, "--json", cwd=folder, ok=True).json
    assert shown["name"] == ODD
    assert shown["plan"]["description"] == DESCRIPTION
    stored = yaml.safe_load((odd_site.job_dir(training_id) / "manifest.yml").read_text())
    assert (stored["name"], stored["description"]) == (ODD, DESCRIPTION)
    assert stored["framework"]["command"] == command
    assert (odd_site.job_dir(training_id) / "code" / ODD_FILE).read_text() == ODD
    assert not list(folder.rglob("pwned")) + list(odd_site.root.rglob("pwned"))
    latest = dlctl("status", "--json", cwd=folder, ok=True).json  # found by the folder's name
    assert latest["training_id"] == training_id
    dlctl("delete", "--yes", training_id, cwd=folder, ok=True)
    assert not odd_site.job_dir(training_id).exists()


@ON_THE_CLUSTER
def test_arguments_and_files_named_like_ours(dlctl, odd_site):
    """Two learners: launcher, preflight and MPI go the same odd ways."""
    arguments = {
        "odd $(key) ü": ODD, "lines": MULTILINE, "number": 3, "real": 1e-4, "yes": True,
        "none": None, "list": ["--x", ODD, [1.5, "1.5"]], "map": {"a'b": "c\"d"}, "text": "007",
    }  # fmt: skip
    folder = write_training(
        dlctl.cwd,
        {"job": "sub dir/-train 'ü' $(x).py", "arguments": arguments},
        {"sub dir/-train 'ü' $(x).py": JOB, **BOMBS, "sub dir/random.py": BOMB},
        learners=2,
    )
    away = folder.parent
    done, training_id = run(dlctl, odd_site, folder, cwd=away, ok=True)
    for rank in (0, 1):
        seen = fetch(dlctl, training_id, away, f"seen {rank} $(x) ü.json")
        assert seen["arguments"] == arguments
    assert list((away / "brought $(x) ü").glob("model*"))


@ON_THE_CLUSTER
def test_a_command_beside_files_named_like_ours(dlctl, site):
    """The user's own program does import them: they are its neighbours."""
    folder = write_training(
        dlctl.cwd,
        {"command": "python3 train.py"},
        {
            **BOMBS,
            "watchdog.py": "MINE = 'mine'\n",
            "train.py": "import watchdog\nprint(watchdog.MINE)\n",
        },
        learners=2,
    )
    done, _ = run(dlctl, site, folder, cwd=folder.parent, ok=True)
    assert "learner-1 | mine" in done.stdout


SECRET_PROBE = """\
printf '%s\\n' "$API_TOKEN" "$MY_TOKEN" "$FILE_TOKEN" | sha256sum >"$RESULT_DIR/hash"
echo ready >"$RESULT_DIR/ready"
echo "$API_TOKEN is printed by the program itself" >/dev/null
while [ ! -e "$RESULT_DIR/go" ]; do sleep 0.1; done
exit 4
"""


@pytest.mark.first("cluster")
@ON_THE_CLUSTER
def test_secrets_reach_the_learner_and_nothing_else(dlctl, site, xdg):
    values = [f"hunter2-{os.urandom(8).hex()}-{n}" for n in ("literal", "env", "file")]
    outside = dlctl.cwd.parent / "token file"
    outside.write_text(values[2] + "\n")
    outside.chmod(0o600)
    folder = write_training(
        dlctl.cwd, {"command": SECRET_PROBE}, learners=2,
        env={"API_TOKEN": values[0], "MY_TOKEN": {"from_env": "THE_TOKEN"},
             "FILE_TOKEN": {"from_file": str(outside)}},
    )  # fmt: skip
    training_id = submit(dlctl, site, folder, env={"THE_TOKEN": values[1]})
    results = site.job_dir(training_id) / "results"
    wait_for_file(results / "ready")
    seen = wait_for_file(results / "hash").split()[0]
    assert seen == hashlib.sha256("".join(f"{v}\n" for v in values).encode()).hexdigest()
    needles = [value.encode() for value in values]
    lines = command_lines()
    assert any(training_id.encode() in line for line in lines)
    assert not [line for line in lines if any(needle in line for needle in needles)]
    (results / "go").touch()
    wait_for_state(dlctl, training_id, "FAILED")
    places = [site.root, xdg.state, xdg.config, xdg.data]
    found = {file for place in places for file in _files_with(place, needles)}
    secret_files = set(site.root.glob(f"secrets/{training_id}/*"))
    assert found == secret_files
    assert len(secret_files) == 3
    assert {file.stat().st_mode & 0o777 for file in secret_files} == {0o600}
    told = dlctl("show", training_id, "--all", ok=True).stdout + dlctl("logs", training_id).stdout
    told += dlctl("show", training_id, "--script", ok=True).stdout
    if site.cluster:
        told += site.cluster.user("scontrol", "show", "job", "-dd")
        told += site.cluster.user("sacct", "-l", "-P")
    assert not [value for value in values if value in told]
    dlctl("delete", "--yes", training_id, ok=True)
    assert not (site.root / "secrets" / training_id).exists()


def _files_with(place, needles):
    argv = ["grep", "-rlZaF", *[f"-e{needle.decode()}" for needle in needles], str(place)]
    names = subprocess.run(argv, capture_output=True).stdout.decode().split("\0")
    return {type(place)(name) for name in names if name}
