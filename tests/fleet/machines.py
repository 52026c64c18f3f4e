"""Hosts made of one machine: each an sshd on a port of its own, in a pid namespace of its own, so that it sees its own ranks alone."""

import contextlib
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_SECONDS = 60.0  # a deadline for broken code, never a wait
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_not() -> str:
    """Why there can be no hosts here; empty when there can."""
    if not SSHD or not shutil.which("ssh"):
        return "sshd is not installed: apt-get install openssh-server"
    return why_not_apart()


def why_not_apart() -> str:
    """Why no two hosts can have processes of their own here; empty when they can."""
    if os.getuid() != 0:
        return "only root may give each host its own processes"
    apart = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False)
    return "this machine allows no pid namespaces" if apart.returncode else ""


@dataclass
class Hosts:
    """Running sshds. ``config`` is an ssh configuration in which each has its name."""

    folder: Path
    config: Path
    ports: Mapping[str, int]
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def options(self) -> str:
        """For ``perfwatch fleet --options``."""
        return f"-F {self.config}"

    def start(
        self, host: str, command: Sequence[str], names: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        """Run a program on a host through ssh, as a user would; its output goes to a file."""
        words = ["ssh", "-F", str(self.config), host, "exec", "env", *(f"{k}={v}" for k, v in names.items()), *command]
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what was started here; the hosts' own processes end with them."""
        for process in self._started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def hosts(*names: str, silent: str = "") -> Iterator[Hosts]:
    """As many sshds as names, and behind the name ``silent`` somebody who accepts a connection and never says a word."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as place:
        folder = Path(place)
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        ports = {name: free_port() for name in names}
        daemons = [_daemon(folder, port) for port in ports.values()]
        mute = socket.create_server(("127.0.0.1", 0))
        if silent:
            ports[silent] = mute.getsockname()[1]
        config = folder / "config"
        config.write_text(
            "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items())
            + f"Host *\n  IdentityFile {key}\n  UserKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking no\n  LogLevel ERROR\n"
        )
        made = Hosts(folder, config, ports)
        try:
            yield made
        finally:
            made.close()
            mute.close()
            for daemon in daemons:
                daemon.kill()
                daemon.wait()


def free_port() -> int:
    """One of this machine on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _daemon(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    """An sshd that says that it listens before we go on."""
    assert SSHD is not None
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "key",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "LogLevel": "INFO",
        "SetEnv": f"PERFWATCH_DIR={folder / 'sessions'}",
    }
    words = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    daemon = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", SSHD, "-D", "-e", "-f", "/dev/null", *words],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert daemon.stderr is not None
    os.set_blocking(daemon.stderr.fileno(), False)
    said = b""
    while b"listening on" not in said:
        ready, _, _ = select.select([daemon.stderr], [], [], PATIENCE_SECONDS)
        chunk = os.read(daemon.stderr.fileno(), 65536) if ready else b""
        assert chunk, f"sshd did not start: {said.decode()}"
        said += chunk
    return daemon
