"""Checks of sites and of this machine: each outcome, its words and its advice."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from login_side import fill
from recorded_site import recorded
from shell_check import check_script
from wheels import make_node_python

from dlctl.doctor import at_site
from dlctl.doctor.at_site import check_at_site, check_environment, check_scheduler, node_script
from dlctl.doctor.chain import Chain, Link
from dlctl.doctor.examine import examine
from dlctl.doctor.local_checks import check_machine
from dlctl.errors import ConnectError, SiteError
from dlctl.lifecycle.session import open_session
from dlctl.site_admin.actions import add_site, parse_target
from dlctl.site_admin.draft import make_site, site_text
from dlctl.site_admin.setup import site_template
from dlctl.sites.files import Partition, TransportSettings, load_site, parse_site
from dlctl.transport.local import LocalTransport


class NoConnection:
    name = "me@far:22"
    closed = False

    def start(self, script, **how):
        raise ConnectError("me@far:22: connection refused", hint="look at the address")

    def is_open(self):
        return True

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def slurm(**scheduler):
    keys = "".join(f", {key}: {value}" for key, value in scheduler.items())
    return parse_site(
        "x",
        f"transport: {{kind: ssh, host: h}}\nroot: /r\nscheduler: {{kind: slurm{keys}}}\n"
        "partitions: {debug: {nodes: 4, cpus_per_node: 2, memory_per_node: 4000MiB}}\n"
        "launcher: {kind: srun, mpi: pmix}\nenvironment: {python: /p}\n",
    )


def local(root, python=sys.executable, more="", launcher=""):
    return parse_site(
        "here",
        f"transport: {{kind: local}}\nroot: {str(root)!r}\nscheduler: {{kind: local}}\n"
        f"launcher: {{kind: mpirun{launcher}}}\nenvironment:\n  python: {python!r}\n{more}",
    )


def links(check, *about):
    check(chain := Chain(), *about)
    return {link.name: link for link in chain.links}


def on_nodes(site):
    """Return what is found where jobs run; what the site says before is recorded."""
    return links(check_environment, site, recorded().offer, LocalTransport())


ODD = parse_site(
    "x",
    "transport: {kind: ssh, host: h}\nroot: /r\nscheduler: {kind: slurm, account: other}\n"
    "partitions:\n  debug: {cpus_per_node: 64, gpus_per_node: 4}\n  gone: {}\n  scavenge: {}\n"
    "launcher: {kind: srun}\nenvironment: {}\n",
)
FINE, BUSY, AWAY, OFF = (recorded(*name) for name in (
    [], ["slurm-22.05-busy"], ["slurm-22.05-no-controller"], ["slurm-22.05-off-path"]))  # fmt: skip
SILENT = replace(AWAY, offer=replace(AWAY.offer, accounting=False))
FOLDER = "/home/dluser/slurm/bin"


@pytest.mark.parametrize(("site", "cluster", "link", "state", "evidence", "fix"), [
    (slurm(account="dl"), FINE, "slurm", "ok", "Slurm 22.05.8 in /usr/bin", ""),
    (slurm(account="dl"), FINE, "partition debug", "ok", "4 of 4 nodes usable", ""),
    (slurm(account="dl"), FINE, "partitions", "ok", "the file does not name scavenge", ""),
    (ODD, BUSY, "partition debug", "warn", "cpus_per_node 64, the site has 2", ""),
    (ODD, BUSY, "partition debug", "warn", "gpus_per_node 4, the site has 2", ""),
    (ODD, BUSY, "partition gone", "broken", "", "debug, scavenge"),
    (ODD, BUSY, "partition scavenge", "warn", "is down now", ""),
    (ODD, BUSY, "account", "broken", "", "dl"),
    (slurm(), AWAY, "partitions", "broken", "Unable to contact", ""),
    (slurm(), AWAY, "account", "skipped", "not tried: partitions is broken", ""),
    (slurm(), OFF, "slurm", "broken", "", f"set scheduler.path: {FOLDER} in the site's file"),
    (slurm(path=FOLDER), OFF, "slurm", "ok", "", ""),
    (slurm(accounting="true"), SILENT, "accounting", "warn", "does not answer", ""),
])  # fmt: skip
def test_a_cluster_is_held_against_the_sites_file(site, cluster, link, state, evidence, fix):
    found = links(check_scheduler, site, cluster.offer)
    assert found[link].state == state, found[link]
    assert evidence in found[link].evidence and fix in found[link].fix
    if cluster is FINE:
        assert {each.state for each in found.values()} == {"ok"}


def test_a_site_without_slurm_has_one_broken_link():
    none = links(check_scheduler, slurm(), None)
    assert [name for name, link in none.items() if link.state == "broken"] == ["slurm"]
    assert "scheduler.path" in none["slurm"].fix


def test_a_partition_whose_nodes_may_not_submit_is_told_before_a_training_relies_on_it():
    def submitting_from(hosts):
        return replace(found, offer=replace(found.offer, submit_hosts=hosts))

    found = recorded()
    closed = submitting_from({"debug": "login1"})
    check = links(check_scheduler, slurm(account="dl"), closed.offer)["next attempt"]
    assert check.state == "warn" and "submitted from login1 only" in check.evidence
    assert check.fix == (
        "set scheduler.next_attempt: [in_allocation, requeue, client] in the site's file"
    )
    everywhere = submitting_from({p.name: "login1" for p in found.offer.partitions})
    site = make_site("x", everywhere, TransportSettings(kind="local"))
    assert "job" not in site.scheduler.next_attempt
    assert links(check_scheduler, site, everywhere.offer)["next attempt"].state == "ok"
    text = site_text(site, everywhere)
    assert parse_site("x", text).scheduler.next_attempt == site.scheduler.next_attempt
    assert "next_attempt" not in site_text(make_site("x", found, site.transport), found)


def test_slurm_is_found_in_the_folder_that_only_the_file_names(tmp_path):
    folder = tmp_path / "sl urm"
    folder.mkdir()
    (folder / "sinfo").write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo slurm 24.11.1 || "
        "echo 'p*|up|1:00|1-2|3|4|5|gpu:2|idle'\n"
    )
    (folder / "sinfo").chmod(0o755)
    site = slurm(path=str(folder)).model_copy(update={"transport": TransportSettings(kind="local")})
    found = links(
        check_at_site, open_session(site.model_copy(update={"root": str(tmp_path / "r")}))
    )
    assert (found["slurm"].state, found["slurm"].evidence) == ("ok", f"Slurm 24.11.1 in {folder}")


def test_this_pythons_packages_and_the_root_are_ok(tmp_path):
    root = tmp_path / "ro ot's"
    checks = links(check_at_site, open_session(local(root)))
    for name in ("root", "python", "torch", "mpi4py", "h5py", "numpy", "watchdog"):
        assert checks[name].state in ("ok", "warn"), checks[name]
    assert checks["torch"].evidence.startswith("2.")
    assert "quota" in checks["room"].evidence
    assert list(root.iterdir()) == []


def test_the_set_up_of_each_environment_is_tried(tmp_path):
    more = "  setup: [cd /]\nenvironments:\n" + "".join(
        f"  {name}: {{frameworks: {{{name}: 1}}, python: {sys.executable}, setup: [{line}]}}\n"
        for name, line in (("fine", "'true'"), ("odd", "source /nowhere/activate"))
    )
    found = on_nodes(local(tmp_path / "r", "/usr/bin/python3", more))
    assert found["python"].state == "ok" and found["environments"].state == "broken"
    assert "environments.odd.setup failed" in found["environments"].evidence
    assert "`source /nowhere/activate` ended with exit code 1" in found["environments"].evidence
    found = on_nodes(local(tmp_path / "r", "/usr/bin/python3", "  setup: ['false']\n"))
    assert (found["environment"].state, found["environment"].evidence) == (
        "broken", f"environment.setup failed on {os.uname().nodename}: `false` ended with exit "
        "code 1",
    )  # fmt: skip


def test_a_container_must_see_the_root_and_leave_a_python_outside(tmp_path, monkeypatch):
    def found(container):
        site = local(tmp_path / "r", "/usr/bin/python3", f"  container: {container}\n")
        return on_nodes(site)["container"]

    assert (found("env").state, found("env").evidence.split(":")[0]) == ("ok", "env")
    blind = found("""[sh, -c, '[ "$0" = true ]']""")
    assert blind.state == "broken" and f"add --bind {tmp_path}/r to" in blind.fix
    # Apptainer's starter prints its last word in colour, and the end of the colour on its own line.
    words = tmp_path / "apptainer"
    words.write_text(
        "#!/bin/sh\nprintf '\\033[91mERROR  : no such image\\n\\033[0m' >&2; exit 255\n"
    )
    words.chmod(0o755)
    assert found(words).evidence.endswith("apptainer: ERROR : no such image")
    assert found(words).fix.startswith("correct environment.container")
    none = {"host_python.sh": "host_python() { return 1; }"}
    monkeypatch.setattr(at_site, "site_template", lambda n: none.get(n) or site_template(n))
    alone = found("env")
    assert alone.state == "broken" and "no Python 3.8 or newer outside of it" in alone.evidence


def test_few_inodes_and_the_quota_are_told(tmp_path, monkeypatch):
    tools = {"df": 'case $1 in -Pi) echo "h"; echo "fs 1000000 999000 1000 99% /" ;; esac',
             "quota": "printf 'Disk quotas\\n Filesystem blocks\\n /home  5 6\\n'"}  # fmt: skip
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    room = on_nodes(local(tmp_path / "r", "/no/python"))["room"]
    assert (room.state, room.evidence) == ("warn", "room for 1,000 more files; quota: /home 5 6")
    assert room.fix == "remove files there: dlctl du here"


def test_a_root_without_inodes_is_told_with_the_command_that_shows_it(small_disk):
    """It was `set root to a folder that you may write to`."""
    fill(small := small_disk("nr_inodes=40"), 0)
    link = on_nodes(local(small / "r", "/no/python"))["root"]
    assert (link.state, "No space left" in link.evidence) == ("broken", True)
    command = link.fix.removeprefix("make room there: ")
    shown = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    assert "100%" in shown.stdout


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
        assert (check.state, check.evidence) == ("ok", "can be measured (nvidia-ml-py 12.9)")
    else:
        assert check.state == "warn" and "lacks nvidia-ml-py" in check.evidence
        assert check.fix.startswith(f"on the site: {python} -m pip install nvidia-ml-py; without")


def test_a_site_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("dlctl.lifecycle.session.open_transport", lambda *_: NoConnection())
    monkeypatch.setattr("dlctl.doctor.examine.load_site", lambda _: slurm())
    monkeypatch.setattr("dlctl.doctor.examine.check_machine", lambda *_: None)
    found = {link.name: link for link in examine("x").links}
    assert found["log-in"] == Link(
        "log-in", "broken", "me@far:22: connection refused", "look at the address", "x"
    )
    assert [n for n, link in found.items() if link.state not in ("ok", "skipped")] == ["log-in"]


def test_the_agent_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert links(check_machine)["ssh agent"].state == "warn"
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    assert "no answer" in links(check_machine)["ssh agent"].evidence
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links(check_machine)["ssh client"].state == "warn"


def test_the_commands_print_and_fail_as_documented(run, tmp_path):
    assert '"name": "local"' in run("sites", "list", "--json").stdout
    assert "kind: local" in run("sites", "show", "local").stdout
    root = str(tmp_path / "r")
    added = run("sites", "add", "mine", "local", "--without-slurm", "--root", root, "--json")
    assert added.exit_code == 0 and '"site": "mine"' in added.stdout
    checked = run("doctor", "mine", "--json")
    assert checked.exit_code == 4 and "environment.python is not set" in checked.stdout
    assert run("sites", "remove", "mine").stdout.startswith("removed ")
    assert isinstance(run("sites", "show", "mine").exception, SiteError)


def test_an_environment_without_its_python_is_named(tmp_path):
    python = str(make_node_python(tmp_path))
    environments = "environments:\n  good: {{frameworks: {{jax: 1}}, python: {}}}\n{}"
    bad = "  bad: {frameworks: {tensorflow: 2}, python: /absent/python}\n"
    for more, state, evidence in (
        (bad, "broken", "bad: there is no /absent/python"), ("", "ok", "good (jax)"),
    ):  # fmt: skip
        site = local(tmp_path / "root", python, more=environments.format(python, more))
        check = on_nodes(site)["environments"]
        assert (check.state, check.evidence) == (state, evidence)


def test_each_fault_of_a_site_is_named_with_what_to_do(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    (tmp_path / "file").write_text("")
    root, none = tmp_path / "r", "/no/python"
    for site, link, state, evidence, fix in (
        (local(root, str(bare)), "torch", "broken", "No module named 'torch'",
         "dlctl sites setup here"),
        (local(root, none), "python", "broken", "/no/python does not start on the site", ""),
        (local(root, more="  modules: [no-such]\n"), "environment", "broken", "no-such", ""),
        (local(root, more="  setup: ['exit 3']\n"), "environment", "broken", "exit code 3",
         "environment.setup"),
        (local(root, none, "  setup: ['echo dlctl-root lies']\n"), "root", "ok", str(root), ""),
        (local(tmp_path / "file/root", none), "root", "broken", "", "set root"),
        (local(root, none, launcher=", executable: /no/mpirun"), "launcher", "warn", "", ""),
    ):  # fmt: skip
        check = on_nodes(site)[link]
        assert check.state == state and evidence in check.evidence and fix in check.fix, check


def test_the_script_of_the_nodes_makes_a_root_that_submissions_take(tmp_path):
    """With the umask 002 of many sites, others could write to the root that the check made; who
    built Open MPI, and when, filled the table beyond the width of a terminal."""
    before = os.umask(0)
    try:
        site = local(tmp_path / "root", python=str(make_node_python(tmp_path)))
        end = LocalTransport().run(node_script(site))
    finally:
        os.umask(before)
    assert "mpi tiny MPI\n" in end.text
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755
    script = node_script(local(tmp_path, more="  modules: [m]\n  container: apptainer exec i\n"))
    check_script(script)
    check_script(script.split("DLCTL_SCRIPT_ENDS_HERE")[1].partition("\n")[2])


def test_add_asks_this_machine_and_refuses_to_overwrite(tmp_path):
    here, root = TransportSettings(kind="local"), str(tmp_path / "root")
    added = add_site("mine", here, root=root, alone=True)
    found = load_site("mine")
    assert (found.scheduler.kind, found.root, added.root, added.scheduler) == (
        "local", root, root, "not used",
    )  # fmt: skip
    forced = add_site("mine", here, root="/other", alone=True, force=True)
    assert load_site("mine").root == forced.root == "/other"
    for wrong, said in (
        (lambda: add_site("mine", here), "already exists"),
        (lambda: add_site("two", here, root="relative", alone=True), "absolute"),
        *((lambda text=text: parse_target(text), "names no host")
          for text in ("", "alice@", "-oProxyCommand=x")),
    ):  # fmt: skip
        with pytest.raises(SiteError, match=said):
            wrong()
    settings = parse_target("alice@login.example.org", 2222)
    assert (settings.user, settings.host, settings.port) == ("alice", "login.example.org", 2222)
    assert (parse_target("alias").user, parse_target("local").kind) == (None, "local")
