"""The programs of the system that hints name are run, as they are printed, and help."""

from __future__ import annotations

import subprocess

import pytest
from hints import programs_in
from trainings import complete, run, write_training
from unprivileged import unprivileged

from dlctl.errors import BundleError, RecordError
from dlctl.request.bundle import collect
from dlctl.serve.run import read_token, token_file


def typed(hint: str, kind: str) -> str:
    """Return the only call of this kind in a hint."""
    found = [each for line in hint.splitlines() for each in programs_in(line)]
    (command,) = (command for name, command in found if name == kind)
    return command


def follow(hint: str, kind: str, cwd: object = None) -> str:
    end = subprocess.run(typed(hint, kind), shell=True, check=True, capture_output=True, text=True,
                         cwd=cwd)  # fmt: skip
    return end.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("wrong", "kind", "shows", "right"),
    [
        ({"gres": "nosuch:1"}, "sinfo -o", "gpu:2", {"gres": "gpu:1"}),
        ({"constraint": "nosuch"}, "sinfo -o", "(null)", {}),
        ({"account": "nosuch"}, "sacctmgr show", "Account", {}),
    ],
)
def test_what_slurm_refuses_is_put_right_with_the_list_that_the_hint_names(
    dlctl, cluster_site, wrong, kind, shows, right
):
    there = ("--site", cluster_site.name)
    write_training(dlctl.cwd, {"command": "true"}, scheduler=wrong)
    refused = dlctl("submit", *there)
    assert refused.exit_code == 7, refused
    listed = cluster_site.cluster.ssh(typed(refused.stderr, kind))
    assert shows in listed.stdout, listed
    write_training(dlctl.cwd, {"command": "true"}, scheduler=right)
    complete(dlctl, cluster_site, dlctl.cwd)


def test_a_program_that_is_not_executable(dlctl, local_site):
    folder = write_training(dlctl.cwd, {"command": "./train"}, {"train": "#!/bin/sh\n"}, retries=0)
    _, training_id = run(dlctl, local_site, folder)
    hint = dlctl("show", training_id, "--json", ok=True).json["hint"]
    follow(hint.replace("on it", "train"), "chmod +x", folder)
    run(dlctl, local_site, folder, ok=True)


def test_a_root_that_others_may_write_to(dlctl, local_site):
    local_site.root.mkdir(parents=True)
    local_site.root.chmod(0o777)
    write_training(dlctl.cwd, {"command": "true"})
    refused = dlctl("submit")
    assert refused.exit_code, refused
    follow(refused.stderr, "chmod go-w")
    dlctl("submit", ok=True)


def test_a_list_of_ignored_files_that_cannot_be_read(tmp_path):
    (tmp_path / ".dlctlignore").write_text("*.tmp\n")
    with unprivileged(tmp_path) as folder:
        (folder / ".dlctlignore").chmod(0)
        with pytest.raises(BundleError) as caught:
            collect(folder)
        follow(f"{typed(caught.value.hint, 'chmod u+r')} .dlctlignore", "chmod u+r", folder)
        collect(folder)


def test_a_secret_on_the_node_that_others_may_read(dlctl, local_site):
    once = "[ -e $CHECKPOINT_DIR/once ] || { echo 1 >$CHECKPOINT_DIR/once; exit 3; }"
    env = {"MY_TOKEN": {"from_env": "MY_TOKEN"}}
    folder = write_training(dlctl.cwd, {"command": once}, env=env, retries=0)
    dlctl.env["MY_TOKEN"] = "hunter2hunter2"
    _, training_id = run(dlctl, local_site, folder)
    del dlctl.env["MY_TOKEN"]
    (secret,) = (path for path in (local_site.root / "secrets").rglob("*") if path.is_file())
    secret.chmod(0o644)
    dlctl("resume", training_id, "--follow")
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert "others may read" in shown["reason"]
    follow(shown["hint"], "chmod 600")
    dlctl("resume", training_id, "--follow", ok=True)


def test_a_token_that_others_may_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = read_token()
    token_file().chmod(0o644)
    with pytest.raises(RecordError) as caught:
        read_token()
    follow(caught.value.hint, "rm")
    assert read_token() != first
