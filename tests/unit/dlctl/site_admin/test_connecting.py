"""Sites whose connections do not stay say so."""

import pytest

from dlctl.errors import SiteError
from dlctl.site_admin.actions import connect, disconnect
from dlctl.sites.files import save_site


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
