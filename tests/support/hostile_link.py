"""A cluster's login node behind a proxy: counts connections, limits them, cuts them."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faulty_proxy import FaultyProxy, faulty_proxy


@contextlib.contextmanager
def hostile_link(dlctl: Any, site: Any, folder: Path) -> Iterator[FaultyProxy]:
    """Lead this test's dlctl to the login node by a proxy, which is yielded."""
    cluster = site.cluster
    runtime = tempfile.mkdtemp(prefix="dlctl-")  # pytest's own is too long for a socket
    with faulty_proxy(cluster.port) as proxy:
        known = folder / "known_hosts_of_the_link"
        known.write_text(cluster.known_hosts.read_text().replace(
            f"]:{cluster.port} ", f"]:{proxy.port} "))  # fmt: skip
        config = folder / "config_of_the_link"
        text = cluster.ssh_config.read_text().replace(str(cluster.known_hosts), str(known))
        config.write_text(re.sub(r"(?m)^( *Port) .*", rf"\1 {proxy.port}", text))
        dlctl.env |= {"DLCTL_SSH_CONFIG": str(config), "XDG_RUNTIME_DIR": runtime}
        try:
            yield proxy
        finally:
            dlctl("sites", "disconnect", site.name)
            shutil.rmtree(runtime, ignore_errors=True)
