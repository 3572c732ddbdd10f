"""Where the processes of a search listen: on the site's network, and nowhere else.

Nameserver and brokers say it in files of the job directory. A search goes on by these files while
its nameserver is gone.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract import search as files
from dlctl.contract.ground.interfaces import addresses_on, own_addresses
from search.errors import SearchError

NAMESERVER = "nameserver"


@dataclass(frozen=True)
class Endpoint:
    """Where a process listens."""

    name: str
    """The broker's name, or `nameserver`."""
    incarnation: int
    """Grows with each start of the process."""
    address: str
    """`host:port`."""


def write_endpoint(job_dir: Path, endpoint: Endpoint) -> None:
    """Tell everybody in the search where a process listens, in place of what was told before."""
    path = job_dir / files.ENDPOINTS / f"{endpoint.name}.json"
    path.parent.parent.mkdir(exist_ok=True)
    contract.write_whole(path, contract.to_json(endpoint))


def remove_endpoint(job_dir: Path, endpoint: Endpoint) -> None:
    """Tell that nobody listens under a name any more, unless a successor does."""
    if read_endpoint(job_dir, endpoint.name) == endpoint:
        (job_dir / files.ENDPOINTS / f"{endpoint.name}.json").unlink(missing_ok=True)


def read_endpoint(job_dir: Path, name: str) -> Endpoint | None:
    """Return where a broker listens, or listened before it died; None if it has no file."""
    return contract.readable_record(Endpoint, job_dir / files.ENDPOINTS / f"{name}.json")


def read_endpoints(job_dir: Path) -> list[Endpoint]:
    """Return where the brokers listen, or listened before they died, in order of their names."""
    found = (job_dir / files.ENDPOINTS).glob("[!.]*.json")
    read = (
        contract.readable_record(Endpoint, path)
        for path in sorted(found)
        if path.stem != NAMESERVER
    )
    return [endpoint for endpoint in read if endpoint is not None]


def read_nameserver(job_dir: Path) -> Endpoint | None:
    """Return where the nameserver listens, or listened; None if it never started."""
    return read_endpoint(job_dir, NAMESERVER)


LOOPBACK = "lo"
"""The network of a search all of whose processes run on one host."""


def own_place(network: str | None) -> str:
    """Return the address of this host at which the others of the search reach it.

    Args:
        network: An interface or a range of addresses; None: what the host's name says, unless
            that is a loopback address, which no other host reaches.

    Raises:
        SearchError: The host has no address on the network.
    """
    if network == LOOPBACK:
        return "127.0.0.1"
    if network is not None:
        interfaces = own_addresses()
        if found := addresses_on(network, interfaces):
            return found[0]
        have = ", ".join(f"{name} {address}" for name, address in interfaces) or "none"
        raise SearchError(
            f"{socket.gethostname()} has no address on the network {network!r}; it has {have}",
            hint="correct `network` in the site's file, or leave it out",
        )
    try:
        answers = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        answers = []
    named = [str(answer[4][0]).partition("%")[0] for answer in answers]
    reached = [each for each in named if not ipaddress.ip_address(each).is_loopback]
    others = [str(address) for _, address in own_addresses()]
    return next(iter([*reached, *others]), "127.0.0.1")
