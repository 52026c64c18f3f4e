"""Unequal sizes are told by exclusion: only where all data of the collective is seen to go over connections."""

from dataclasses import replace

import msgspec

from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Host, Network, ProbeCall, Traffic
from tests.recorded import RECORDINGS, load_case

RECORDING = RECORDINGS / "mismatched_collective" / "fires" / "sizes-sockets-four"
AT = 9.0
SILENT = ProbeCall(
    probe="flight_recorder", entity="job", outcome="unavailable", reason="it is silent", duration_seconds=4.0
)


def without_recorders() -> Recording:
    """The recorded job, whose recorders were asked in vain."""
    whole = load_case(RECORDING)
    asked = msgspec.structs.replace(next(one for one in whole.records if one.at > AT / 2), reading=SILENT)
    return replace(whole, records=tuple(sorted((*whole.records, asked), key=lambda one: one.at)))


def test_over_sockets_that_have_delivered_all_the_sizes_are_blamed() -> None:
    """Four ranks in one call, and nothing is under way between them."""
    assert diagnose(load_case(RECORDING), AT).cause == "mismatched_collective"


def test_where_there_is_an_rdma_port_the_network_is_not_ruled_out() -> None:
    """The collective may run over it, whatever the connections carried before."""
    whole = without_recorders()
    port = Network(interface="mlx5_0/1", kind="rdma", received_bytes=0, sent_bytes=0)
    looks = [msgspec.structs.replace(one, reading=port) for one in whole.records if isinstance(one.reading, Host)]
    seen = replace(whole, records=tuple(sorted((*whole.records, *looks), key=lambda one: one.at)))

    assert looks
    assert diagnose(seen, AT).cause == "wedged_collective"


def test_what_was_not_confirmed_at_any_look_has_not_arrived() -> None:
    """However little it is: a keep-alive is confirmed within milliseconds, and the kernel sends again ever more seldom."""
    whole, same = without_recorders(), {"queued_bytes": 192, "sent_bytes": 50_000_000, "received_bytes": 50_000_000}

    def stuck(one: Record) -> Record:
        if not isinstance(one.reading, Traffic):
            return one
        return msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, **same))

    assert diagnose(replace(whole, records=tuple(map(stuck, whole.records))), AT).cause == "wedged_collective"
