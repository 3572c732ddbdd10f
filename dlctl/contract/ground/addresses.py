"""Tell addresses of the internet from those of somebody's own network."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlctl.contract.ground.interfaces import Address

_V4_IN_V6 = ipaddress.ip_network("64:ff9b::/96")
"""NAT64: the last 32 bits are an IPv4 address, which the connection goes to."""
_UNICAST = ipaddress.ip_network("2000::/3")
_SPECIAL = [
    ipaddress.ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16",
                 "3fff::/20")
]  # fmt: skip
"""Special inside unicast, by the registries of IANA: Python's own tables differ by its version."""


def parse_address(text: str) -> Address | None:
    """Return an address, or None for a name; one that NAT64 translates is that of IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if address in _V4_IN_V6:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Return whether an address is a host's on the internet.

    Not loopback, link-local, private, shared, multicast or reserved, and none of IPv4 in IPv6.
    """
    if any(address in network for network in _SPECIAL):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address in _UNICAST
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_listed(address: Address, listed: Iterable[str]) -> bool:
    """Return whether a list of names, addresses and networks has an address."""
    for each in listed:
        with contextlib.suppress(ValueError):  # a name
            if address in ipaddress.ip_network(each, strict=False):
                return True
    return False
