"""Addresses of this machine, and the one that is in a network."""

from __future__ import annotations

import ipaddress
import socket
import types

import pytest

from dtrain.errors import UsageError
from dtrain.host import network


def test_loopback_is_among_them() -> None:
    found = network.interfaces()
    assert ("lo", ipaddress.IPv4Address("127.0.0.1")) in found
    assert {name for name, _ in found} <= {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize("wanted", ["127.0.0.0/8", "lo", "127.0.0.1/32", "127.3.2.1/8"])
def test_the_address_in_a_network(wanted: str) -> None:
    assert network.own_address(wanted) == "127.0.0.1"


@pytest.mark.parametrize("wanted", ["203.0.113.0/24", "nothing0", "2001:db8::/32"])
def test_a_network_that_this_machine_is_not_in(wanted: str) -> None:
    with pytest.raises(UsageError, match=r"has no address there, but .*127\.0\.0\.1 \(lo\)"):
        network.own_address(wanted)


def test_addresses_of_a_link_alone_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(text: str) -> types.SimpleNamespace:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        return types.SimpleNamespace(family=family, address=text)

    there = {"eth0": [address("fe80::ab01%eth0"), address("fd00::2"), address("10.0.0.1")]}
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: there)
    found = [("eth0", ipaddress.ip_address(each)) for each in ("10.0.0.1", "fd00::2")]
    assert network.interfaces() == found
