"""`dlctl sites nodes`: the nodes that a site avoids."""

import json
import time

import pytest

from dlctl.errors import SiteError
from dlctl.site_admin.actions import connect, disconnect
from dlctl.sites.files import save_site


@pytest.fixture
def nodes(local_site):
    """The site's records: one that is in force, one that has expired, and one from the future."""
    folder, now = local_site.root / "nodes", time.time()
    folder.mkdir(parents=True)
    for host, until in (("n7", now + 3600 + 20), ("n8", now - 5)):
        record = {
            "host": host, "kind": "gpu_error", "reason": "The node n7 has a dead GPU.",
            "training_id": "digits-1", "attempt": 1, "seen_at": now - 7200, "expires_at": until,
        }  # fmt: skip
        (folder / f"{host}.json").write_text(json.dumps(record))
    (folder / "n9.json").write_text('{"schema_version": 99}')
    return folder


def test_nodes_are_listed_until_they_expire_or_are_forgotten(dlctl, nodes):
    shown = dlctl("sites", "nodes", "local", ok=True).stdout
    assert "n7" in shown and "n8" not in shown and "n9" not in shown
    for word in ("gpu_error", "digits-1", "2 h ago", "60 min", "The node n7 has a dead GPU."):
        assert word in shown, shown
    found = dlctl("sites", "nodes", "local", "--json", ok=True).json
    assert [node["host"] for node in found] == ["n7"]
    done = dlctl("sites", "nodes", "local", "--forget", "n6")
    assert done.exit_code == 4
    assert "does not avoid the node 'n6'" in done.stderr and "it avoids: n7" in done.stderr
    done = dlctl("sites", "nodes", "local", "--forget", "n7", ok=True)
    assert "forgot n7" in done.stdout
    assert not (nodes / "n7.json").exists()
    assert dlctl("sites", "nodes", "local", "--json", ok=True).json == []


@pytest.mark.parametrize("do", [connect, disconnect])
def test_a_site_without_a_lasting_connection_says_why(do, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(SiteError, match="local is this machine"):
        do("local")
    save_site("far", "transport: {kind: ssh, host: far}\nroot: /r\n"
              "scheduler: {kind: slurm}\nlauncher: {kind: srun}\nenvironment: {}\n")  # fmt: skip
    with pytest.raises(SiteError, match="no connection stays open there") as error:
        do("far")
    assert "kind: openssh" in error.value.hint
