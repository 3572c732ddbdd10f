"""A cluster that is started by hand: what it leaves in a user's home, and that tests spare it."""

from __future__ import annotations

from pathlib import Path

import by_hand
import pytest
from by_hand import HOST, SITE, ByHandError, Traces
from cluster import wipe_leftovers
from leftovers import session_clusters

from dlctl.record import Record, RecordStore
from dlctl.sites.files import load_site
from dlctl.transport import ssh_config

SSH_SETTINGS = """\
Host testbed
  HostName 127.0.0.1
  Port 2222
  User dluser
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for variable, folder in (("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".state")):
        monkeypatch.setenv(variable, str(home / folder))
    return home


@pytest.fixture
def traces(tmp_path, home):
    folder = tmp_path / "dlctl-cluster.alice"
    (folder / "home/dluser").mkdir(parents=True)
    (folder / "ssh_config").write_text(SSH_SETTINGS)
    (folder / ".dlctl-cluster").touch()
    return Traces(folder, home / ".ssh/config")


def contents(folder: Path) -> dict[Path, str | None]:
    return {p: p.read_text() if p.is_file() else None for p in folder.rglob("*")}


def test_the_site_leads_to_the_cluster(traces):
    traces.write()
    traces.check()
    site = load_site(SITE)
    assert (site.transport.host, site.scheduler.kind) == (HOST, "slurm")
    assert site.root == f"{traces.folder}/home/dluser/dlctl"
    target = ssh_config.target_of(site.transport, traces.ssh_config)
    assert target.name == "dluser@127.0.0.1:2222"


def test_what_was_written_is_removed_to_the_last_folder(traces, home):
    traces.write()
    traces.write()
    assert contents(home)
    traces.remove()
    assert contents(home) == {}


def test_the_users_own_files_stay_as_they_were(traces, home):
    traces.ssh_config.parent.mkdir()
    traces.ssh_config.write_text("Host other\n  User bob\n")
    other = traces.site_file.with_name("other.yml")
    other.parent.mkdir(parents=True)
    other.write_text("transport: {kind: local}\n")
    before = contents(home)
    traces.write()
    assert traces.ssh_config.read_text().startswith(traces.include)
    traces.remove()
    assert contents(home) == before


def test_a_site_of_the_users_own_is_neither_replaced_nor_removed(traces):
    traces.site_file.parent.mkdir(parents=True)
    traces.site_file.write_text("transport: {kind: local}\n")
    with pytest.raises(ByHandError, match="not written by `make cluster`"):
        traces.check()
    traces.remove()
    assert traces.site_file.read_text() == "transport: {kind: local}\n"


def test_only_trainings_of_the_cluster_are_forgotten(traces, tmp_path):
    store = RecordStore()
    job_dirs = {"here": f"{traces.folder}/home/dluser/dlctl/jobs/here", "there": "/data/jobs/there"}
    for name, job_dir in job_dirs.items():
        store.add(Record(name, name, SITE, str(tmp_path), job_dir, "2026-11-23"))
    traces.remove()
    assert [record.training_id for record in store.all()] == ["there"]


def test_a_test_session_spares_a_cluster_that_runs_by_hand(traces, monkeypatch):
    monkeypatch.setenv("DLCTL_TEST_CLUSTERS", str(traces.folder.parent))
    wipe_leftovers()
    assert traces.folder.exists()
    assert session_clusters("") == []
    environment = {}
    monkeypatch.setenv(by_hand.SESSION_VARIABLE, "a session")
    monkeypatch.setattr(by_hand.subprocess, "run", lambda *_, env, **__: environment.update(env))
    by_hand._cluster(traces.folder, "up")
    assert environment["CLUSTER"] == str(traces.folder)
    assert by_hand.SESSION_VARIABLE not in environment
