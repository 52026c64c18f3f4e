"""Who is to blame at a rendezvous to which somebody does not come: who is not there, never those who wait."""

from dataclasses import replace
from pathlib import Path

import msgspec

from perfwatch.probes.readings import Process
from perfwatch.recording import Record, load
from perfwatch.triage.diagnose import diagnose

CASE = Path(__file__).parent / "recordings" / "blocked_rendezvous" / "fires" / "at_different_ports"


def of_five(record: Record) -> Record:
    """The launcher told its ranks of three more."""
    process = record.reading
    if not isinstance(process, Process) or process.rank is None:
        return record
    return msgspec.structs.replace(record, reading=msgspec.structs.replace(process, world_size=5))


def test_the_ranks_that_are_not_there_are_to_blame() -> None:
    """They have no process here, and so no number of one."""
    whole = load(CASE)
    verdict = diagnose(replace(whole, records=tuple(map(of_five, whole.records))))

    assert (verdict.state, verdict.cause) == ("hung", "blocked_rendezvous")
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 0), (3, 0), (4, 0)]
    assert "ranks 2, 3, 4 of 5 are not on this machine" in verdict.summary
