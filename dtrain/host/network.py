"""The network addresses of this machine, and which of them is in a given network."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from dtrain.errors import refuse

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def interfaces() -> list[tuple[str, Address]]:
    """Return the names of the interfaces, each with an address; one with several several times.

    IPv6 addresses of a link alone (``fe80::``) are left out: they mean nothing on another machine.
    """
    found = [
        (name, ipaddress.ip_address(each.address))
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == family
    ]
    return [(name, each) for name, each in found if each.version == 4 or not each.is_link_local]


def own_address(network: str) -> str:
    """Return this machine's address in a network; arguments and errors of :func:`address_in`."""
    return address_in(network, socket.gethostname(), interfaces())


def address_in(network: str, host: str, found: list[tuple[str, Address]]) -> str:
    """Return the address of a host in a network.

    Args:
        network: ``10.0.0.0/8``, or the name of an interface.
        host: its name.
        found: its addresses, each with its interface.

    Raises:
        UsageError: it has none.
    """
    try:
        wanted = ipaddress.ip_network(network, strict=False)
        inside = [address for _, address in found if address in wanted]
    except ValueError:
        inside = [address for name, address in found if name == network]
    if not inside:
        has = ", ".join(f"{address} ({name})" for name, address in found)
        refuse("launcher.network", f"{host} has no address there, but {has}", network,
               accepted="a network in CIDR notation, or the name of an interface, that every host "
               "has", typed="launcher.network=10.0.0.0/8")  # fmt: skip
    return str(inside[0])
