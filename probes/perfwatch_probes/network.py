"""Bytes over each network interface and each RDMA port.

RDMA (InfiniBand, RoCE, EFA) bypasses the network devices: a job that saturates its fabric shows nothing in
/proc/net/dev. Sources: /proc/PID/net/{dev,snmp,netstat} of the job's own network namespace; /sys/class/infiniband.
"""

from collections.abc import Iterator
from pathlib import Path

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Network

RDMA_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count words of four bytes (InfiniBand specification)
_RDMA_ERRORS = ("symbol_error", "port_rcv_errors", "link_downed", "local_link_integrity_errors", "port_xmit_discards")
_RDMA_RETRANSMITS = ("packet_seq_err", "local_ack_timeout_err", "retrans_pkts")  # mlx5 twice, EFA


class NetworkProbe:
    """Reads the interfaces that a process sees, and the machine's RDMA ports.

    Args:
        filesystem: where /proc and /sys are.
    """

    NAME = "network"
    NEEDS = "nothing"
    COST = "0.2 ms, and 10 reads per RDMA port"

    def __init__(self, filesystem: Filesystem | None = None) -> None:
        self._filesystem = filesystem or Filesystem()

    def look(self, pid: int | None = None) -> list[Network]:
        """One reading per interface and RDMA port, and one of kind ``tcp`` that has the retransmits of all TCP.

        Raises Unavailable when /proc/net cannot be read.
        """
        net = self._filesystem.proc / ("self" if pid is None else str(pid)) / "net"
        readings = list(parse_devices(self._filesystem.read_text(net / "dev")))
        tcp = parse_tcp(self._text(net / "snmp"), self._text(net / "netstat"))
        return [*readings, *([tcp] if tcp else []), *self._rdma()]

    def _rdma(self) -> Iterator[Network]:
        root = self._filesystem.sys / "class/infiniband"
        for device in self._names(root):
            for port in self._names(root / device / "ports"):
                yield from self._port(f"{device}/{port}", root / device / "ports" / port)

    def _port(self, name: str, folder: Path) -> Iterator[Network]:
        received = self._number(folder / "counters/port_rcv_data")
        sent = self._number(folder / "counters/port_xmit_data")
        if received is not None and sent is not None:
            received, sent = received * RDMA_WORD_BYTES, sent * RDMA_WORD_BYTES
        else:  # EFA
            received = self._number(folder / "hw_counters/rx_bytes")
            sent = self._number(folder / "hw_counters/tx_bytes")
        if received is None or sent is None:
            return
        retransmits = [self._number(folder / "hw_counters" / counter) for counter in _RDMA_RETRANSMITS]
        known = [count for count in retransmits if count is not None]
        yield Network(
            interface=name,
            kind="rdma",
            received_bytes=received,
            sent_bytes=sent,
            errors=sum(self._number(folder / "counters" / counter) or 0 for counter in _RDMA_ERRORS),
            retransmits=sum(known) if known else None,
        )

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(self._filesystem.listdir(folder))
        except Unavailable:
            return []

    def _text(self, path: Path) -> str:
        try:
            return self._filesystem.read_text(path)
        except Unavailable:
            return ""

    def _number(self, path: Path) -> int | None:
        text = self._text(path).strip()
        return int(text) if text.isdigit() else None


def parse_devices(text: str) -> Iterator[Network]:
    """Interfaces in /proc/net/dev. ``errors`` are receive and transmit errors; drops, often by design, are not."""
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counters = [int(word) for word in numbers.split()]
        if len(counters) >= 16:
            yield Network(
                interface=name.strip(),
                kind="netdev",
                received_bytes=counters[0],
                sent_bytes=counters[8],
                errors=counters[2] + counters[10],
            )


def parse_tcp(snmp: str, netstat: str) -> Network | None:
    """Retransmitted segments of every TCP connection, with the octets of IP; None where the kernel does not tell."""
    tcp, ip = _table(snmp, "Tcp"), _table(netstat, "IpExt")
    if "RetransSegs" not in tcp:
        return None
    return Network(
        interface="tcp",
        kind="tcp",
        received_bytes=ip.get("InOctets", 0),
        sent_bytes=ip.get("OutOctets", 0),
        errors=tcp.get("InErrs", 0),
        retransmits=tcp["RetransSegs"],
    )


def _table(text: str, prefix: str) -> dict[str, int]:
    """A heading line and a line of numbers, both starting with ``prefix:``."""
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith(f"{prefix}:")]
    return {name: int(number) for name, number in zip(*rows, strict=False)} if len(rows) == 2 else {}
