"""The command of a hint, taken out of what dlctl prints, ends the situation that it is printed in.

Every situation is a training that fails once, and would complete the second time. All of a site
are submitted at once.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from typing import NamedTuple

import pytest
import yaml
from hints import commands_in
from repository import REPOSITORY
from trainings import ON_THE_CLUSTER, change_site, run, wait_for_state, write_training

ONCE = 'once=$CHECKPOINT_DIR/once; [ -e "$once" ] && exit 0; echo 1 >"$once"\n'
FILLS = "exec python3 -c 'import time; x = bytearray(280 << 20); time.sleep(60)'"
RESUME = ["resume ID"]
SEE_LOG = ["logs ID --learner 0 --debug"]
NODE_MIB = 4000
"""The memory of a node of the test cluster."""


class Situation(NamedTuple):
    """What a program does the first time, and the commands that the hint has to name."""

    program: str
    kind: str
    commands: list[str]
    memory: str = "512MiB"
    at_home: list[str] | None = None
    """The commands on this machine, if they are others; empty: it does not happen there."""


SITUATIONS = {
    "little memory": Situation(
        "echo MemoryError; exit 1", "out_of_memory", ["resume ID --memory 600MiB"],
        "300MiB", RESUME),
    "a full node": Situation(
        "echo 'RuntimeError: CPUAllocator: not enough memory'; exit 1", "out_of_memory",
        [f"resume ID --memory {NODE_MIB}MiB"], "2500MiB", RESUME),
    "killed by Slurm": Situation(
        FILLS, "out_of_memory", ["resume ID --memory 400MiB"], "200MiB", []),
    "disk full": Situation(
        "echo 'OSError: [Errno 28] No space left on device'; exit 1", "disk_full",
        ["du SITE", *RESUME]),
    "stale handle": Situation(
        "echo 'OSError: [Errno 116] Stale file handle'; exit 1", "site", ["doctor SITE", *RESUME]),
    "network": Situation("echo Connection reset by peer; exit 1", "network", RESUME),
    "GPU": Situation("echo GPU is lost; exit 1", "gpu_error", RESUME),
    "waits for another": Situation(
        "echo 'Timed out waiting 9ms for recv operation to complete'; exit 1", "hung",
        ["logs ID --debug"]),
    "tries again": Situation("exit 75", "try_again", RESUME),
    "says nothing": Situation("exit 3", "user_error", ["resume ID --code"]),
    "says little": Situation("echo no licence; exit 3", "user_error", SEE_LOG),
    "aborts": Situation("kill -ABRT $$", "unknown", SEE_LOG),
    "is ended": Situation("kill -TERM $$; sleep 9", "scheduler", RESUME),
}  # fmt: skip


@ON_THE_CLUSTER
def test_the_command_of_each_hint_ends_its_situation(dlctl, site):
    paths, wanted = [], {}
    for name, situation in SITUATIONS.items():
        commands = situation.commands
        if site.cluster is None and situation.at_home is not None:
            commands = situation.at_home
        if commands:
            word = name.replace(" ", "-")
            files = {"once.sh": f"{ONCE}{situation.program}\n"}
            write_training(dlctl.cwd / word, {"command": "sh once.sh"}, files, name=word, retries=0,
                           memory=situation.memory)  # fmt: skip
            paths.append(dlctl.cwd / word / "manifest.yml")
            wanted[name] = commands
    sent = dlctl("submit", *paths, "--site", site.name, "--json", ok=True).json
    for (name, commands), record in zip(wanted.items(), sent, strict=True):
        training_id = record["training_id"]
        wait_for_state(dlctl, training_id, "FAILED", timeout_s=200)
        shown = dlctl("show", training_id, "--json", ok=True).json
        kind = shown["verdict"]["kind"] if shown["verdict"] else "out_of_memory"
        assert kind == SITUATIONS[name].kind, shown["reason"]
        found = [command for command, _ in commands_in(shown["hint"])]
        meant = [each.replace("ID", training_id).replace("SITE", site.name) for each in commands]
        assert found == meant, (name, shown["hint"])
        for command in found:
            dlctl(*command.split(), ok=True)
        if "resume ID" in commands[-1]:
            wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=200)


def limited(site, config, folder, kib):
    """Return a site whose jobs are submitted from a shell that limits their address space."""
    folder.mkdir()
    for name in ("squeue", "scancel", "sacct", "scontrol", "sinfo", "srun"):
        (folder / name).symlink_to(shutil.which(name))
    (folder / "sbatch").write_text(
        f'#!/bin/sh\nulimit -v {kib}\nexec {shutil.which("sbatch")} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    return change_site(site, config, scheduler={"path": str(folder)})


def test_limits_of_the_login_node_stay_there_and_those_of_the_set_up_are_named(
    dlctl, cluster_site, xdg
):
    """Both were too little memory; more of it would have changed nothing."""
    folder = cluster_site.cluster.home / f"bin-{secrets.token_hex(4)}"
    site = limited(cluster_site, xdg.config, folder, 2_000_000)
    command = {"command": "exec python3 -c 'import mmap; mmap.mmap(-1, 3 << 30)'"}
    write_training(dlctl.cwd, command, memory="512MiB")
    run(dlctl, site, dlctl.cwd, ok=True)
    change_site(site, xdg.config, environment={"setup": ["ulimit -v 2000000"]})
    done, training_id = run(dlctl, site, dlctl.cwd)
    assert done.exit_code == 10
    shown = dlctl("show", training_id, "--json", ok=True).json
    limit = "each of its processes may have 2.0 GB of address space (ulimit -v)."
    assert shown["reason"].endswith(f"Cannot allocate memory; {limit}")
    assert "`environment.setup`" in shown["hint"]
    change_site(site, xdg.config, environment={"setup": ["ulimit -v unlimited"]})
    ((resume, _),) = commands_in(shown["hint"])
    dlctl(*resume.split(), ok=True)
    wait_for_state(dlctl, training_id, "COMPLETED")
    shutil.rmtree(folder)


def test_a_limit_of_the_set_up_is_not_the_nodes_fault(dlctl, site, xdg):
    """The check of the nodes wrote more than that, found "File too large" and avoided the node."""
    write_training(dlctl.cwd, {"command": 'python3 -c \'open("big", "wb").write(bytes(1 << 20))\''})
    change_site(site, xdg.config, site.name, environment={"setup": ["ulimit -f 200"]})
    done, training_id = run(dlctl, site, dlctl.cwd)
    assert done.exit_code == 10
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert shown["reason"].endswith("OSError: [Errno 27] File too large"), shown
    assert "`environment.setup`" in shown["hint"]
    change_site(site, xdg.config, site.name, environment={"setup": []})
    ((resume, _),) = commands_in(shown["hint"])
    dlctl(*resume.split(), ok=True)
    wait_for_state(dlctl, training_id, "COMPLETED")


@pytest.mark.skipif(os.getuid() != 0, reason="Open MPI refuses only root")
def test_what_open_mpi_says_to_root_names_the_two_ways_out(dlctl, local_site, xdg):
    """The site's Python and its root folder were blamed."""
    allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
    file = REPOSITORY / "site_configs/local.yml"
    variables = yaml.safe_load(file.read_text())["environment"]["variables"]
    bare = {key: str(value) for key, value in variables.items() if key not in allowed}
    root = str(local_site.root)
    site = change_site(local_site, xdg.config, environment={"variables": bare}, root=root)
    folder = write_training(dlctl.cwd / "t", {"command": "true"}, learners=2, retries=0)
    deep = dlctl("doctor", site.name, "--deep", "--json")
    (job,) = (each for each in deep.json if each["name"] == "job")
    _, training_id = run(dlctl, site, folder)
    shown = dlctl("show", training_id, "--json", ok=True).json
    for reason in (job["evidence"], shown["reason"]):
        assert "has detected an attempt to run as root" in reason
    for hint, name in ((shown["hint"], "resume"), (job["fix"], "doctor")):
        assert "ordinary user" in hint
        assert re.findall(r"(OMPI_\w+): 1", hint) == allowed
        assert "dlctl doctor here" not in hint and name in hint
    both = bare | dict(re.findall(r"(OMPI_\w+): (1)", shown["hint"]))
    change_site(site, xdg.config, environment={"variables": both})
    for hint, how in ((job["fix"], "doctor changed --deep"), (shown["hint"], None)):
        ((command, _),) = commands_in(hint)
        assert command == (how or f"resume {training_id}")
        dlctl(*command.split(), ok=True)
    wait_for_state(dlctl, training_id, "COMPLETED")
