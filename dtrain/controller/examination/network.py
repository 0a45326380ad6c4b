"""The network: addresses, ports, firewall, proxies, and how others get at TensorFlow's servers."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import psutil

from dtrain import secrets
from dtrain.controller.examination.finding import Finding
from dtrain.controller.launchers.local import FIRST, LAST
from dtrain.host import network

#: Seconds that a program or a server may take to answer.
_PATIENCE = 5.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def look(wanted: str | None, several: bool) -> list[Finding]:
    """Return what the network of this machine is.

    Args:
        wanted: ``launcher.network``.
        several: tasks on several hosts are to reach each other.
    """
    return [_addresses(), _reachable(wanted, several), _ports(), firewall(several), _proxies()]


def server(address: str) -> Finding:
    """Return whether the server at an ``http`` address answers."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _PATIENCE):
            return Finding("tracking", f"{address} can be reached")
    except OSError as error:
        why = error.strerror or str(error)
        doubt = f"it does not answer ({why}): a run trains all the same, and sync ships it later"
        return Finding("tracking", address, doubt)


def _addresses() -> Finding:
    found = [f"{a} ({name})" for name, a in network.interfaces() if not a.is_loopback]
    return Finding("addresses", ", ".join(found) or "none but loopback")


def _reachable(wanted: str | None, several: bool) -> Finding:
    """Return at which addresses TensorFlow's servers, which listen at all, can be reached."""
    beyond = [
        f"{address} ({name})"
        for name, address in network.interfaces()
        if not address.is_loopback
        and not (network.is_of(wanted, name, address) if wanted else address.is_private)
    ]
    what = wanted or "private networks"
    now = sorted({port for port, place in listening() if not place.is_loopback})
    text = f"{', '.join(map(str, now[:12])) or 'none'}{', ...' if len(now) > 12 else ''}"
    doubt = ""
    if beyond and several:
        doubt = (
            f"TensorFlow's servers can be reached beyond {what}, at {', '.join(beyond)}: close "
            f"ports {FIRST} to {LAST} there"
        )
    return Finding("open ports now", text, doubt)


def _ports() -> Finding:
    taken = {port for port, _ in listening() if FIRST <= port <= LAST}
    free = LAST - FIRST + 1 - len(taken)
    return Finding("ports of tasks", f"{free:,} of {FIRST} to {LAST} are free")


def listening() -> Iterator[tuple[int, network.Address]]:
    """Yield the port and the address of every socket of this machine that listens on TCP."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # another system, which shows them to root alone
        return
    for each in connections:
        if each.status == psutil.CONN_LISTEN:
            yield each.laddr.port, ipaddress.ip_address(each.laddr.ip)


def firewall(several: bool) -> Finding:
    """Return what can be seen of a firewall of this machine."""
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None or os.getuid() != 0:
        why = "nft is not installed" if program is None else "that needs root"
        return Finding("firewall", f"cannot be seen ({why})")
    try:
        done = subprocess.run(
            [program, "-j", "list", "ruleset"], capture_output=True, text=True, check=False,
            timeout=_PATIENCE,
        )  # fmt: skip
        known = json.loads(done.stdout)["nftables"] if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        known = None
    if known is None:
        return Finding("firewall", "cannot be seen (nft does not list its rules)")
    closed = closing(known)
    if not closed:
        return Finding("firewall", "no rule of nftables drops what comes in")
    doubt = f"ports {FIRST} to {LAST} must be open between the hosts" if several else ""
    return Finding("firewall", f"nftables drops in {', '.join(closed)}", doubt)


def closing(rules: list[dict[str, Any]]) -> list[str]:
    """Return the chains of nftables that drop what comes in, by policy or by a rule.

    Args:
        rules: as ``nft -j list ruleset`` prints them.
    """
    chains = [rule["chain"] for rule in rules if "chain" in rule]
    incoming = {_place(chain): chain for chain in chains if chain.get("hook") == "input"}
    found = [place for place, chain in incoming.items() if chain.get("policy") == "drop"]
    for rule in (rule["rule"] for rule in rules if "rule" in rule):
        place = f"{rule.get('table')} {rule.get('chain')}"
        verdicts = {name for each in rule.get("expr", []) for name in each}
        if place in incoming and place not in found and verdicts & {"drop", "reject"}:
            found.append(place)
    return found


def _place(chain: dict[str, Any]) -> str:
    return f"{chain.get('table')} {chain.get('name')}"


def _proxies(environ: Mapping[str, str] = os.environ) -> Finding:
    named = [f"{name}={environ[name]}" for name in _PROXIES if environ.get(name)]
    text = f"{', '.join(named)}: not between tasks" if named else "none in the environment"
    return Finding("proxy", secrets.mask(re.sub(r"//[^/@]*@", "//...@", text)))
