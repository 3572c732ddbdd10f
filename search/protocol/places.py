"""The address at which a process of a search listens: on the site's network, and nowhere else."""

from __future__ import annotations

import ipaddress
import socket

from dlctl.contract.ground.interfaces import addresses_on, own_addresses
from search.errors import SearchError

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
