"""Addresses of this machine, and the one that is in a network."""

from __future__ import annotations

import ipaddress
import socket

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


def test_addresses_of_a_link_alone_are_left_out(tmp_path, monkeypatch) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(
        "fe80000000000000000000000000ab01 02 40 20 80     eth0\n"
        "fd000000000000000000000000000002 02 40 00 80     eth0\n"
    )
    monkeypatch.setattr(network, "_IPV6", file)
    assert network._version6() == [("eth0", ipaddress.IPv6Address("fd00::2"))]
    monkeypatch.setattr(network, "_IPV6", tmp_path / "nothing")
    assert network._version6() == []
