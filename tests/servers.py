"""Hosts with an OpenSSH server each, in network namespaces of their own; needs root and Linux."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dtrain.run.folder import RunDir
from tests import network
from tests.network import Host, Network

SSHD = "/usr/sbin/sshd"
ROOT = Path(__file__).parent.parent


@functools.cache
def lacking() -> str | None:
    """Return why there can be no such hosts here, None if there can."""
    if shutil.which("ssh") is None or not Path(SSHD).is_file():
        return "openssh-server is not installed"
    return network.lacking()


class Server:
    """An OpenSSH server on a host, of which the test knows the key.

    Args:
        host: where it is.
        folder: for its files.
        keys: of users that it lets in, a file.
        options: lines of its configuration.
    """

    def __init__(self, host: Host, folder: Path, keys: Path, *options: str):
        self.host, self.folder, self._keys = host, folder / f"sshd-{host.name}", keys
        self.folder.mkdir()
        self.key = made_key(self.folder / "host_key")
        Path("/run/sshd").mkdir(exist_ok=True)
        self.start(*options)

    def start(
        self, *options: str, hidden: Path | None = None, instead: tuple[Path, Path] | None = None
    ) -> None:
        """Start it.

        Args:
            options: lines of its configuration.
            hidden: a folder that is empty for whoever logs in.
            instead: a folder, and the place where whoever logs in sees it.
        """
        config = self.folder / "sshd_config"
        lines = [
            *options, "Port 22", f"HostKey {self.folder / 'host_key'}", "PidFile none",
            f"AuthorizedKeysFile {self._keys}", "StrictModes no", "UsePAM no",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "LogLevel VERBOSE",
            "MaxStartups 1000", "PermitRootLogin yes",
        ]  # fmt: skip
        config.write_text("\n".join(lines))
        mount = "true"
        if hidden is not None:
            mount = f"mount -t tmpfs none '{hidden}'"
        elif instead is not None:
            instead[1].mkdir(exist_ok=True)
            mount = f"mount --bind '{instead[0]}' '{instead[1]}'"
        hide = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.host.space, *hide, SSHD, "-D", "-f", str(config), "-E",
             str(self.folder / "log")],
        )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def hide(self, folder: Path) -> None:
        """Start it again, with an empty folder in the place of one."""
        self.close()
        self.start(hidden=folder)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def others(self) -> list[str]:
        """Return the commands of processes of the host that are no server's."""
        found = []
        for pid in self.host.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words and not words.startswith(("sshd:", SSHD)):
                    found.append(words)
        return found


def made_key(path: Path) -> Path:
    """Make a pair of keys, without a passphrase; return the private one's file."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return path


class Command:
    """``python -m dtrain`` on the user's own host.

    Args:
        cluster: its hosts.
        name: of the folder that it is started in.
        arguments: overrides.
        environment: variables.
    """

    def __init__(self, cluster: Cluster, name: str, *arguments: str, **environment: str):
        self.folder = cluster.folder / name
        self.folder.mkdir(exist_ok=True)
        self._file = self.folder / f"output-{len(list(self.folder.glob('output-*')))}.txt"
        words = ["launcher=ssh", f"launcher.ssh_config={cluster.config}",
                 f"launcher.setup=['export PYTHONPATH={ROOT}']", *arguments]  # fmt: skip
        space = ["ip", "netns", "exec", cluster.login.space]
        with self._file.open("w") as file:
            self.process = subprocess.Popen(
                [*space, sys.executable, "-m", "dtrain", *words],
                cwd=self.folder, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._file.read_text()

    @property
    def rundir(self) -> RunDir:
        [found] = self.folder.glob("outputs/*/*/cluster.json")
        return RunDir(found.parent)

    def wait(self, seconds: float = 240) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError(f"no end within {seconds} s\n{self.output}") from None


class Cluster:
    """The user's host, ``login``, and others with servers: ``a``, ``b``, ``c``.

    Args:
        hosts: the network.
        folder: for all files.
        names: of the others.
    """

    def __init__(self, hosts: Network, folder: Path, names: str = "abc"):
        self.network, self.folder = hosts, folder
        self.login = hosts.host("login")
        self.key = made_key(folder / "key")
        self.servers = {
            name: Server(hosts.host(name), folder, self.key.with_suffix(".pub")) for name in names
        }
        self.config = folder / "ssh_config"
        self.commands: list[Command] = []
        self.know()

    def know(self, *strange: str, options: str = "") -> None:
        """Write the client's configuration: the keys of all servers are known but of some."""
        known = self.folder / "known_hosts"
        entries, keys = [options], []
        for name, server in self.servers.items():
            entries.append(f"Host {name}\n HostName {server.host.address}\n HostKeyAlias {name}\n")
            if name not in strange:
                keys.append(f"{name} {server.key.with_suffix('.pub').read_text()}")
        known.write_text("".join(keys))
        entries.append(
            f"Host *\n User root\n IdentityFile {self.key}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n"
        )
        self.config.write_text("".join(entries))

    def start(self, *arguments: str, name: str = "mine", **environment: str) -> Command:
        """Start a command on the user's host."""
        self.commands.append(Command(self, name, *arguments, **environment))
        return self.commands[-1]

    def left(self) -> dict[str, list[str]]:
        """Return what runs on the hosts besides their servers."""
        return {name: found for name, each in self.servers.items() if (found := each.others())}


@contextlib.contextmanager
def cluster(folder: Path, names: str = "abc") -> Iterator[Cluster]:
    """Make the hosts; afterwards nothing of them is left."""
    with network.switch() as hosts:
        found: Cluster | None = None
        try:
            found = Cluster(hosts, folder, names)
            yield found
        finally:
            for each in hosts.hosts:
                each.signal(signal.SIGKILL)
            if found is not None:
                for command in found.commands:
                    command.process.wait()
                for server in found.servers.values():
                    server.close()
