"""What several hosts say of one communicator, or of the two ends of one connection, is one thing."""

import msgspec

from perfwatch.fleet.merge.compacting import compact
from perfwatch.fleet.merge.merging import Part, merge
from perfwatch.recording.recording import Record
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch_probes.readings import Communicator, Descriptor, GroupMember, Socket
from tests.fleet.parts import judged, simulated
from tests.sessions import session

HASH = "0xabc"
HOSTS, RANKS_A_HOST, STUCK = 2, 8, 9


def answer(host: int, behind: int | None = STUCK, ranks: int = HOSTS * RANKS_A_HOST) -> Communicator:
    """What RAS tells on a host: the pids of its own ranks as they are seen there, those of the others as they are there."""
    return Communicator(
        communicator=HASH,
        size=ranks,
        members=tuple(
            GroupMember(
                rank=rank,
                pid=1000 + rank % RANKS_A_HOST,
                host=f"node-{rank // RANKS_A_HOST}",
                local=rank // RANKS_A_HOST == host,
                launched={"AllReduce": 40 if rank == behind else 41},
            )
            for rank in range(ranks)
        ),
    )


def with_answers(part: Part, host: int) -> Part:
    """A host whose RAS was asked three times."""
    asked = tuple(Record(at, answer(host)) for at in (3.0, 5.0, 7.0))
    return Part(part.host, msgspec.structs.replace(part.view, records=(*part.view.records, *asked)))


def test_every_member_of_a_communicator_is_known_by_the_process_that_its_own_host_sees() -> None:
    """Each host knows its own ranks, and all hosts together know all."""
    parts = [with_answers(part, host) for host, part in enumerate(simulated(HOSTS, STUCK))]
    merged = merge(parts, session())
    readings = [one.reading for one in merged.records if isinstance(one.reading, Communicator)]

    assert readings
    for reading in readings:
        assert all(member.local for member in reading.members)
        assert [merged.translation.host(member.pid or 0) for member in reading.members] == (
            ["node-0"] * RANKS_A_HOST + ["node-1"] * RANKS_A_HOST
        )


def test_the_rank_that_the_counts_name_on_another_host_is_followed_to_its_worker() -> None:
    """One host alone can only say where it is; all together say why."""
    verdict = judged([with_answers(part, host) for host, part in enumerate(simulated(HOSTS, STUCK))])
    (culprit,) = verdict.culprits

    assert (verdict.cause, culprit.rank, culprit.host, culprit.worker_pid) == ("stalled_collective", 9, "node-1", 2000)
    assert any(one.witness == "nccl_ras" for one in verdict.evidence)


def test_of_a_large_communicator_only_the_first_hosts_tell_of_all_members() -> None:
    """A thousand hosts would tell each other's members a thousand times."""
    sizes = []
    for host in (0, 100):
        history = History([Record(1.0, answer(host, ranks=1024))], 2.0)
        (kept,), _ = compact(Case(history, session()))
        assert isinstance(kept.reading, Communicator)
        sizes.append(len(kept.reading.members))

    assert sizes == [1024, RANKS_A_HOST]


def test_a_connection_between_two_hosts_leads_to_the_process_at_its_other_end() -> None:
    """Loopback addresses are the same on all hosts, and join nothing."""

    def waits(local: str, peer: str) -> Descriptor:
        socket = Socket(family="tcp", state="ESTABLISHED", local=local, peer=peer)
        return Descriptor(pid=1000, fd=5, kind="socket", target="socket:[1]", socket=socket)

    parts = []
    for index, part in enumerate(simulated(2)):
        ends = ("10.0.0.1:4000", "10.0.0.2:5000") if index == 0 else ("10.0.0.2:5000", "10.0.0.1:4000")
        near = ("127.0.0.1:1", "127.0.0.1:2") if index == 0 else ("127.0.0.1:2", "127.0.0.1:1")
        more = (Record(7.0, waits(*ends)), Record(7.5, waits(*near)))
        parts.append(Part(part.host, msgspec.structs.replace(part.view, records=(*part.view.records, *more))))
    merged = merge(parts, session())
    far = [
        tuple(merged.translation.host(pid) for pid in one.reading.socket.peer_pids)
        for one in merged.records
        if isinstance(one.reading, Descriptor) and one.reading.socket is not None
    ]

    assert sorted(far) == [(), (), ("node-0",), ("node-1",)]
