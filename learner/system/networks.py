"""The addresses of this host, and which of them is on the network that the site's file names."""

from __future__ import annotations

import socket

from dlctl.contract.ground.interfaces import addresses_on, own_addresses
from learner.errors import UserFault


def address_on(network: str, site: str) -> str:
    """Return this host's address on a network.

    Args:
        network: the name of an interface, or an address range such as `10.1.0.0/16`.
        site: the name of the site whose file sets the network.

    Raises:
        UserFault: it has none.
    """
    have = own_addresses()
    fit = addresses_on(network, have)
    if fit:
        return fit[0]
    addresses = ", ".join(f"{name} {address}" for name, address in have) or "none"
    raise UserFault(
        f"{socket.gethostname()} has no address on the network {network!r}; it has {addresses}.",
        hint=f"Correct `network` in the site file of {site}, or leave it out.",
    )


def free_port() -> int:
    """Return a TCP port that is currently free on this host."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
