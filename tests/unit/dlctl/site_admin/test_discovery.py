"""The discovery of a site: recorded answers, and the script itself under several shells."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_site import ALL, answers, recorded, text_of
from repository import RECORDED
from shell_check import check_script

from dlctl.errors import SiteError
from dlctl.scheduler.offer import Answer, Answers
from dlctl.scheduler.slurm_answers import (
    parse_gpus,
    parse_max_nodes,
    parse_mpi_types,
    parse_sinfo,
    parse_time_limit,
)
from dlctl.site_admin.discovery import QUESTIONS, SCRIPTS, Discovered, discover, read_answers
from dlctl.site_admin.draft import make_site, site_text
from dlctl.site_admin.setup import site_template
from dlctl.sites.files import TransportSettings, parse_site
from dlctl.transport.base import Completed
from dlctl.transport.local import LocalTransport

SSH = TransportSettings(kind="ssh", host="login")


def with_answers(**texts: str) -> Discovered:
    changed = {name: Answer(text, 0) for name, text in texts.items()}
    return read_answers(Answers(answers(text_of("slurm-22.05")) | changed), ALL)


def with_sinfo(name: str) -> Discovered:
    return with_answers(sinfo=(RECORDED / f"sinfo-{name}.txt").read_text())


def test_a_real_cluster_is_understood():
    found = recorded("slurm-22.05")
    offer = found.offer
    assert (found.user, found.home, found.kind) == ("dluser", "/home/dluser", "slurm")
    assert (offer.title, offer.path) == ("Slurm 22.05.8 in /usr/bin", None)
    assert [p.name for p in found.offer.partitions] == ["debug", "scavenge"]
    debug = found.offer.partitions[0]
    assert debug.default and debug.max_time_s is None and debug.max_nodes is None
    assert (debug.groups[0].cpus, debug.groups[0].gpus) == (2, 2)
    assert debug.groups[0].memory_bytes == 4000 * 1024**2
    assert (
        found.offer.default_account == "dl"
        and found.offer.accounts == ["dl"]
        and found.offer.accounting
    )
    assert found.offer.mpi_types == ["pmix", "none", "cray_shasta", "pmi2", "pmix_v4"]
    assert found.offer.mpi_default == "pmix"
    assert found.pythons == ["3.11.2 (/usr/bin/python3)"]
    assert found.offer.problems == [] and found.free_bytes and found.free_bytes > 1024**3


def test_a_busy_cluster_has_the_same_limits_and_says_what_is_down():
    found = recorded("slurm-22.05-busy")
    site = make_site("x", found, SSH)
    assert list(site.partitions) == ["debug"]
    assert site.partitions["debug"].nodes == 4
    text = site_text(site, found)
    assert "# debug: 1 of its nodes are down or drained now" in text
    assert "# scavenge is down: left out" in text
    assert found.offer.partitions[1].max_nodes == 2


def test_a_controller_that_is_away_is_an_error_and_no_empty_site():
    found = recorded("slurm-22.05-no-controller")
    with pytest.raises(SiteError, match="Unable to contact slurm controller") as caught:
        make_site("x", found, SSH)
    assert "controller" in caught.value.hint
    assert found.offer.default_account == "dl"


def test_unlike_nodes_give_the_limits_of_the_largest_with_a_comment():
    found = with_sinfo("unlike-nodes")
    site = make_site("x", found, SSH)
    batch, gpu = site.partitions["batch"], site.partitions["gpu"]
    assert (batch.nodes, batch.cpus_per_node, batch.gpus_per_node) == (100, 128, 4)
    assert batch.memory_bytes_per_node == 1031000 * 1024**2
    assert (batch.max_time_s, batch.max_nodes, batch.default) == (172800, 32, True)
    assert (gpu.gpus_per_node, gpu.gpu_type, gpu.nodes) == (4, "a100", 8)
    assert site.partitions["mixed-gpu"].gpu_type is None
    assert site.partitions["mixed-gpu"].gpus_per_node == 8
    assert site.partitions["two-kinds"].gpus_per_node == 3
    assert site.partitions["two-kinds"].max_time_s == 1800
    assert site.partitions["two-kinds"].max_nodes == 1
    assert "batch has unlike nodes" in site_text(site, found)


def test_states_and_words_of_other_versions():
    found = with_sinfo("states")
    main = found.offer.partitions[0]
    usable = {group.state: group.usable for group in main.groups}
    assert usable == {
        "idle": True, "mixed": True, "down": False, "draining": False, "reserved": True,
        "maint": False,
    }  # fmt: skip
    assert [p.available for p in found.offer.partitions] == ["up", "down", "inact", "drain", "up"]
    assert found.offer.partitions[1].groups[0].memory_bytes is None
    site = make_site("x", found, SSH)
    assert list(site.partitions) == ["main", "empty"]
    assert site.partitions["empty"].nodes == 0


def test_the_words_of_slurms_answers():
    for text, time_s in {
        "infinite": None, "UNLIMITED": None, "n/a": None, "": None, "0": None, "30": 1800,
        "30:00": 1800, "1:00:00": 3600, "2-00:00:00": 172800, "1-12": 129600, "1-12:30": 131400,
        "7-00:00:00": 604800, "00:10": 10,
    }.items():  # fmt: skip
        assert parse_time_limit(text) == time_s, text
    for gres, gpus in {
        "(null)": (0, None), "": (0, None), "gpu:2": (2, None), "gpu": (1, None),
        "gpu:a100:4(S:0-1)": (4, "a100"), "gpu:a100:4(S:0,1)": (4, "a100"),
        "craynetwork:4,gpu:mi250x:8": (8, "mi250x"), "gpu:a100": (1, "a100"),
        "gpu:a100_1g.5gb:7(S:0)": (7, "a100_1g.5gb"), "shard:8,mps:100": (0, None),
        "gpu:a:1,gpu:b:2": (3, None), "gpu:2(IDX:0-1)": (2, None),
    }.items():  # fmt: skip
        assert parse_gpus(gres) == gpus, gres
    for text, nodes in {
        "1-4": 4, "1-infinite": None, "3": 3, "infinite": None, "0": None, "¹": None,
    }.items():  # fmt: skip
        assert parse_max_nodes(text) == nodes, text
    old = (RECORDED / "mpi-list-20.02-stderr.txt").read_text()
    kinds = ["pmix_v3", "openmpi", "pmi2", "none", "pmix"]
    assert parse_mpi_types(Answer("", 0, old)) == kinds
    assert parse_mpi_types(Answer()) == []


@given(st.text())
def test_no_answer_crashes_the_parsers(text):
    parse_sinfo(text)
    parse_gpus(text)
    parse_time_limit(text)
    parse_max_nodes(text)
    parse_mpi_types(Answer(text, 0, text))
    told = dict.fromkeys(answers(text_of("slurm-22.05")), Answer(text, 0, text))
    for account in (text, "home=/h"):
        try:
            read_answers(Answers(told | {"account": Answer(account, 0)}), ALL)
        except SiteError as error:
            assert error.hint


@pytest.mark.parametrize("name", [
    "slurm-22.05", "slurm-22.05-busy", "slurm-22.05-off-path", "unlike-nodes", "states",
])  # fmt: skip
def test_the_file_says_what_the_site_is(name):
    found = recorded(name) if name.startswith("slurm") else with_sinfo(name)
    site = make_site("x", found, SSH, python="/p y/python")
    assert parse_site("x", site_text(site, found)) == site


def test_a_hostile_answer_can_not_leave_its_comment():
    found = with_answers(
        account="home=/h\nhost=a\x1b[2J\u2028root: /evil", assoc="dl|\nx\x0broot: /evil|normal|"
    )
    assert "root: /evil" in found.host
    site = make_site("x", found, SSH)
    assert parse_site("x", site_text(site, found)) == site


def test_an_answer_that_was_cut_off_is_refused():
    with pytest.raises(SiteError, match="cut off"):
        read_answers(Answers(sinfo=Answer("p*|up|1:00|1-2|3|4|5|gpu:2|idle", 0)), ALL)


def test_without_slurm_the_site_runs_jobs_itself():
    found = with_answers(slurm="")
    chosen = make_site("x", recorded("slurm-22.05-off-path"), SSH, alone=True)
    for site in (make_site("x", found, SSH), chosen):
        assert (site.scheduler.kind, site.launcher.kind) == ("local", "mpirun")
        assert (site.scheduler.path, site.scheduler.account, site.partitions) == (None, None, {})
    assert make_site("x", recorded("slurm-22.05-off-path"), SSH).scheduler.path == (
        "/home/dluser/slurm/bin"
    )
    assert parse_site("x", site_text(chosen, recorded("slurm-22.05-off-path"))) == chosen


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_the_script_answers_here(shell, tmp_path):
    """With a Slurm of executables in a folder that only the login shell knows."""
    fake = tmp_path / "sl urm"
    fake.mkdir()
    (tmp_path / ".profile").write_text(f'echo Welcome; PATH="{fake}:$PATH"\n')
    (tmp_path / ".bash_profile").write_text(f'echo Welcome; PATH="{fake}:$PATH"\n')
    for name, text in {
        "sinfo": "case $1 in --version) echo slurm 24.11.1 ;;\n"
        '*) echo "p*|up|1:00|1-2|3|4|5000|gpu:2|idle" ;; esac',
        "scontrol": 'case $* in *partition) echo "PartitionName=p AllowGroups=ALL'
        ' AllocNodes=login[1-2] Default=YES" ;;\n'
        '*) echo "MpiDefault = none"; echo "Other = x" ;; esac',
        "sacctmgr": "echo hello >&2; exit 1",
        "sacct": "exit 1",
        "srun": "echo srun: pmi2 >&2",
    }.items():
        (fake / name).write_text(f"#!/bin/sh\n{text}\n")
        (fake / name).chmod(0o755)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sed", "tail", "head", "tr", "awk", "id", "uname", "df", "grep", "timeout", "env"):
        target = subprocess.run(["which", name], capture_output=True, text=True).stdout.strip()
        (tools / name).symlink_to(target)

    class Shell(LocalTransport):
        """Runs scripts in a shell and an environment of the test."""

        def run(self, script, **how):
            env = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "PATH": str(tools),
                   "SINFO_FORMAT": "%x"}  # fmt: skip
            script = script.replace(" /usr/bin ", " ").replace(":/usr/bin:", ":")
            end = subprocess.run([shutil.which(shell)], input=script.encode(), env=env,
                                 capture_output=True, timeout=120)  # fmt: skip
            return Completed(end.returncode, end.stdout, end.stderr)

    found = discover(Shell())
    assert (found.offer.title, found.offer.path) == (f"Slurm 24.11.1 in {fake}", str(fake))
    assert found.offer.partitions[0].groups[0].cpus == 4
    assert found.offer.mpi_types == ["pmi2"] and found.offer.mpi_default == "none"
    assert not found.offer.accounting and found.offer.default_account is None
    assert "sacctmgr gave no answer: hello" in found.offer.problems
    assert found.home == str(tmp_path)
    site = make_site("x", found, SSH)
    assert site.launcher.kind == "mpirun"
    # No job of its only partition may submit the next one.
    assert site.scheduler.next_attempt == ["in_allocation", "requeue", "client"]


@pytest.mark.parametrize(("scavenge", "may_submit"), [
    ("login[1-2]", False), ("ALL", True), ("(null)", True),
])  # fmt: skip
def test_jobs_submit_the_next_one_where_one_partition_allows_it(scavenge, may_submit):
    found = with_answers(alloc_nodes=f"debug|login1\nscavenge|{scavenge}")
    starters = make_site("x", found, SSH).scheduler.next_attempt
    assert ("job" in starters) == may_submit


def test_the_script_passes_shellcheck():
    before, commands = ALL[0].questions()
    check_script("\n".join([*map(site_template, SCRIPTS), before, *commands.values(),
                            *QUESTIONS.values()]))  # fmt: skip
