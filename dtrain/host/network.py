"""The network addresses of this machine, and which of them is in a given network."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
import sys
from pathlib import Path

from dtrain.errors import UsageError

#: Of Linux: IPv6 addresses, and the ioctl(2) that lists those of IPv4 (netdevice(7)), with the
#: bytes of one of its entries and how many are asked for.
_IPV6 = Path("/proc/net/if_inet6")
_SIOCGIFCONF, _ENTRY, _MOST = 0x8912, 40, 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def interfaces() -> list[tuple[str, Address]]:
    """Return the names of the interfaces, each with an address; one with several several times.

    IPv6 addresses of a link alone (``fe80::``) are left out: they mean nothing on another machine.
    Empty on other systems than Linux.
    """
    if sys.platform != "linux":
        return []
    return [*_version4(), *_version6()]


def own_address(network: str) -> str:
    """Return this machine's address in a network.

    Args:
        network: ``10.0.0.0/8``, or the name of an interface.

    Raises:
        UsageError: it has none.
    """
    found = interfaces()
    inside = [str(address) for name, address in found if is_of(network, name, address)]
    if not inside:
        has = ", ".join(f"{address} ({name})" for name, address in found)
        raise UsageError(
            "launcher.network", network, f"{socket.gethostname()} has no address there, but {has}",
            "a network in CIDR notation, or the name of an interface, that every host has",
            "launcher.network=10.0.0.0/8",
        )  # fmt: skip
    return inside[0]


def is_of(network: str, name: str, address: Address) -> bool:
    """Say whether an address is in a network, or of the interface of that name."""
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return name == network


def _version4() -> list[tuple[str, Address]]:
    entries = array.array("B", bytes(_ENTRY * _MOST))
    place, length = entries.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("iL", length, place))
    data = entries.tobytes()[: struct.unpack("iL", answer)[0]]
    found: list[tuple[str, Address]] = []
    for begin in range(0, len(data), _ENTRY):
        name = data[begin : begin + 16].partition(b"\0")[0].decode(errors="replace")
        found.append((name, ipaddress.IPv4Address(data[begin + 20 : begin + 24])))
    return found


def _version6() -> list[tuple[str, Address]]:
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[str, Address]] = []
    for line in lines:
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if not address.is_link_local:
            found.append((name, address))
    return found
