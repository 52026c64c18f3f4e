"""Interfaces and RDMA ports."""

from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.network import NetworkProbe, parse_devices
from perfwatch_probes.readings import Network

DEVICES = """\
Inter-|   Receive                                     |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
  eth0:5000      50    2    9    0     0          0         0     7000      70    1    8    0     0       0          0
"""
SNMP = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 33 4\n"
NETSTAT = "TcpExt: SyncookiesSent\nTcpExt: 0\nIpExt: InOctets OutOctets\nIpExt: 600 800\n"


def machine(tmp_path: Path, files: dict[str, str]) -> Filesystem:
    """Process 41 with these network files, and RDMA devices under sys/."""
    for name, text in {"proc/41/net/dev": DEVICES, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Filesystem(tmp_path / "proc", tmp_path / "sys")


def test_interfaces_count_errors_of_both_directions() -> None:
    """Drops are left out; a name may touch its first number, as old kernels print it."""
    _, eth0 = parse_devices(DEVICES)

    assert eth0 == Network(interface="eth0", kind="netdev", received_bytes=5000, sent_bytes=7000, errors=3)


def test_retransmits_of_tcp_are_a_reading_of_their_own(tmp_path: Path) -> None:
    """The kernel counts them per namespace, not per interface."""
    filesystem = machine(tmp_path, {"proc/41/net/snmp": SNMP, "proc/41/net/netstat": NETSTAT})

    tcp = NetworkProbe(filesystem).look(41)[-1]

    assert tcp == Network(interface="tcp", kind="tcp", received_bytes=600, sent_bytes=800, errors=4, retransmits=33)


def test_an_infiniband_port_counts_words_of_four_bytes(tmp_path: Path) -> None:
    """Its errors and retransmits are summed."""
    port = "sys/class/infiniband/mlx5_0/ports/1"
    filesystem = machine(
        tmp_path,
        {
            f"{port}/counters/port_rcv_data": "100\n",
            f"{port}/counters/port_xmit_data": "200\n",
            f"{port}/counters/symbol_error": "1\n",
            f"{port}/counters/link_downed": "2\n",
            f"{port}/hw_counters/packet_seq_err": "5\n",
            f"{port}/hw_counters/local_ack_timeout_err": "6\n",
        },
    )

    assert NetworkProbe(filesystem).look(41)[-1] == Network(
        interface="mlx5_0/1", kind="rdma", received_bytes=400, sent_bytes=800, errors=3, retransmits=11
    )


def test_an_efa_port_counts_bytes(tmp_path: Path) -> None:
    """It has hardware counters only; what it does not count is not known."""
    port = "sys/class/infiniband/rdmap0/ports/1/hw_counters"
    filesystem = machine(tmp_path, {f"{port}/rx_bytes": "100\n", f"{port}/tx_bytes": "200\n"})

    assert NetworkProbe(filesystem).look(41)[-1] == Network(
        interface="rdmap0/1", kind="rdma", received_bytes=100, sent_bytes=200
    )


def test_a_process_that_has_ended_has_no_network(tmp_path: Path) -> None:
    """Unavailable, not silence."""
    with pytest.raises(Absent):
        NetworkProbe(machine(tmp_path, {})).look(42)


def test_the_real_machine_has_a_loopback() -> None:
    """The formats of this kernel parse."""
    assert "lo" in [one.interface for one in NetworkProbe().look()]
