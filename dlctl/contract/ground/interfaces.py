"""The interfaces of this host and their addresses. Linux."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
_SIOCGIFADDR = 0x8915
_NAME_BYTES, _REQUEST_BYTES = 16, 256
_ADDRESS_AT = 20
"""The offset of the address in the answer, a struct ifreq: after name, family and port."""
_REACHED_BY_OTHERS = ("00", "40")
"""The scopes of usable IPv6 addresses: global or site, neither host nor link."""


def own_addresses(if_inet6: Path = Path("/proc/net/if_inet6")) -> list[tuple[str, Address]]:
    """Return all interfaces with their addresses, IPv4 first, without loopback addresses."""
    found: list[tuple[str, Address]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_REQUEST_BYTES}s", name.encode()[: _NAME_BYTES - 1])
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                found.append((name, ipaddress.IPv4Address(answer[_ADDRESS_AT : _ADDRESS_AT + 4])))
    with contextlib.suppress(OSError):
        for line in if_inet6.read_text().splitlines():
            address, _, _, scope, _, name = line.split()
            if scope in _REACHED_BY_OTHERS:
                found.append((name, ipaddress.IPv6Address(bytes.fromhex(address))))
    return [(name, address) for name, address in found if not address.is_loopback]


def addresses_on(network: str, have: list[tuple[str, Address]]) -> list[str]:
    """Return which of a host's addresses are on a network.

    Args:
        network: The name of an interface, or an address range such as `10.1.0.0/16`.
        have: The host's interfaces with their addresses.
    """
    try:
        among = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return [str(address) for name, address in have if name == network]
    return [str(address) for _, address in have if address in among]
