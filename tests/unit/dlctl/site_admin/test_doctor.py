"""Checks of sites and of this machine: each outcome, its words and its advice."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from repository import RECORDED
from shell_check import check_script
from typer.testing import CliRunner
from wheels import make_node_python

from dlctl.cli.sites import app
from dlctl.errors import ConnectError, SiteError
from dlctl.site_admin.actions import add_site, failed, parse_target
from dlctl.site_admin.check import Check
from dlctl.site_admin.discovery import parse_discovery
from dlctl.site_admin.doctor import check_here, check_node, check_site, node_script
from dlctl.site_admin.draft import make_site, site_text
from dlctl.site_admin.slurm_checks import check_accounting, check_slurm
from dlctl.sites.files import Partition, Site, TransportSettings, load_site, parse_site
from dlctl.transport import open_transport
from dlctl.transport.base import Completed
from dlctl.transport.local import LocalTransport


class NoConnection:
    name = "me@far:22"
    closed = False

    def run(self, script, *, stdin=b"", timeout_s=60.0) -> Completed:
        raise ConnectError("me@far:22: connection refused", hint="look at the address")

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def slurm(**scheduler: str) -> Site:
    keys = "".join(f", {key}: {value}" for key, value in scheduler.items())
    return parse_site(
        "x",
        f"transport: {{kind: ssh, host: h}}\nroot: /r\nscheduler: {{kind: slurm{keys}}}\n"
        "partitions: {debug: {nodes: 4, cpus_per_node: 2, memory_per_node: 4000MiB}}\n"
        "launcher: {kind: srun, mpi: pmix}\nenvironment: {python: /p}\n",
    )


def local(root: Path, python: str = sys.executable, more: str = "", launcher: str = "") -> Site:
    return parse_site(
        "here",
        f"transport: {{kind: local}}\nroot: {str(root)!r}\nscheduler: {{kind: local}}\n"
        f"launcher: {{kind: mpirun{launcher}}}\nenvironment:\n  python: {python!r}\n{more}",
    )


def named(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def on_nodes(site: Site) -> dict[str, Check]:
    """Return what a check finds where jobs run; what it looks for before is recorded."""
    found = parse_discovery((RECORDED / "discovery-slurm-22.05.txt").read_text())
    return named(check_node(site, found, LocalTransport()))


def test_a_file_that_agrees_with_the_cluster_is_ok():
    found = parse_discovery((RECORDED / "discovery-slurm-22.05.txt").read_text())
    checks = check_slurm(slurm(account="dl"), found)
    assert {check.outcome for check in checks} == {"ok"}
    assert named(checks)["partition debug"].seen == "4 of 4 nodes usable"
    assert named(checks)["partitions"].seen == "the file does not name scavenge"
    assert not failed(checks)


def test_each_difference_is_named_with_what_to_do():
    found = parse_discovery((RECORDED / "discovery-slurm-22.05-busy.txt").read_text())
    site = parse_site(
        "x",
        "transport: {kind: ssh, host: h}\nroot: /r\n"
        "scheduler: {kind: slurm, account: other}\n"
        "partitions:\n  debug: {cpus_per_node: 64, gpus_per_node: 4}\n  gone: {}\n  scavenge: {}\n"
        "launcher: {kind: srun}\nenvironment: {}\n",
    )
    checks = named(check_slurm(site, found))
    assert checks["partition debug"].outcome == "warning"
    assert "cpus_per_node 64, Slurm says 2" in checks["partition debug"].seen
    assert "gpus_per_node 4, Slurm says 2" in checks["partition debug"].seen
    assert checks["partition gone"].outcome == "failed"
    assert "debug, scavenge" in checks["partition gone"].hint
    assert (checks["partition scavenge"].outcome, checks["partition scavenge"].seen) == (
        "warning",
        "is down now",
    )
    assert checks["account"].outcome == "failed" and "dl" in checks["account"].hint


def test_a_partition_whose_nodes_may_not_submit_is_told_before_a_training_relies_on_it():
    found = parse_discovery((RECORDED / "discovery-slurm-22.05.txt").read_text())
    closed = replace(found, alloc_nodes={"debug": "login1"})
    check = named(check_slurm(slurm(account="dl"), closed))["next attempt"]
    assert check.outcome == "warning" and "submitted from login1 only" in check.seen
    assert check.hint == (
        "set scheduler.next_attempt: [in_allocation, successor, requeue, client] in the site's file"
    )
    everywhere = replace(found, alloc_nodes={p.name: "login1" for p in found.partitions})
    site = make_site("x", everywhere, TransportSettings(kind="local"))
    assert "job" not in site.scheduler.next_attempt
    assert named(check_slurm(site, everywhere))["next attempt"].outcome == "ok"
    text = site_text(site, everywhere)
    assert parse_site("x", text).scheduler.next_attempt == site.scheduler.next_attempt
    assert "next_attempt" not in site_text(make_site("x", found, site.transport), found)


def test_slurm_that_is_away_or_off_the_path():
    away = parse_discovery((RECORDED / "discovery-slurm-22.05-no-controller.txt").read_text())
    assert "Unable to contact" in named(check_slurm(slurm(), away))["partitions"].seen
    off = parse_discovery((RECORDED / "discovery-slurm-22.05-off-path.txt").read_text())
    check = named(check_slurm(slurm(), off))["slurm"]
    assert check.outcome == "failed"
    assert check.hint == "set scheduler.path: /home/dluser/slurm/bin in the site's file"
    there = named(check_slurm(slurm(path="/home/dluser/slurm/bin"), off))["slurm"]
    assert there.outcome == "ok"
    silent = check_accounting(slurm(accounting="true"), replace(away, accounting=False))
    assert (silent.outcome, silent.seen) == ("warning", "sacct does not answer")


def test_this_pythons_packages_and_the_root_are_ok(tmp_path):
    root = tmp_path / "ro ot's"
    checks = named(check_site(local(root), LocalTransport()))
    for name in ("connection", "root", "python", "torch", "mpi4py", "h5py", "numpy", "watchdog"):
        assert checks[name].outcome in ("ok", "warning"), checks[name]
    assert checks["torch"].seen.startswith("2.")
    assert list(root.iterdir()) == []


def test_a_python_that_lacks_things_and_one_that_is_not_there(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    checks = on_nodes(local(tmp_path / "r", str(bare)))
    assert checks["torch"].outcome == "failed"
    assert "No module named 'torch'" in checks["torch"].seen
    assert checks["torch"].hint == "dlctl sites setup here"
    none = on_nodes(local(tmp_path / "r", "/no/python"))
    assert none["python"].seen == "/no/python does not start on the site"


@pytest.mark.parametrize("installed", [True, False])
def test_whether_the_nodes_gpus_can_be_measured(tmp_path, installed):
    python = make_node_python(tmp_path)
    if installed:
        (tmp_path / "packages/pynvml.py").write_text("")
        (tmp_path / "packages/nvidia_ml_py-12.9.dist-info").mkdir()
        (tmp_path / "packages/nvidia_ml_py-12.9.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: nvidia-ml-py\nVersion: 12.9\n"
        )
    site = local(tmp_path / "root", str(python))
    assert "gpus" not in on_nodes(site)
    with_gpus = site.model_copy(update={"partitions": {"p": Partition(gpus_per_node=4)}})
    check = on_nodes(with_gpus)["gpus"]
    if installed:
        assert (check.outcome, check.seen) == ("ok", "can be measured (nvidia-ml-py 12.9)")
    else:
        assert check.outcome == "warning" and "lacks nvidia-ml-py" in check.seen
        assert check.hint == f"on the site: {python} -m pip install nvidia-ml-py"


def test_failures_of_the_sites_shell_lines_and_of_modules_differ(tmp_path):
    module = local(tmp_path, more="  modules: [no-such]\n")
    assert "no-such" in on_nodes(module)["environment"].seen
    ends = local(tmp_path, more="  setup: ['exit 3']\n")
    check = on_nodes(ends)["environment"]
    assert "exit code 3" in check.seen and "environment.setup" in check.hint
    noisy = local(tmp_path, "/no/python", "  setup: ['echo dlctl-root lies']\n")
    assert on_nodes(noisy)["root"].seen.startswith(str(tmp_path))


def test_a_root_that_can_not_be_made_and_a_launcher_that_is_away(tmp_path):
    (tmp_path / "file").write_text("")
    site = local(tmp_path / "file/root", "/no/python", launcher=", executable: /no/mpirun")
    checks = on_nodes(site)
    assert checks["root"].outcome == "failed" and "set root" in checks["root"].hint
    assert checks["launcher"].outcome == "warning"


def test_a_site_that_does_not_answer(tmp_path):
    assert check_site(slurm(), NoConnection()) == [
        Check("connection", "failed", "me@far:22: connection refused", "look at the address")
    ]


def test_the_agent_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert named(check_here())["ssh agent"].outcome == "warning"
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    assert "no answer" in named(check_here())["ssh agent"].seen
    monkeypatch.setenv("PATH", str(tmp_path))
    assert named(check_here())["ssh client"].outcome == "warning"


def test_add_asks_this_machine_and_refuses_to_overwrite(tmp_path):
    here, root = TransportSettings(kind="local"), str(tmp_path / "root")
    added = add_site("mine", here, root=root, without_slurm=True)
    assert added.site.scheduler.kind == "local"
    assert added.site == load_site("mine")
    assert added.summary()["root"] == str(tmp_path / "root")
    with pytest.raises(SiteError, match="already exists"):
        add_site("mine", here)
    forced = add_site("mine", here, root="/other", without_slurm=True, force=True)
    assert load_site("mine").root == forced.site.root == "/other"
    with pytest.raises(SiteError, match="absolute"):
        add_site("two", here, root="relative", without_slurm=True)


def test_targets():
    settings = parse_target("alice@login.example.org", 2222)
    assert (settings.user, settings.host, settings.port) == ("alice", "login.example.org", 2222)
    assert parse_target("alias").user is None
    assert parse_target("local").kind == "local"
    for text in ("", "alice@", "-oProxyCommand=x"):
        with pytest.raises(SiteError, match="names no host"):
            parse_target(text)


def test_the_commands_print_and_fail_as_documented(tmp_path):
    run = CliRunner().invoke
    assert '"name": "local"' in run(app, ["list", "--json"]).stdout
    assert "kind: local" in run(app, ["show", "local"]).stdout
    assert '"transport"' in run(app, ["show", "slurm-example", "--json"]).stdout
    added = run(
        app, ["add", "mine", "local", "--without-slurm", "--root", str(tmp_path / "r"), "--json"]
    )
    assert added.exit_code == 0 and '"site": "mine"' in added.stdout
    checked = run(app, ["check", "mine", "--json"])
    assert checked.exit_code == 4 and "environment.python is not set" in checked.stdout
    assert run(app, ["remove", "mine"]).stdout.startswith("removed ")
    assert isinstance(run(app, ["show", "mine"]).exception, SiteError)
    for command in ("list", "show", "add", "remove", "check", "setup"):
        assert "Example: dlctl sites " + command in run(app, [command, "--help"]).stdout


def test_a_check_makes_no_root_that_submissions_refuse(tmp_path):
    """With the umask 002 of many sites, others could write to the root that the check made."""
    before = os.umask(0)
    try:
        site = local(tmp_path / "root", python="/no/python")
        LocalTransport().run(node_script(site))
    finally:
        os.umask(before)
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755


def test_an_environment_without_its_python_is_named(tmp_path):
    python = str(make_node_python(tmp_path))
    environments = "environments:\n  good: {{frameworks: {{jax: 1}}, python: {}}}\n{}"
    bad = "  bad: {frameworks: {tensorflow: 2}, python: /absent/python}\n"
    for more, outcome, seen in (
        (bad, "failed", "bad: there is no /absent/python"), ("", "ok", "good (jax)"),
    ):  # fmt: skip
        site = local(tmp_path / "root", python, more=environments.format(python, more))
        check = on_nodes(site)["environments"]
        assert (check.outcome, check.seen) == (outcome, seen)


def test_the_name_of_the_mpi_library_is_short(tmp_path):
    """Who built Open MPI, and when, filled the table beyond the width of a terminal."""
    python = make_node_python(tmp_path)
    end = LocalTransport().run(node_script(local(tmp_path / "root", python=str(python))))
    assert "mpi tiny MPI\n" in end.text


def test_the_scripts_pass_shellcheck(tmp_path):
    script = node_script(local(tmp_path, more="  modules: [m]\n  container: apptainer exec i\n"))
    inner = script.split("DLCTL_SCRIPT_ENDS_HERE")[1].partition("\n")[2]
    for text in (script, inner):
        check_script(text)
    assert os.environ["XDG_CONFIG_HOME"].startswith(str(tmp_path))
    assert open_transport(TransportSettings(kind="local")).name == "this machine"
